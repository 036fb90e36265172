"""A run looked at while it is steady: steps a second, CPU a step, memory of its actors, connections.

A step is one model answer, by the servers' count, and the time is the time between two looks at that count: neither the start nor the end
of the run is in any figure.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.experiment import write_experiment
from benchmarks.live import LiveRun, limited, live_run
from benchmarks.processes import cpu_by_name, cpu_seconds, family, uss_bytes
from benchmarks.servers import Servers, load_average

_START_S = 300.0
_SPARE_S = 60.0
"""Work beyond the time that is looked at, so that places never stay empty in it."""
_LEAST_TURNS = 3.0
"""Of an episode: how many episodes a time can use up at most."""
_MB = 1e6


def steady(
    command: str | None, *, actors: int, in_flight: int, latency_s: float, spread: float, settle_s: float, seconds: float
) -> dict[str, Any]:
    """One run with so many episodes in flight over all actors, looked at for ``seconds`` once it has run ``settle_s`` with all of them.

    ``spread`` is the sigma of the lognormal latency, whose mean is ``latency_s``; with none all episodes call in step.
    """
    calls_per_s = in_flight / latency_s
    episodes = int(in_flight + calls_per_s * (settle_s + seconds + _SPARE_S) / _LEAST_TURNS)
    with (
        tempfile.TemporaryDirectory() as temporary,
        limited(command, in_flight + in_flight // 8, model_latency=f"mean:{latency_s},{spread}") as fresh,
    ):
        directory = Path(temporary)
        config = write_experiment(directory, fresh, episodes=episodes, concurrency=in_flight, actors=actors, grace_s=0)
        with live_run(config, directory / "run") as run:
            run.wait_for(lambda: True if run.status().get("in_flight", 0) >= 0.95 * in_flight else None, _START_S)
            time.sleep(settle_s)
            return {"actors": actors, "in_flight": in_flight, "latency_s": latency_s, **_look(run, fresh, seconds), "load": load_average()}


def _look(run: LiveRun, fresh: Servers, seconds: float) -> dict[str, Any]:
    actors = {a["id"]: psutil.Process(a["pid"]) for a in run.status()["actors"]}
    everything = family(run.pid)
    before, cpu_before, all_before = fresh.stats(), _cpu(actors), cpu_by_name(everything)
    began = time.monotonic()
    seen: list[tuple[int, int]] = []
    while time.monotonic() - began < seconds:
        time.sleep(1.0)
        seen.append(open_beside_requests(fresh.stats()))
    after, cpu_after, all_after = fresh.stats(), _cpu(actors), cpu_by_name(everything)
    wall = time.monotonic() - began
    running = {a["id"]: a["in_flight"] for a in run.status()["actors"]}
    steps = max(1, after["model"]["ok"] - before["model"]["ok"])
    over = [connections / max(1, requests) - 1.0 for connections, requests in seen]
    memory: dict[str, dict[str, float]] = {}
    for name, process in actors.items():
        with contextlib.suppress(psutil.Error):
            memory[name] = {"uss_mb": uss_bytes(process.pid) / _MB, "episodes": running[name]}
    by_process = {name: (used - all_before.get(name, 0.0)) / steps * 1e3 for name, used in all_after.items()}
    return {
        "steps_per_s": steps / wall,
        "cpu_ms_per_step": sum(cpu_after[name] - cpu_before[name] for name in actors) / steps * 1e3,
        "all_cpu_ms_per_step": sum(by_process.values()),
        "cpu_ms_by_process": by_process,
        "connections_over_requests": statistics.median(over),
        "connections_over_requests_most": max(over),
        "seen": seen,
        "memory": memory,
    }


def _cpu(actors: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: cpu_seconds([process]) for name, process in actors.items()}


def open_beside_requests(stats: dict[str, Any]) -> tuple[int, int]:
    """-> (connections, requests in flight), without the connection that asked."""
    model, env = stats["model"], stats["env"]
    connections = stats["connections"] if "connections" in stats else model["connections"] + env["connections"]
    return connections - 1, model["in_flight"] + model.get("queued", 0)
