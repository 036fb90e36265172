"""Whether memory stays flat: one run of 10,000 episodes at latency 0, looked at after 1,000 and after 10,000 of them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.experiment import Figure, in_fresh_process, table, write_experiment
from benchmarks.servers import servers

DRIVER_LIMIT_MB = 30.0
ACTOR_LIMIT_MB = 20.0
_MB = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory-episodes", type=int, default=10_000, metavar="N", help="the last look; the first is after a tenth")
    parser.add_argument("--memory-concurrency", type=int, default=64, metavar="N")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Growth between the two looks, both while episodes are in flight."""
    last, concurrency = options.memory_episodes, options.memory_concurrency
    first = last // 10
    with tempfile.TemporaryDirectory() as temporary, servers(options.mock_command, concurrency) as fresh:
        directory = Path(temporary)
        # a tenth more, so that at the last look the actor is still full of work
        config = write_experiment(directory, fresh, episodes=last + last // 10, concurrency=concurrency)
        run = in_fresh_process("benchmarks.engine_run", config, directory / "run", "--memory-every", first)
    looks = run["memory"]
    early, late = (next((look for look in looks if look["done"] >= done), None) for done in (first, last))
    if early is None or late is None:  # the status comes once a second
        raise RuntimeError(f"the run was over before a look at {first} and one at {last} done: give more --memory-episodes")
    driver = (late["driver_rss"] - early["driver_rss"]) / _MB
    actors = {name: (late["actors_uss"][name] - size) / _MB for name, size in early["actors_uss"].items()}
    return {
        "looks": looks,
        "early": early,
        "late": late,
        "driver_growth_mb": driver,
        "actor_growth_mb": max(actors.values()),
        "within_limits": driver < DRIVER_LIMIT_MB and max(actors.values()) < ACTOR_LIMIT_MB,
    }


def show(result: dict[str, Any]) -> str:
    early, late = result["early"], result["late"]
    at = [f"at {look['done']} done, MB" for look in (early, late)]
    sizes = [(look["driver_rss"] / _MB, max(look["actors_uss"].values()) / _MB) for look in (early, late)]
    rows = [("memory", at[0], at[1], "growth, MB", "limit")]
    for name, k, growth, limit in (
        ("driver, resident", 0, result["driver_growth_mb"], DRIVER_LIMIT_MB),
        ("actor, unique", 1, result["actor_growth_mb"], ACTOR_LIMIT_MB),
    ):
        rows.append((name, f"{sizes[0][k]:.1f}", f"{sizes[1][k]:.1f}", f"{growth:+.1f}", f"{limit:.0f}"))
    return table(rows)


def figures(result: dict[str, Any]) -> list[Figure]:
    early, late = result["early"], result["late"]
    first, last = early["driver_rss"] / _MB, late["driver_rss"] / _MB
    uss = [max(look["actors_uss"].values()) / _MB for look in (early, late)]
    driver, actor = result["driver_growth_mb"], result["actor_growth_mb"]
    return [
        Figure("memory: driver, MB", f"{last:.0f}", f"{first:.0f}", f"{driver:+.1f}", f"+{DRIVER_LIMIT_MB:.0f}", driver < DRIVER_LIMIT_MB),
        Figure("memory: actor, MB", f"{uss[1]:.0f}", f"{uss[0]:.0f}", f"{actor:+.1f}", f"+{ACTOR_LIMIT_MB:.0f}", actor < ACTOR_LIMIT_MB),
    ]
