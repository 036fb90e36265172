"""A long run on servers that fail all the time: memory stays flat, loops stay prompt, and every count is the same on both sides.

    python -m benchmarks.soak [--soak-episodes 20000] [--soak-concurrency 128] [--mock-command COMMAND] [--json FILE]

A share of model calls is refused, broken, cut short or left hanging (for longer than ``model_timeout_s``). Once a second the run's status
gives how late the loops of driver and actors ran in that second; the 99th percentile is over those seconds, each with its worst moment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks import alone
from benchmarks.experiment import Figure, table, write_experiment
from benchmarks.live import LiveRun, limited, live_run
from benchmarks.processes import rss_bytes
from benchmarks.servers import Servers, load_average
from rayeval.schemas import JsonObject

WALL_MOST_S = 1200.0
GROWTH_MOST_MB = 50.0
LAG_MOST_S = 0.25
MODEL_TIMEOUT_S = 2.0
FAULTS = {
    "fault_429": 0.05,
    "fault_500": 0.05,
    "fault_malformed": 0.02,
    "fault_length": 0.02,
    "fault_hang": 0.01,
    "hang_s": 30,
}
_LATENCY = "mean:0.2,0.5"
"""So that the engine has waiting conversations, and none of them comes near the time-out by itself."""
_WARM_EPISODES = 1000
_MB = 1e6


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One run. Raises RuntimeError when it ends before all episodes have ended."""
    load = load_average()
    with (
        tempfile.TemporaryDirectory() as temporary,
        limited(options.mock_command, options.soak_concurrency, model_latency=_LATENCY, **FAULTS) as fresh,
    ):
        directory = Path(temporary)
        execution = {"actors": options.soak_actors, "model_timeout_s": MODEL_TIMEOUT_S, "max_failed": "100%"}
        config = write_experiment(directory, fresh, episodes=options.soak_episodes, concurrency=options.soak_concurrency, **execution)
        with live_run(config, directory / "run") as run:
            looks = _look(run)
            run.wait_for_end(120.0)
        summary = json.loads((directory / "run" / "summary.json").read_text())
        counts = _counts(summary, fresh, bare=options.mock_command is not None)
    warm = next((look for look in looks if look["done"] >= _WARM_EPISODES), looks[0])
    growth = (max(look["driver_rss"] for look in looks if look["done"] >= warm["done"]) - warm["driver_rss"]) / _MB
    lags = {who: percentile([look[who] for look in looks], 0.99) for who in ("driver_lag_s", "actor_lag_s")}
    wall = looks[-1]["at"]
    differing = {name: pair for name, pair in counts.items() if pair[0] != pair[1]}
    result = {
        "episodes": options.soak_episodes,
        "completed": summary["counts"]["completed"],
        "failed": summary["counts"]["failed"],
        "failed_by_kind": summary["failed_by_kind"],
        "wall_s": wall,
        "driver_growth_mb": growth,
        "driver_rss_mb": [warm["driver_rss"] / _MB, looks[-1]["driver_rss"] / _MB],
        **lags,
        "lag_most_s": {who: max(look[who] for look in looks) for who in lags},
        "counts": counts,
        "differing": differing,
        "load": [load, load_average()],
        "looks": looks,
    }
    return {**result, "within_limits": all(figure.within for figure in figures(result))}


def _look(run: LiveRun) -> list[dict[str, Any]]:
    """A look a second from the first finished episode to the last one."""
    looks: list[dict[str, Any]] = []
    began = time.monotonic()
    seen: str | None = None
    run.wait_for(lambda: run.status().get("in_flight") or None, 180.0)
    while True:
        status = run.status()
        if status.get("updated_at") != seen:
            seen = status["updated_at"]
            with contextlib.suppress(psutil.Error):
                looks.append(
                    {
                        "at": time.monotonic() - began,
                        "done": status["done"] + status["failed"],
                        "driver_rss": rss_bytes(run.pid),
                        "driver_lag_s": status["driver_lag_s"],
                        "actor_lag_s": max((actor["lag_s"] for actor in status["actors"]), default=0.0),
                    }
                )
        if status["done"] + status["failed"] >= status["planned"] or not run.alive:
            return looks
        time.sleep(0.25)


