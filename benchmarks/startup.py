"""How long ``rayeval --help`` takes, beside an interpreter that does nothing."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.experiment import REPOSITORY, Figure, table

LIMIT_S = 0.4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--starts", type=int, default=7, metavar="N")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians in seconds, alternating, after one of each that warms the caches."""
    commands = {"help": [sys.executable, "-m", "rayeval", "--help"], "floor": [sys.executable, "-c", "pass"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.starts + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, timeout=60)
            seconds[name].append(time.perf_counter() - began)
    help_s, floor_s = (statistics.median(taken[1:]) for taken in seconds.values())
    return {"help_s": help_s, "floor_s": floor_s, "ratio": help_s / floor_s, "within_limits": help_s < LIMIT_S}


def show(result: dict[str, Any]) -> str:
    return table(
        [
            ("start-up", "rayeval --help, s", "python -c pass, s", "ratio", "limit, s"),
            ("", f"{result['help_s']:.3f}", f"{result['floor_s']:.3f}", f"{result['ratio']:.1f}", f"{LIMIT_S:.1f}"),
        ]
    )


def figures(result: dict[str, Any]) -> list[Figure]:
    seconds = (f"{result['help_s']:.3f}", f"{result['floor_s']:.3f}", f"{result['ratio']:.1f}")
    return [Figure("startup: rayeval --help, s", *seconds, f"{LIMIT_S:.1f}", result["within_limits"])]
