"""What Parquet shards cost: ``python -m benchmarks.shards [--shard-rows 10000] [--shard-kilobytes 60] [--json FILE]``.

Builds a run of that size, then writes it as Parquet twice, each in a process of its own: with pyarrow alone (the floor: parse each line,
six columns and the text, zstd) and by ``actors.shards`` on a local Ray. CPU is that of the whole process tree. Starting Ray and importing
Ray Data are told apart: they cost the same for any run. Exits 1 past 4 times the floor's CPU, or 500 MB in the driver.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks import alone
from benchmarks.experiment import Figure, in_fresh_process, table
from benchmarks.processes import cpu_seconds, family

CPU_LIMIT = 4.0
RSS_LIMIT_MB = 500.0
_ROWS_AT_ONCE = 250


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard-rows", type=int, default=10_000, metavar="N")
    parser.add_argument("--shard-kilobytes", type=int, default=60, metavar="N")


def trace(i: int, kilobytes: int) -> dict[str, Any]:
    """A trace in which each piece of text stands three times, as in a real one."""
    steps: list[dict[str, Any]] = []
    conversation: list[dict[str, Any]] = []
    size = 0
    while size < kilobytes * 1000:
        h = hashlib.blake2b(b"%d/%d" % (i, len(steps)), digest_size=64).hexdigest()
        page = "".join(
            f"[{k}] 商品 SKU-{h[k : k + 9]} 价格 {int(h[k : k + 4], 16) % 900}.00 元, 销量 {int(h[k + 1 : k + 5], 16)}; "
            for k in range(0, 120, 5)
        )
        usage = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940}
        steps.append(
            {
                "step_index": len(steps) + 1,
                "observation": page,
                "model": {"content": page[:300], "tool_calls": [], "usage": usage, "latency_ms": 812.25},
                "action": "click[x]",
                "environment": {"observation": page, "done": False, "action_feedback": {"valid": True}},
            }
        )
        conversation.append({"role": "tool", "content": page})
        size += 3 * len(page.encode()) + 700
    detail = {"r_strict": 0.0, "r_success": 0.0, "r_type": 1.0, "r_att": 0.5, "r_option": 0.25, "r_price": 1.0}
    return {
        "schema_version": "rayeval-episode-v1",
        "episode_id": f"task-{i:06d}__sample-000",
        "attempt": 1,
        "status": "completed",
        "job": {"task_id": i, "sample_id": 0, "seed": i * 7919 % 2**32, "split": "val"},
        "provenance": {"model": {"provider": "openai_chat", "model": "m", "checkpoint_id": "c"}, "plan_fingerprint": "0" * 64},
        "started_at": "2026-01-01T00:00:00.000000+00:00",
        "ended_at": "2026-01-01T00:00:09.000000+00:00",
        "duration_ms": 9000.0,
        "reset": {"observation": "page"},
        "selected_skills": [],
        "conversation": conversation,
        "steps": steps,
        "final": {"done": True, "reward": (i % 100) / 100, "reward_detail": detail, "termination_reason": "purchase"},
        "error": None,
    }


def build(path: Path, rows: int, kilobytes: int) -> None:
    """A run directory with receipts, as the engine leaves it."""
    from zlib import crc32

    from rayeval.schemas import MANIFEST_SCHEMA, Receipt
    from rayeval.store import RunDirectory
    from rayeval.store.reading import receipt_line

    run_dir = RunDirectory(path).create()
    run_dir.write_manifest({"schema_version": MANIFEST_SCHEMA, "plan_fingerprint": "0" * 64, "plan": {}})
    offset = 0
    with run_dir.traces.open("wb") as traces, run_dir.receipts.open("wb") as receipts:
        for i in range(rows):
            made = trace(i, kilobytes)
            line = orjson.dumps(made) + b"\n"
            traces.write(line)
            receipts.write(receipt_line(Receipt(made["episode_id"], 1, "completed", offset, len(line), crc32(line))))
            offset += len(line)


def floor(path: Path) -> dict[str, float]:
    """pyarrow alone, in this process."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rayeval.shard_rows import COMPRESSION_LEVEL

    out = path / "floor.parquet"
    columns = [("episode_id", pa.string()), ("task_id", pa.int64()), ("status", pa.string()), ("reward", pa.float64())]
    schema = pa.schema([*columns, ("n_steps", pa.int64()), ("trace", pa.large_string())])
    began, before = time.monotonic(), time.process_time()
    with pq.ParquetWriter(out, schema, compression="zstd", compression_level=COMPRESSION_LEVEL, use_dictionary=["status"]) as writer:
        rows: list[dict[str, Any]] = []

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            rows.clear()

        with (path / "traces.jsonl").open("rb") as file:
            for line in file:
                t = orjson.loads(line)
                known = {"episode_id": t["episode_id"], "task_id": t["job"]["task_id"], "status": t["status"]}
                rows.append({**known, "reward": t["final"]["reward"], "n_steps": len(t["steps"]), "trace": line[:-1].decode()})
                if len(rows) == _ROWS_AT_ONCE:
                    flush()
        if rows:
            flush()
    return {"wall_s": time.monotonic() - began, "cpu_s": time.process_time() - before, "rss_mb": _peak_mb(), "bytes": out.stat().st_size}