def _counts(summary: JsonObject, servers: Servers, bare: bool) -> dict[str, tuple[int, int]]:
    """What the run says and what the servers say, by name. Without ``bare`` servers, of which only the faults go wrong, broken answers are
    left out: the demo's shoppers give some of their own."""
    stats = servers.stats()
    model, env = stats["model"], stats["env"]
    attempts = summary["attempts"]
    retries = attempts["model_retries"]
    broken = {
        "protocol errors": (attempts["protocol_errors"], model.get("fault_malformed", 0)),
        "answers cut at their length": (attempts["generation_length"], model.get("fault_length", 0)),
    }
    return {
        **(broken if bare else {}),
        "retries after 429": (retries.get("status_429", 0), model.get("fault_429", 0)),
        "retries after 500": (retries.get("status_500", 0), model.get("fault_500", 0)),
        "calls left by their time-out": (retries.get("timeout", 0), model.get("client_disconnects", 0)),
        "answers": (attempts["model_steps"], model["ok"]),
        "releases, resets": (env.get("release_one", 0), env["reset"]),
        "leases held": (env["leases_held"], 0),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(result: dict[str, Any]) -> str:
    rows = [
        ("soak", "measured", "limit"),
        ("episodes", f"{result['completed']} completed, {result['failed']} failed", str(result["episodes"])),
        ("wall, s", f"{result['wall_s']:.0f}", f"{WALL_MOST_S:.0f}"),
        (
            f"driver, resident, MB from {_WARM_EPISODES} episodes on",
            f"{result['driver_growth_mb']:+.1f} ({' -> '.join(f'{mb:.0f}' for mb in result['driver_rss_mb'])})",
            f"+{GROWTH_MOST_MB:.0f}",
        ),
        *(
            (
                f"loop lag p99, {who}, ms",
                f"{result[name] * 1e3:.0f}, most {result['lag_most_s'][name] * 1e3:.0f}",
                f"{LAG_MOST_S * 1e3:.0f}",
            )
            for who, name in (("driver", "driver_lag_s"), ("actors", "actor_lag_s"))
        ),
        *((name, str(ours), str(theirs)) for name, (ours, theirs) in result["counts"].items()),
        ("load average", ", ".join(f"{load:.1f}" for load in result["load"]), ""),
    ]
    return table(rows)


def figures(result: dict[str, Any]) -> list[Figure]:
    first, last = (f"{mb:.0f}" for mb in result["driver_rss_mb"])
    growth, ended = result["driver_growth_mb"], result["completed"] + result["failed"]
    lags = ((who, result[name]) for who, name in (("driver", "driver_lag_s"), ("actors", "actor_lag_s")))
    return [
        Figure("soak: episodes that ended", str(ended), str(result["episodes"]), "", "all", ended == result["episodes"]),
        Figure("soak: wall, s", f"{result['wall_s']:.0f}", "", "", f"{WALL_MOST_S:.0f}", result["wall_s"] < WALL_MOST_S),
        Figure("soak: driver, MB", last, first, f"{growth:+.1f}", f"+{GROWTH_MOST_MB:.0f}", growth <= GROWTH_MOST_MB),
        *(
            Figure(f"soak: loop lag p99, {who}, ms", f"{lag * 1e3:.0f}", "", "", f"{LAG_MOST_S * 1e3:.0f}", lag < LAG_MOST_S)
            for who, lag in lags
        ),
        Figure("soak: counts that differ from the servers'", str(len(result["differing"])), "", "", "0", not result["differing"]),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--soak-episodes", type=int, default=20_000, metavar="N")
    parser.add_argument("--soak-concurrency", type=int, default=128, metavar="N")
    parser.add_argument("--soak-actors", type=int, default=2, metavar="N")


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
