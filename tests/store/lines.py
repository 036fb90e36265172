"""Trace lines for the store's tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import orjson

from rayeval.schemas import TRACE_SCHEMA, FinishedTrace, Receipt
from rayeval.store import RunDirectory
from rayeval.store.reading import receipt_line

V4 = "shopsimrl-episode-v4"


def episode(task: int, sample: int = 0) -> str:
    return f"task-{task:06d}__sample-{sample:03d}"


def line(
    episode_id: str,
    status: str = "completed",
    attempt: int = 1,
    *,
    schema: str = TRACE_SCHEMA,
    done: bool = True,
    kind: str = "reset_timeout",
    size: int = 0,
    **error: object,
) -> bytes:
    completed = status == "completed"
    trace = {
        "schema_version": schema,
        "episode_id": episode_id,
        "status": status,
        "conversation": [{"role": "tool", "content": "页" * (size // 3)}],
        "final": {"done": done, "reward": 0.5} if completed else None,
        "error": None if completed else {"stage": "reset", "kind": kind, "type": "T", "message": "m", **error},
    }
    if schema == TRACE_SCHEMA:
        trace["attempt"] = attempt
    return orjson.dumps(trace, option=orjson.OPT_APPEND_NEWLINE)


def finished(episode_id: str, status: str = "completed", attempt: int = 1, size: int = 0) -> FinishedTrace:
    return FinishedTrace(episode_id, attempt, status, line(episode_id, status, attempt, size=size), None, status == "failed", {})


def write_run(path: Path, lines: Iterable[bytes], *, receipts: bool = True) -> RunDirectory:
    """A run directory with these trace lines and, for those of ours, their receipts."""
    run_dir = RunDirectory(path)
    path.mkdir(exist_ok=True)
    offset, rows = 0, b""
    with run_dir.traces.open("wb") as traces:
        for raw in lines:
            traces.write(raw)
            if receipts:
                t = orjson.loads(raw)
                rows += receipt_line(Receipt(t["episode_id"], t["attempt"], t["status"], offset, len(raw), crc32(raw)))
            offset += len(raw)
    if receipts:
        run_dir.receipts.write_bytes(rows)
    return run_dir
