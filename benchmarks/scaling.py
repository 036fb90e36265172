"""Whether twice the actors with twice the episodes in flight do twice the work, where waiting is what takes the time.

    python -m benchmarks.scaling [--scaling-actors 1 2 4] [--scaling-in-flight 64] [--scaling-latency 0.5] [--scaling-seconds 15]
                                 [--mock-command COMMAND] [--json FILE]

Each actor gets the same episodes in flight, and the model answers after half a second on average. The floor is that wait alone: episodes in
flight over the mean latency, which no client passes, because an episode has one call open. It asks for more than the raw client as
a floor would, since late answers of a busy server count against the engine; with so few steps a second they are few.
What the ratio shows is that nothing which all actors share (the queue, the driver, the leases, the exchanges) holds a place empty. It says
nothing about work bound by CPU: that takes more cores than servers and actors keep busy here.
CPU a step is that of all processes of the run. What Ray and the driver cost for nothing is shared by more steps, so it should fall: it may
not rise.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks import alone
from benchmarks.experiment import Figure, table
from benchmarks.steady import steady

OF_IDEAL_LEAST = 0.95
CPU_RATIO_MOST = 1.25
"""CPU a step differs so much between two equal runs on a machine with other work."""
SPREAD = 0.25
SETTLE_TURNS = 15.0
"""As many as the longest episodes have: after them the places are no longer of one age."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scaling-actors", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument("--scaling-in-flight", type=int, default=64, metavar="N", help="episodes in flight for each actor")
    parser.add_argument("--scaling-latency", type=float, default=0.5, metavar="S", help="mean latency of the model")
    parser.add_argument("--scaling-seconds", type=float, default=15.0, metavar="S", help="steady time that is looked at")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One run for each number of actors."""
    latency_s = options.scaling_latency
    runs = [
        steady(
            options.mock_command,
            actors=actors,
            in_flight=actors * options.scaling_in_flight,
            latency_s=latency_s,
            spread=SPREAD,
            settle_s=SETTLE_TURNS * latency_s,
            seconds=options.scaling_seconds,
        )
        for actors in options.scaling_actors
    ]
    return compared(runs)


def compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Each run beside its ideal and beside the first run."""
    first = runs[0]
    for run in runs:
        run["ideal_steps_per_s"] = run["in_flight"] / run["latency_s"]
        run["of_ideal"] = run["steps_per_s"] / run["ideal_steps_per_s"]
        run["times_first"] = run["steps_per_s"] / first["steps_per_s"]
        run["cpu_ratio"] = run["all_cpu_ms_per_step"] / first["all_cpu_ms_per_step"]
    result = {"runs": runs}
    return {**result, "within_limits": all(figure.within for figure in figures(result))}


def show(result: dict[str, Any]) -> str:
    head = ("scaling: actors", "in flight", "steps/s", "ideal", "of the ideal", "times the first", "CPU ms a step", "of it actors", "load")
    rows: list[tuple[str, ...]] = [head]
    for run in result["runs"]:
        rows.append(
            (
                str(run["actors"]),
                str(run["in_flight"]),
                f"{run['steps_per_s']:.1f}",
                f"{run['ideal_steps_per_s']:.1f}",
                f"{run['of_ideal']:.3f}",
                f"{run['times_first']:.2f}",
                f"{run['all_cpu_ms_per_step']:.2f}",
                f"{run['cpu_ms_per_step']:.2f}",
                f"{run['load']:.1f}",
            )
        )
    return f"{table(rows)}\nlimits: at least {OF_IDEAL_LEAST} of the ideal; CPU a step at most {CPU_RATIO_MOST} times the first"


def figures(result: dict[str, Any]) -> list[Figure]:
    first = result["runs"][0]["all_cpu_ms_per_step"]
    out: list[Figure] = []
    for run in result["runs"]:
        kept = run["of_ideal"] >= OF_IDEAL_LEAST
        name = f"scaling: {_actors(run['actors'])}, {run['in_flight']} in flight"
        speed = (f"{run['steps_per_s']:.1f}", f"{run['ideal_steps_per_s']:.1f}", f"{run['of_ideal']:.3f}")
        out.append(Figure(f"{name}, steps/s", *speed, f"at least {OF_IDEAL_LEAST} ×", kept))
    for run in result["runs"][1:]:
        name = f"scaling: {_actors(run['actors'])}, CPU of all processes, ms a step"
        kept = run["cpu_ratio"] <= CPU_RATIO_MOST
        cpu = (f"{run['all_cpu_ms_per_step']:.2f}", f"{first:.2f}", f"{run['cpu_ratio']:.2f}")
        out.append(Figure(name, *cpu, f"{CPU_RATIO_MOST} ×", kept))
    return out


def _actors(n: int) -> str:
    return f"{n} actor{'s' if n != 1 else ''}"


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
