"""Thousands in flight: what an actor pays for episodes that wait.

    python -m benchmarks.inflight [--actors 4] [--wide 4000 8.0] [--narrow 250 0.5] [--seconds 60] [--mock-command COMMAND] [--json FILE]

Two runs of the same calls a second (episodes in flight over the model's latency), looked at while they are steady: CPU of the actor
processes for each step, their memory, and the connections that the servers see open beside the requests they have.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks import alone
from benchmarks.experiment import Figure, table
from benchmarks.steady import steady

CPU_RATIO_MOST = 1.3
CONNECTIONS_SPARE = 0.05
USS_BASE_MB = 90.0
USS_EPISODE_MB = 0.2


def one(options: argparse.Namespace, in_flight: int, latency_s: float) -> dict[str, Any]:
    """One run in its steady time; each actor's memory with its limit."""
    # the first waves of episodes are over after 15 turns: until then all have the same age
    settle_s = max(options.settle, options.settle_turns * latency_s)
    seen = steady(
        options.mock_command,
        actors=options.actors,
        in_flight=in_flight,
        latency_s=latency_s,
        spread=options.spread,
        settle_s=settle_s,
        seconds=options.seconds,
    )
    for memory in seen["memory"].values():
        memory["limit_mb"] = USS_BASE_MB + USS_EPISODE_MB * memory["episodes"]
    return seen


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The narrow run, the wide one, and their ratio."""
    narrow, wide = (one(options, int(n), float(s)) for n, s in (options.narrow, options.wide))
    result = {"narrow": narrow, "wide": wide, "cpu_ratio": wide["cpu_ms_per_step"] / narrow["cpu_ms_per_step"]}
    return {**result, "within_limits": all(figure.within for figure in figures(result))}


def show(result: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("in flight", "latency", "steps/s", "CPU ms a step", "connections over requests", "USS of an actor, MB", "load")
    ]
    for run in (result["narrow"], result["wide"]):
        most = max(run["memory"].values(), key=lambda m: float(m["uss_mb"]))
        rows.append(
            (
                str(run["in_flight"]),
                f"{run['latency_s']:g} s",
                f"{run['steps_per_s']:.0f}",
                f"{run['cpu_ms_per_step']:.3f}",
                f"{run['connections_over_requests']:+.1%}, most {run['connections_over_requests_most']:+.1%}",
                f"{most['uss_mb']:.0f} with {most['episodes']:.0f} episodes (limit {most['limit_mb']:.0f})",
                f"{run['load']:.1f}",
            )
        )
    return f"{table(rows)}\nCPU a step, wide over narrow: {result['cpu_ratio']:.2f} (limit {CPU_RATIO_MOST})"


def figures(result: dict[str, Any]) -> list[Figure]:
    narrow, wide, ratio = result["narrow"], result["wide"], result["cpu_ratio"]
    most = max(wide["memory"].values(), key=lambda m: float(m["uss_mb"]) - float(m["limit_mb"]))
    over = wide["connections_over_requests"]
    cpu = (f"{wide['cpu_ms_per_step']:.3f}", f"{narrow['cpu_ms_per_step']:.3f}", f"{ratio:.2f}")
    name = f"inflight: {wide['in_flight']} beside {narrow['in_flight']}"
    return [
        Figure(f"{name}: actor CPU, ms a step", *cpu, f"{CPU_RATIO_MOST} ×", ratio <= CPU_RATIO_MOST),
        Figure(f"{name}: connections over requests", f"{over:+.1%}", "", "", f"+{CONNECTIONS_SPARE:.0%}", over <= CONNECTIONS_SPARE),
        Figure(
            f"{name}: USS of an actor, MB", f"{most['uss_mb']:.0f}", "", "", f"{most['limit_mb']:.0f}", most["uss_mb"] <= most["limit_mb"]
        ),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--wide", nargs=2, default=("4000", "8.0"), metavar=("EPISODES", "SECONDS"))
    parser.add_argument("--narrow", nargs=2, default=("250", "0.5"), metavar=("EPISODES", "SECONDS"))
    parser.add_argument("--spread", type=float, default=0.25, help="sigma of the latency: with none all episodes call in step")
    parser.add_argument("--seconds", type=float, default=60.0, help="steady time that is looked at")
    parser.add_argument("--settle", type=float, default=20.0, help="least time before it")
    parser.add_argument("--settle-turns", type=float, default=7.0, help="and at least that many turns of the model")


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