def shards(path: Path) -> dict[str, float]:
    """``write_shards`` in this process and on a Ray of its own."""
    from actors import cluster
    from actors.shards import write_shards
    from rayeval.store import RunDirectory

    began, before = time.monotonic(), cpu_seconds(family(os.getpid()))
    cluster.join(None, 0)
    import ray.data  # noqa: F401

    start_s, ready = time.monotonic() - began, cpu_seconds(family(os.getpid()))
    began = time.monotonic()
    result = write_shards([RunDirectory(path)])
    wall_s, after = time.monotonic() - began, cpu_seconds(family(os.getpid()))
    began = time.monotonic()
    again = write_shards([RunDirectory(path)])
    again_s = time.monotonic() - began
    cluster.leave()
    if again.written or again.manifest != result.manifest:
        raise RuntimeError("the second call wrote the set again")
    return {
        "start_s": start_s,
        "start_cpu_s": ready - before,
        "wall_s": wall_s,
        "cpu_s": after - ready,
        "again_s": again_s,
        "rss_mb": _peak_mb(),
        "rows": result.manifest["rows"],
        "bytes": result.manifest["bytes"],
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it. -> figures, with ``within_limits``."""
    rows, kilobytes = options.shard_rows, options.shard_kilobytes
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run"
        in_fresh_process("benchmarks.shards", "build", path, rows, kilobytes)
        load = os.getloadavg()[0]
        bare = in_fresh_process("benchmarks.shards", "floor", path)
        ours = in_fresh_process("benchmarks.shards", "shards", path)
        size = (path / "traces.jsonl").stat().st_size
    ratio = ours["cpu_s"] / bare["cpu_s"]
    good = ratio <= CPU_LIMIT and ours["rss_mb"] <= RSS_LIMIT_MB and ours["rows"] == rows
    taken = {"rows": rows, "mb": size / 1e6, "load": load, "pyarrow": bare, "shards": ours, "cpu_ratio": ratio}
    return {**taken, "cpu_ratio_with_start": (ours["cpu_s"] + ours["start_cpu_s"]) / bare["cpu_s"], "within_limits": good}


def show(result: dict[str, Any]) -> str:
    bare, ours = result["pyarrow"], result["shards"]
    head = (f"{result['rows']} rows, {result['mb']:.0f} MB, load {result['load']:.1f}", "wall, s", "CPU, s", "driver, MB", "Parquet, MB")
    return "\n".join(
        [
            table(
                [
                    head,
                    ("pyarrow alone", *(f"{bare[k]:.1f}" for k in ("wall_s", "cpu_s", "rss_mb")), f"{bare['bytes'] / 1e6:.1f}"),
                    ("shards", *(f"{ours[k]:.1f}" for k in ("wall_s", "cpu_s", "rss_mb")), f"{ours['bytes'] / 1e6:.1f}"),
                    ("Ray and Ray Data starting", f"{ours['start_s']:.1f}", f"{ours['start_cpu_s']:.1f}", "", ""),
                    ("again, nothing to do", f"{ours['again_s']:.1f}", "", "", ""),
                ]
            ),
            f"CPU {result['cpu_ratio']:.2f} x pyarrow alone (limit {CPU_LIMIT:.0f}), {result['cpu_ratio_with_start']:.2f} x with the start",
        ]
    )


def figures(result: dict[str, Any]) -> list[Figure]:
    bare, ours, ratio = result["pyarrow"], result["shards"], result["cpu_ratio"]
    rss = ours["rss_mb"]
    name = f"shards: {result['rows']} traces"
    return [
        Figure(f"{name}, CPU s", f"{ours['cpu_s']:.1f}", f"{bare['cpu_s']:.1f}", f"{ratio:.1f}", f"{CPU_LIMIT:.0f} ×", ratio <= CPU_LIMIT),
        Figure(f"{name}, driver MB", f"{rss:.0f}", f"{bare['rss_mb']:.0f}", "", f"{RSS_LIMIT_MB:.0f}", rss <= RSS_LIMIT_MB),
    ]


def main() -> int:
    stages: dict[str, Callable[..., Any]] = {"build": build, "floor": floor, "shards": shards}
    if sys.argv[1:2] and sys.argv[1] in stages:  # one process of a measurement, from in_fresh_process
        stage, path, *sizes = sys.argv[1:]
        print(json.dumps(stages[stage](Path(path), *map(int, sizes)) or {}))
        return 0
    return alone.main(sys.modules[__name__])


if __name__ == "__main__":
    raise SystemExit(main())
