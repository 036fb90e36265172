"""How long a resume takes to know what is done: ``python benchmarks/resume.py [--lines 200000] [--line-bytes 2048]
[--dir DIR]``.

Builds a run of that size and loads its index in fresh processes, with receipts and without. Prints one JSON line;
exits 1 when a limit is passed (at 200,000 lines of 2 KB: 2 s with receipts, 20 s without, 150 MB of memory growth).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zlib import crc32

import orjson

from rayeval.schemas import TRACE_SCHEMA, Receipt
from rayeval.store import RunDirectory, load_resume_index
from rayeval.store.reading import receipt_line


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


def measure(path: Path) -> dict[str, float]:
    """In this process: seconds and growth of the resident set's peak."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    index = load_resume_index(RunDirectory(path))
    seconds = time.perf_counter() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"s": seconds, "rss_mb": growth, "completed": len(index.completed), "lines": index.lines,
            "trusted": index.trusted_lines}  # fmt: skip


def measured_apart(path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--line-bytes", type=int, default=2048)
    parser.add_argument("--dir", default=None, help="where the temporary run is built")
    parser.add_argument("--measure", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure))))
        return 0
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        run_dir = RunDirectory(temporary)
        build(run_dir, options.lines, options.line_bytes)
        size = run_dir.traces.stat().st_size
        with_receipts = measured_apart(run_dir.path)
        run_dir.receipts.unlink()
        without = measured_apart(run_dir.path)
    scale = max(1.0, options.lines / 200_000)
    rss = max(with_receipts["rss_mb"], without["rss_mb"])
    agree = with_receipts["completed"] == without["completed"] and with_receipts["trusted"] == options.lines
    ok = agree and with_receipts["s"] <= 2 * scale and without["s"] <= 20 * scale and rss <= 150 * scale
    print(
        json.dumps(
            {
                "lines": options.lines,
                "bytes": size,
                "completed": with_receipts["completed"],
                "with_receipts_s": round(with_receipts["s"], 3),
                "without_s": round(without["s"], 3),
                "rss_mb": round(rss, 1),
                "rss_with_receipts_mb": round(with_receipts["rss_mb"], 1),
                "rss_without_mb": round(without["rss_mb"], 1),
                "indexes_agree": agree,
                "within_limits": ok,
            }
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
