"""One run of the engine in a process of its own: ``python -m benchmarks.engine_run CONFIG RUN_DIR [--local] [--profile FILE]``.

Prints one JSON line: wall and CPU from the first dispatch to the last durable trace, over the driver and all processes of Ray's, and
memory each thousand episodes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import time
from pathlib import Path
from typing import Any

from actors.engine import RunRequest, run
from actors.exchanges import FIRST_DISPATCH
from actors.pool import ALL_DURABLE
from benchmarks.processes import cpu_by_name, family, rss_bytes, uss_bytes
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.plan import make_plan
from rayeval.schemas import JsonObject


class _Meter(NoDisplay):
    """Looks at clocks and memory at the moments the engine names."""

    def __init__(self, memory_every: int) -> None:
        self._memory_every = memory_every
        self._next_memory = memory_every
        self.first: tuple[float, dict[str, float]] | None = None
        self.last: tuple[float, dict[str, float]] | None = None
        self.memory: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.ended: JsonObject = {}

    def note(self, level: str, text: str) -> None:
        if text == FIRST_DISPATCH:
            used = cpu_by_name(family(os.getpid()))
            self.first = (time.monotonic(), used)
        elif text == ALL_DURABLE:
            now = time.monotonic()
            self.last = (now, cpu_by_name(family(os.getpid())))
        elif level != "debug":
            self.notes.append(f"{level}: {text}")

    def update(self, status: JsonObject) -> None:
        if not self._memory_every or status["done"] < self._next_memory or not status["actors"]:  # none: the run is closing
            return
        self._next_memory = status["done"] // self._memory_every * self._memory_every + self._memory_every
        actors = {a["id"]: uss_bytes(a["pid"]) for a in status["actors"] if a["pid"]}
        self.memory.append({"done": status["done"], "driver_rss": rss_bytes(os.getpid()), "actors_uss": actors})

    def end(self, outcome: JsonObject) -> None:
        self.ended = outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--memory-every", type=int, default=0, help="look at memory each time that many episodes are done")
    parser.add_argument("--local", action="store_true", help="in this process, without Ray")
    parser.add_argument("--profile", type=Path, default=None, help="with --local: write cProfile's figures here")
    parser.add_argument("--fence-by-time", action="store_true", help="trust no pid of a lost actor, as on machines of their own")
    options = parser.parse_args()
    loaded = load_config(options.config)
    meter = _Meter(options.memory_every)
    request = RunRequest(loaded, make_plan(loaded), options.run_dir, show=options.local, kill_by_pid=not options.fence_by_time)
    profile = cProfile.Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    outcome = run(request, meter)
    if profile is not None:
        profile.disable()
        profile.dump_stats(options.profile)
    if meter.first is None or meter.last is None:
        raise SystemExit(f"the run did not get that far: {outcome.reason}; {meter.notes}")
    (began, used_before), (ended, used_after) = meter.first, meter.last
    cpu = {name: round(used_after[name] - used_before.get(name, 0.0), 3) for name in used_after}
    print(
        json.dumps(
            {
                "wall_s": ended - began,
                "cpu_s": sum(used_after.values()) - sum(used_before.values()),
                "cpu_by_process": cpu,
                "episodes": outcome.status["done"],
                "failed": outcome.status["failed"],
                "steps": outcome.status["steps"],
                "retries": outcome.status["retries"],
                "exit_code": int(outcome.exit_code),
                "memory": meter.memory,
                "notes": meter.notes,
            }
        )
    )
    return int(outcome.exit_code)


if __name__ == "__main__":
    raise SystemExit(main())
