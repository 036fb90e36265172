"""``status.json``: the picture of a running run, replaced about once a second.

It is a view and never a source: nothing is decided from it, and a failed write costs one refresh. (A full disk ends
the run through the trace log, where it matters.)
"""

from __future__ import annotations

import orjson

from rayeval.exceptions import StoreWriteError
from rayeval.schemas import JsonObject
from rayeval.store._files import replace_file
from rayeval.store.run_directory import RunDirectory


def write_status(run_dir: RunDirectory, status: JsonObject) -> bool:
    """Replace ``status.json`` atomically, without fsync. -> False when the disk refused it (the old content stands)."""
    try:
        replace_file(run_dir.status, orjson.dumps(status) + b"\n", durable=False)
    except StoreWriteError:
        return False
    return True


def read_status(run_dir: RunDirectory) -> JsonObject | None:
    """-> the last status, or None when there is none that can be read."""
    try:
        status = orjson.loads(run_dir.status.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return status if isinstance(status, dict) else None
