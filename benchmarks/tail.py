"""What the engine adds to the wall of a heavy tail: its own run, replayed over the raw client by one process, in alternating pairs.

    python -m benchmarks.tail [--wave 64 320 0.5 1.05] ... [--pairs 3] [--mock-command COMMAND] [--json FILE]

The model's latency is lognormal with sigma 1 and a function of a request's seed and turn alone, so that run and replay wait for the same
answers. A wave names the episodes in flight, all episodes, the mean latency in seconds, and how much longer than its replay the run may
take. The ideal wall is simulated: the model latencies that the replay saw, each place taking its next call and episode at once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import alone
from benchmarks.experiment import Figure, in_fresh_process, table, write_experiment
from benchmarks.live import limited
from benchmarks.servers import load_average

WAVES = (("64", "320", "0.5", "1.05"), ("256", "1280", "0.5", "1.10"), ("1000", "3000", "2", "1.15"))
"""Episodes in flight, episodes, mean latency in seconds, limit of the ratio of walls."""
SIGMA = 1.0
PAIRS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wave", nargs=4, action="append", metavar=("IN_FLIGHT", "EPISODES", "MEAN_S", "LIMIT"), help="repeatable; default: the three"
    )
    parser.add_argument("--tail-pairs", type=int, default=None, metavar="N", help=f"default: {PAIRS}")
    parser.add_argument("--tail-actors", type=int, default=1, metavar="N")


def pair(options: argparse.Namespace, in_flight: int, episodes: int, mean_s: float) -> dict[str, Any]:
    """One run and its replay, on fresh servers each. Raises RuntimeError when the replay did not send what the run sent."""
    latency = f"mean:{mean_s:g},{SIGMA:g}"
    load = load_average()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        with limited(options.mock_command, in_flight, model_latency=latency) as fresh:
            config = write_experiment(directory, fresh, episodes=episodes, concurrency=in_flight, actors=options.tail_actors)
            engine = in_fresh_process("benchmarks.engine_run", config, directory / "run")
            sent = fresh.request_bytes()
        with limited(options.mock_command, in_flight, model_latency=latency) as fresh:
            floor = in_fresh_process(
                "benchmarks.floor", directory / "run", fresh.shop, fresh.model, "--concurrency", in_flight, "--client", "raw"
            )
            replayed = fresh.request_bytes()
    if sent != replayed:
        raise RuntimeError(f"the run sent {sent} bytes of model requests, its replay {replayed}: they cannot be compared")
    return {"engine": engine, "floor": floor, "ratio": engine["wall_s"] / floor["wall_s"], "load": load}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All waves; for each the pairs and the median of their ratios."""
    waves: list[dict[str, Any]] = []
    for in_flight, episodes, mean_s, limit in options.wave or WAVES:
        pairs = [pair(options, int(in_flight), int(episodes), float(mean_s)) for _ in range(options.tail_pairs or PAIRS)]
        ratio = statistics.median(p["ratio"] for p in pairs)
        waves.append(
            {
                "in_flight": int(in_flight),
                "episodes": int(episodes),
                "mean_s": float(mean_s),
                "limit": float(limit),
                "ratio": ratio,
                "pairs": pairs,
                "within_limits": ratio <= float(limit),
            }
        )
    return {"waves": waves, "within_limits": all(wave["within_limits"] for wave in waves)}


def show(result: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("tail: in flight", "episodes", "mean, s", "engine, s", "floor, s", "ideal, s", "ratios", "median", "limit", "load")
    ]
    for wave in result["waves"]:
        pairs = wave["pairs"]
        engine, floor, ideal = (
            statistics.median(p[side][figure] for p in pairs)
            for side, figure in (("engine", "wall_s"), ("floor", "wall_s"), ("floor", "ideal_wall_s"))
        )
        rows.append(
            (
                str(wave["in_flight"]),
                str(wave["episodes"]),
                f"{wave['mean_s']:g}",
                f"{engine:.2f}",
                f"{floor:.2f}",
                f"{ideal:.2f}",
                " ".join(f"{p['ratio']:.3f}" for p in pairs),
                f"{wave['ratio']:.3f}",
                f"{wave['limit']:.2f}",
                " ".join(f"{p['load']:.1f}" for p in pairs),
            )
        )
    return table(rows)


def figures(result: dict[str, Any]) -> list[Figure]:
    out: list[Figure] = []
    for wave in result["waves"]:
        ideal = statistics.median(p["floor"]["ideal_wall_s"] for p in wave["pairs"])
        engine, floor = (statistics.median(p[side]["wall_s"] for p in wave["pairs"]) for side in ("engine", "floor"))
        out.append(
            Figure(
                f"tail: {wave['in_flight']} in flight, wall, s (ideal {ideal:.1f})",
                f"{engine:.1f}",
                f"{floor:.1f}",
                f"{wave['ratio']:.3f}",
                f"{wave['limit']:.2f} ×",
                wave["within_limits"],
            )
        )
    return out


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
