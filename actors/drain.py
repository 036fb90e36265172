"""Let what runs in this container end in order before the container does: ``python -m actors.drain --within 210`` in a ``preStop`` hook.

Beside a driver: it is asked to drain, by one SIGTERM. Beside actors: their driver, in a container that is being ended too, lets their
episodes end and stops them; until then this one stays. Returns at once where there are neither.

A driver that drains already (``ray job stop``, which the KubeRay operator sends as well) gets no second signal, for that ends it at once.
Whether it does is read from its ``status.json``, found by the lock that it holds open and at most a second old; hence the pause first.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import psutil

LOOK_FIRST_S = 3.0
"""A status is written once a second: a drain that has just been asked for shows by then."""
_LOOK_EVERY_S = 0.5
_LOCK = "run.lock"
_ACTOR = "ray::_RayRolloutActor"
"""How Ray titles the process of a rollout actor; ``.exchange`` follows while it works."""


def drivers(root: psutil.Process) -> Iterator[psutil.Process]:
    """Processes below ``root`` that are ``rayeval run``, by whatever name it was started."""
    for process in _below(root):
        words = _words(process)
        for word, following in itertools.pairwise(words):
            if following == "run" and (word == "rayeval" or word.endswith("/rayeval")) and "python" in Path(words[0]).name:
                yield process
                break


def actors(root: psutil.Process) -> list[psutil.Process]:
    """Rollout actors below ``root``."""
    return [process for process in _below(root) if _words(process)[:1] and _words(process)[0].startswith(_ACTOR)]


def ends_already(driver: psutil.Process) -> bool:
    """Whether a driver has stopped giving out episodes, as far as its status says."""
    try:
        held = [Path(file.path) for file in driver.open_files() if Path(file.path).name == _LOCK]
        states = [orjson.loads((lock.parent / "status.json").read_bytes()).get("state") for lock in held]
    except (psutil.Error, OSError, orjson.JSONDecodeError):
        return False
    return any(state in ("draining", "closing", "ended") for state in states)


def drain(root: psutil.Process, within_s: float) -> list[str]:
    """Ask what must be asked, and wait. -> what is still there after ``within_s``, in words."""
    deadline = time.monotonic() + within_s
    if not _running(root):
        return []
    time.sleep(min(LOOK_FIRST_S, within_s))
    for driver in drivers(root):
        if not ends_already(driver):
            try:
                driver.terminate()
            except psutil.NoSuchProcess:
                continue
    while (left := _running(root)) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return [f"{process.pid} {' '.join(_words(process)[:4])}" for process in left]


def _running(root: psutil.Process) -> list[psutil.Process]:
    return [process for process in (*drivers(root), *actors(root)) if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _below(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def main() -> int:
    """-> 0, or 1 when something had to be left running."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--within", type=float, required=True, metavar="S", help="seconds; below the container's grace period")
    parser.add_argument("--root", type=int, default=1, metavar="PID", help="look below this process (default: 1, the container's)")
    args = parser.parse_args()
    left = drain(psutil.Process(args.root), args.within)
    for words in left:
        print(f"still running after {args.within:g} s: {words}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
