"""How long a resume takes to know what is done: ``python -m benchmarks.resume [--lines 200000] [--line-bytes 2048] [--json FILE]``.

Builds a run of that size and loads its index in fresh processes, with receipts and without. Exits 1 when a limit is passed (at 200,000
lines of 2 KB: 2 s with receipts, 20 s without, 150 MB of memory growth) or when the two disagree.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from benchmarks import alone
from benchmarks.experiment import Figure, in_fresh_process, table
from rayeval.schemas import TRACE_SCHEMA, Receipt
from rayeval.store import RunDirectory, load_resume_index
from rayeval.store.reading import receipt_line

LINES = 200_000
"""To which the limits belong; they grow with more."""
WITH_RECEIPTS_S = 2.0
WITHOUT_S = 20.0
RSS_MB = 150.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=LINES, metavar="N")
    parser.add_argument("--line-bytes", type=int, default=2048, metavar="N")


def build(run_dir: RunDirectory, lines: int, line_bytes: int) -> None:
    """Every hundredth line is a failure that a later line completes; eight samples a task."""
    offset = 0
    with run_dir.traces.open("wb") as traces, run_dir.receipts.open("wb") as receipts:
        for i in range(lines):
            failed = i % 100 == 0 and i + 1 < lines
            job = i + 1 if failed else i
            attempt = 2 if i % 100 == 1 else 1
            episode_id = f"task-{job // 8:06d}__sample-{job % 8:03d}"
            trace = {
                "schema_version": TRACE_SCHEMA,
                "episode_id": episode_id,
                "attempt": attempt,
                "status": "failed" if failed else "completed",
                "conversation": [],
                "final": None if failed else {"done": True, "reward": 0.5},
                "error": {"stage": "reset", "kind": "reset_timeout"} if failed else None,
            }
            turn = {"role": "tool", "tool_call_id": f"call-{i}", "content": "搜索结果 第1页: 轻便跑鞋 价格 ¥129.00"}
            short = line_bytes - len(orjson.dumps(trace)) - 64
            turns: list[dict[str, str]] = [turn] * max(0, short // (len(orjson.dumps(turn)) + 1))
            turns.append({"role": "tool", "content": ""})
            trace["conversation"] = turns
            turns[-1] = {"role": "tool", "content": "x" * max(0, line_bytes - len(orjson.dumps(trace)) - 1)}
            line = orjson.dumps(trace, option=orjson.OPT_APPEND_NEWLINE)
            traces.write(line)
            status = str(trace["status"])
            receipts.write(receipt_line(Receipt(episode_id, attempt, status, offset, len(line), crc32(line))))
            offset += len(line)


def load(path: Path) -> dict[str, float]:
    """In this process: seconds and growth of the resident set's peak."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    index = load_resume_index(RunDirectory(path))
    seconds = time.perf_counter() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"s": seconds, "rss_mb": growth, "completed": len(index.completed), "lines": index.lines, "trusted": index.trusted_lines}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """A run built, and its index loaded twice."""
    with tempfile.TemporaryDirectory() as temporary:
        run_dir = RunDirectory(temporary)
        build(run_dir, options.lines, options.line_bytes)
        size = run_dir.traces.stat().st_size
        with_receipts = in_fresh_process("benchmarks.resume", "load", run_dir.path)
        run_dir.receipts.unlink()
        without = in_fresh_process("benchmarks.resume", "load", run_dir.path)
    agree = with_receipts["completed"] == without["completed"] and with_receipts["trusted"] == options.lines
    result = {"lines": options.lines, "bytes": size, "with_receipts": with_receipts, "without": without, "indexes_agree": agree}
    return {**result, "within_limits": agree and all(figure.within for figure in figures(result))}


def show(result: dict[str, Any]) -> str:
    found = "the same" if result["indexes_agree"] else "NOT the same"
    return f"{table([('resume', 'measured', 'limit'), *((f.what, f.measured, f.limit) for f in figures(result))])}\nboth found {found}"


def figures(result: dict[str, Any]) -> list[Figure]:
    scale = max(1.0, result["lines"] / LINES)
    rss = max(result[side]["rss_mb"] for side in ("with_receipts", "without"))
    name = f"resume: {result['lines']:,} lines"
    rows = (
        ("s with receipts", result["with_receipts"]["s"], 2, WITH_RECEIPTS_S),
        ("s without", result["without"]["s"], 2, WITHOUT_S),
        ("MB", rss, 0, RSS_MB),
    )
    return [
        Figure(f"{name}, {what}", f"{measured:.{places}f}", "", "", f"{limit * scale:g}", measured <= limit * scale)
        for what, measured, places, limit in rows
    ]


def main() -> int:
    if sys.argv[1:2] == ["load"]:  # one process of a measurement
        print(json.dumps(load(Path(sys.argv[2]))))
        return 0
    return alone.main(sys.modules[__name__])


if __name__ == "__main__":
    raise SystemExit(main())
