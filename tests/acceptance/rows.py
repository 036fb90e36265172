"""The acceptance rows as functions: each runs one thing, asserts what was promised, and returns the figures it saw.

The suite calls them small, against the demo servers. By hand, at full size, against the demo or against another mock with the same flags:

    python -m tests.acceptance.rows --row determinism --row faults [--mock-command "python servers.py"]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.acceptance.rows_faults import faults
from tests.acceptance.rows_kill import kill_and_resume, torn_resume
from tests.acceptance.rows_lives import actor_ends, lock, lock_from_another_host, signals
from tests.acceptance.rows_sameness import determinism, real_load
from tests.acceptance.rows_secrets import secrets
from tests.acceptance.runs import (
    JsonObject,
)
from tests.acceptance.servers import DemoPair, StartServers, external
from tests.actors.sessions import shared_ray

ROWS: dict[str, Callable[[StartServers, Path], JsonObject]] = {
    "load": real_load,
    "determinism": determinism,
    "kill": kill_and_resume,
    "kill-shared": lambda start, root: kill_and_resume(start, root, exclusive=False),
    "torn": torn_resume,
    "faults": faults,
    "lock": lock,
    "lock-host": lock_from_another_host,
    "actor-killed": actor_ends,
    "actor-stopped": lambda start, root: actor_ends(start, root, 900, stop=True),
    "signals": signals,
    "secrets": secrets,
}


def _told(name: str, start: StartServers, place: Path) -> bool:
    """Run one row and print its line. -> whether it holds."""
    shutil.rmtree(place, ignore_errors=True)
    began = time.monotonic()
    line: JsonObject = {"row": name, "holds": True}
    try:
        figures = ROWS[name](start, place)
    except Exception as error:
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        line["holds"], figures = False, {"why": f"{type(error).__name__}: {error}"[-3000:]}
    line |= {"seconds": round(time.monotonic() - began, 1), **figures}
    print(json.dumps(line, ensure_ascii=False, default=str), flush=True)
    return bool(line["holds"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run rows by hand; one JSON line each. -> how many did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="default: all, one after another")
    parser.add_argument("--mock-command", help="command of a mock that serves both sides on --port and prints its URL; default: the demo")
    parser.add_argument("--keep", type=Path, help="directory for the runs, kept; default: a temporary one")
    args = parser.parse_args(argv)
    start: StartServers = external(args.mock_command) if args.mock_command else DemoPair
    root = args.keep or Path(tempfile.mkdtemp(prefix="rayeval-rows-"))
    wrong = 0
    with shared_ray():
        for name in args.row or ROWS:
            wrong += not _told(name, start, root / name)
    if not args.keep:
        shutil.rmtree(root, ignore_errors=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
