"""Thousands in flight: what an actor pays for episodes that wait.

    python -m benchmarks.inflight [--actors 4] [--wide 4000 8.0] [--narrow 250 0.5] [--seconds 60] [--mock-command COMMAND] [--json FILE]

Two runs of the same calls a second (episodes in flight over the model's latency), looked at while they are steady: CPU of the actor
processes for each step, their memory, and the connections that the servers see open beside the requests they have. A step is one model
answer; the time is over model answers too, so that neither start nor end of a run counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.experiment import Figure, table, write_experiment
from benchmarks.live import LiveRun, limited, live_run
from benchmarks.processes import cpu_seconds, uss_bytes
from benchmarks.servers import Servers, load_average

CPU_RATIO_MOST = 1.3
CONNECTIONS_SPARE = 0.05
USS_BASE_MB = 90.0
USS_EPISODE_MB = 0.2
_START_S = 300.0
_MB = 1e6


def _open_beside_requests(stats: dict[str, Any]) -> tuple[int, int]:
    """-> (connections, requests in flight), without the connection that asked."""
    model, env = stats["model"], stats["env"]
    connections = stats["connections"] if "connections" in stats else model["connections"] + env["connections"]
    return connections - 1, model["in_flight"] + model.get("queued", 0)


def one(options: argparse.Namespace, in_flight: int, latency_s: float) -> dict[str, Any]:
    """One run in its steady time."""
    calls_per_s = in_flight / latency_s
    # the first waves of episodes are over after 15 turns: until then all have the same age
    settle_s = max(options.settle, options.settle_turns * latency_s)
    episodes = int(in_flight + calls_per_s * (settle_s + options.seconds + 60.0) / 3.0)
    with (
        tempfile.TemporaryDirectory() as temporary,
        limited(options.mock_command, in_flight + in_flight // 8, model_latency=f"mean:{latency_s},{options.spread}") as fresh,
    ):
        directory = Path(temporary)
        config = write_experiment(directory, fresh, episodes=episodes, concurrency=in_flight, **{"actors": options.actors, "grace_s": 0})
        with live_run(config, directory / "run") as run:
            run.wait_for(lambda: True if run.status().get("in_flight", 0) >= 0.95 * in_flight else None, _START_S)
            time.sleep(settle_s)
            return {"in_flight": in_flight, "latency_s": latency_s, **_look(options, run, fresh), "load": load_average()}


def _look(options: argparse.Namespace, run: LiveRun, fresh: Servers) -> dict[str, Any]:
    actors = {a["id"]: psutil.Process(a["pid"]) for a in run.status()["actors"]}
    before, cpu_before = fresh.stats(), {name: cpu_seconds([p]) for name, p in actors.items()}
    began = time.monotonic()
    over: list[float] = []
    seen: list[tuple[int, int]] = []
    while time.monotonic() - began < options.seconds:
        time.sleep(1.0)
        connections, requests = _open_beside_requests(fresh.stats())
        seen.append((connections, requests))
        over.append(connections / max(1, requests) - 1.0)
    after, cpu_after = fresh.stats(), {name: cpu_seconds([p]) for name, p in actors.items()}
    wall = time.monotonic() - began
    running = {a["id"]: a["in_flight"] for a in run.status()["actors"]}
    steps = after["model"]["ok"] - before["model"]["ok"]
    cpu = sum(cpu_after[name] - cpu_before[name] for name in actors)
    memory: dict[str, dict[str, float]] = {}
    for name, process in actors.items():
        with contextlib.suppress(psutil.Error):
            uss = uss_bytes(process.pid) / _MB
            memory[name] = {"uss_mb": uss, "episodes": running[name], "limit_mb": USS_BASE_MB + USS_EPISODE_MB * running[name]}
    return {
        "steps_per_s": steps / wall,
        "cpu_ms_per_step": cpu / max(1, steps) * 1e3,
        "connections_over_requests": statistics.median(over),
        "connections_over_requests_most": max(over),
        "seen": seen,
        "memory": memory,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The narrow run, the wide one, and their ratio."""
    narrow, wide = (one(options, int(n), float(s)) for n, s in (options.narrow, options.wide))
    ratio = wide["cpu_ms_per_step"] / narrow["cpu_ms_per_step"]
    fits = all(m["uss_mb"] <= m["limit_mb"] for m in wide["memory"].values())
    return {
        "narrow": narrow,
        "wide": wide,
        "cpu_ratio": ratio,
        "within_limits": ratio <= CPU_RATIO_MOST and wide["connections_over_requests"] <= CONNECTIONS_SPARE and fits,
    }


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
    narrow, wide = result["narrow"], result["wide"]
    most = max(wide["memory"].values(), key=lambda m: float(m["uss_mb"]) - float(m["limit_mb"]))
    cpu = (f"{wide['cpu_ms_per_step']:.3f}", f"{narrow['cpu_ms_per_step']:.3f}", f"{result['cpu_ratio']:.2f}")
    name = f"inflight: {wide['in_flight']} beside {narrow['in_flight']}"
    return [
        Figure(f"{name}: actor CPU, ms a step (load {narrow['load']:.1f} {wide['load']:.1f})", *cpu, f"{CPU_RATIO_MOST}"),
        Figure(f"{name}: connections over requests", f"{wide['connections_over_requests']:+.1%}", "", "", f"+{CONNECTIONS_SPARE:.0%}"),
        Figure(f"{name}: USS of an actor, MB", f"{most['uss_mb']:.0f}", "", "", f"{most['limit_mb']:.0f}"),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--wide", nargs=2, default=("4000", "8.0"), metavar=("EPISODES", "SECONDS"))
    parser.add_argument("--narrow", nargs=2, default=("250", "0.5"), metavar=("EPISODES", "SECONDS"))
    parser.add_argument("--spread", type=float, default=0.25, help="sigma of the latency: with none all episodes call in step")
    parser.add_argument("--seconds", type=float, default=60.0, help="steady time that is looked at")
    parser.add_argument("--settle", type=float, default=20.0, help="least time before it")
    parser.add_argument("--settle-turns", type=float, default=7.0, help="and at least that many turns of the model")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--mock-command", default=None, help="start this server in place of the demo; it gets --model-latency and the like")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    options = parser.parse_args()
    result = measure(options)
    if options.json is not None:
        options.json.write_text(json.dumps(result))
    print(show(result))
    return 0 if result["within_limits"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
