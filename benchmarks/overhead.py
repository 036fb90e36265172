"""What the engine costs over bare HTTP: the same requests, sent by the engine and by ``benchmarks.floor``, in alternating pairs.

Latency 0, so that nothing but the client's own work is measured. Ratios of medians: CPU a step over all processes (driver, Ray's own,
actor) and wall from the first dispatch to the last durable trace. Ray's own share is what a run costs beyond the same jobs played by the
runtime alone (``benchmarks.runtime_only``): driver, GCS, raylet, agents and monitors whole, and what the actor needs more than the runtime.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.experiment import Figure, in_fresh_process, table, write_experiment
from benchmarks.servers import load_average, servers

CPU_LIMIT = 1.6
WALL_LIMIT = 1.8
RAY_LIMIT_MS = 1.5
"""Of an episode."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All pairs. Raises RuntimeError when a replay did not send what its run sent."""
    pairs: list[dict[str, Any]] = []
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            load = load_average()
            with servers(options.mock_command, options.concurrency) as fresh:
                config = write_experiment(directory, fresh, episodes=options.episodes, concurrency=options.concurrency)
                engine = in_fresh_process("benchmarks.engine_run", config, directory / "run")
                sent = fresh.request_bytes()
            with servers(options.mock_command, options.concurrency) as fresh:
                floor = in_fresh_process(
                    "benchmarks.floor", directory / "run", fresh.shop, fresh.model, "--concurrency", options.concurrency
                )
                replayed = fresh.request_bytes()
            with servers(options.mock_command, options.concurrency) as fresh:
                config = write_experiment(directory, fresh, episodes=options.episodes, concurrency=options.concurrency)
                runtime = in_fresh_process("benchmarks.runtime_only", config, "--concurrency", options.concurrency)
        if sent != replayed:
            raise RuntimeError(f"the run sent {sent} bytes of model requests, its replay {replayed}: they cannot be compared")
        if runtime["steps"] != engine["steps"]:
            raise RuntimeError(f"the run had {engine['steps']} steps, the runtime alone {runtime['steps']}: they cannot be compared")
        pairs.append({"engine": engine, "floor": floor, "runtime": runtime, "model_request_bytes": sent, "load": load})
    engine_cpu, floor_cpu = _per_step(pairs, "engine", "cpu_s"), _per_step(pairs, "floor", "cpu_s")
    engine_wall, floor_wall = _per_step(pairs, "engine", "wall_s"), _per_step(pairs, "floor", "wall_s")
    ray_ms = 1e3 * statistics.median((p["engine"]["cpu_s"] - p["runtime"]["cpu_s"]) / p["engine"]["episodes"] for p in pairs)
    result = {
        "pairs": pairs,
        "engine_cpu_ms_per_step": engine_cpu,
        "floor_cpu_ms_per_step": floor_cpu,
        "cpu_ratio": engine_cpu / floor_cpu,
        "engine_wall_ms_per_step": engine_wall,
        "floor_wall_ms_per_step": floor_wall,
        "wall_ratio": engine_wall / floor_wall,
        "ray_ms_per_episode": ray_ms,
    }
    return {**result, "within_limits": all(figure.within for figure in figures(result))}


def _per_step(pairs: list[dict[str, Any]], side: str, figure: str) -> float:
    """Median in milliseconds."""
    per_step: list[float] = [pair[side][figure] / pair[side]["steps"] for pair in pairs]
    return 1e3 * statistics.median(per_step)


def show(result: dict[str, Any]) -> str:
    rows = [
        ("overhead", "engine", "floor", "ratio", "limit"),
        _row("CPU ms a step", result, "cpu", CPU_LIMIT),
        _row("wall ms a step", result, "wall", WALL_LIMIT),
        ("of it Ray and driver, CPU ms an episode", f"{result['ray_ms_per_episode']:.2f}", "", "", f"{RAY_LIMIT_MS}"),
    ]
    notes = []
    for n, pair in enumerate(result["pairs"], 1):
        engine, floor = pair["engine"], pair["floor"]
        share = ", ".join(
            f"{name} {used:.2f}" for name, used in sorted(engine["cpu_by_process"].items(), key=lambda x: -x[1]) if used >= 0.01
        )
        notes.append(
            f"pair {n}: load {pair['load']:.1f}, {engine['steps']} steps, CPU {engine['cpu_s']:.2f} s ({share}) / {floor['cpu_s']:.2f} s, "
            f"runtime alone {pair['runtime']['cpu_s']:.2f} s, wall {engine['wall_s']:.2f} / {floor['wall_s']:.2f} s"
        )
    return "\n".join([table(rows), *notes])


def figures(result: dict[str, Any]) -> list[Figure]:
    ray_ms = result["ray_ms_per_episode"]
    return [
        Figure(*_row("overhead: CPU ms a step", result, "cpu", CPU_LIMIT), result["cpu_ratio"] <= CPU_LIMIT),
        Figure(*_row("overhead: wall ms a step", result, "wall", WALL_LIMIT), result["wall_ratio"] <= WALL_LIMIT),
        Figure("overhead: Ray's own share, CPU ms an episode", f"{ray_ms:.2f}", "", "", f"{RAY_LIMIT_MS}", ray_ms <= RAY_LIMIT_MS),
    ]


def _row(name: str, result: dict[str, Any], kind: str, limit: float) -> tuple[str, str, str, str, str]:
    engine, floor = result[f"engine_{kind}_ms_per_step"], result[f"floor_{kind}_ms_per_step"]
    return (name, f"{engine:.3f}", f"{floor:.3f}", f"{engine / floor:.2f}", f"{limit:.1f} ×")
