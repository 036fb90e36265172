"""Steps a second beside other engines, on servers of one kind in one sitting.

    python -m benchmarks.peers --peer-command "python their_run.py" [--peer-command ...] [--peer-servers COMMAND] [--json FILE]

Tool schemas are static on both sides, so that every episode has as many steps as the servers allow. A peer's command gets ``--base-url``
(the model), ``--env-url``, ``--episodes`` and ``--concurrency``, and prints a JSON object with ``episodes`` (those that the environment
ended: less than all is an error), ``steps`` and ``wall_s`` as its last line. Imports and start-up are in neither wall; the time of the
whole process stands beside it. The engine runs before and after the peers, each time on a fresh server: the worse one counts.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import alone
from benchmarks.experiment import Figure, in_fresh_process, last_object, table, write_experiment
from benchmarks.servers import Servers, load_average, servers
from rayeval.exceptions import InputError

TIMES_LEAST = 8.0
_PEER_S = 900.0


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """One run of the engine."""
    load = load_average()
    with tempfile.TemporaryDirectory() as temporary, _servers(options) as fresh:
        directory = Path(temporary)
        config = write_experiment(directory, fresh, episodes=_episodes(options, fresh), concurrency=options.peer_concurrency)
        written = json.loads(config.read_text())
        written["runtime"] = {"tool_schema": "static"}
        config.write_text(json.dumps(written))
        began = time.monotonic()
        run = in_fresh_process("benchmarks.engine_run", config, directory / "run")
        whole_s = time.monotonic() - began
    return _row("rayeval", run["episodes"], run["steps"], run["wall_s"], whole_s, load)


def peer(options: argparse.Namespace, command: str) -> dict[str, Any]:
    """One run of another engine. Raises RuntimeError when it fails."""
    load = load_average()
    with _servers(options) as fresh:
        words = [*shlex.split(command), "--base-url", fresh.model, "--env-url", f"{fresh.shop}/api/shop_agent"]
        episodes = _episodes(options, fresh)
        words += ["--episodes", str(episodes), "--concurrency", str(options.peer_concurrency)]
        began = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PEER_S, check=False)
        whole_s = time.monotonic() - began
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    said = last_object(done.stdout)
    if said["episodes"] != episodes:
        raise RuntimeError(f"{command} ended {said['episodes']} of {episodes} episodes: it cannot be compared")
    name = " ".join(str(said[word]) for word in ("peer", "version") if word in said) or command
    return _row(name, said["episodes"], said["steps"], said["wall_s"], whole_s, load)


def _servers(options: argparse.Namespace) -> AbstractContextManager[Servers]:
    return servers(options.peer_servers or options.mock_command, options.peer_concurrency)


def _episodes(options: argparse.Namespace, fresh: Servers) -> int:
    """No more than the servers have tasks: a peer runs each once."""
    return min(int(options.peer_episodes), fresh.tasks)


def _row(name: str, episodes: int, steps: int, wall_s: float, whole_s: float, load: float) -> dict[str, Any]:
    row = {"name": name, "episodes": episodes, "steps": steps, "wall_s": wall_s, "whole_s": whole_s}
    return {**row, "steps_per_s": steps / wall_s, "load": load}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The engine, the peers, the engine. Raises InputError without a peer."""
    if not options.peer_command:
        raise InputError("--peer-command", None, "give at least one")
    first = ours(options)
    peers = [peer(options, command) for command in options.peer_command]
    last = ours(options)
    best = max(row["steps_per_s"] for row in peers)
    times = min(first["steps_per_s"], last["steps_per_s"]) / best
    return {"ours": [first, last], "peers": peers, "times": times, "within_limits": times >= TIMES_LEAST}


def show(result: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("peers", "episodes", "steps", "wall, s", "whole process, s", "steps/s", "load")]
    first, last = result["ours"]
    for row in (first, *result["peers"], last):
        figures = (f"{row['wall_s']:.2f}", f"{row['whole_s']:.1f}", f"{row['steps_per_s']:.1f}", f"{row['load']:.1f}")
        rows.append((row["name"], str(row["episodes"]), str(row["steps"]), *figures))
    return f"{table(rows)}\ntimes the best peer: {result['times']:.1f} (at least {TIMES_LEAST:g})"


def figures(result: dict[str, Any]) -> list[Figure]:
    best = max(result["peers"], key=lambda row: float(row["steps_per_s"]))
    worst = min(row["steps_per_s"] for row in result["ours"])
    ratio = f"{result['times']:.1f}"
    others = [(row["name"], row["steps_per_s"]) for row in result["peers"] if row is not best]
    return [
        Figure(
            f"peers: steps/s beside {best['name']}",
            f"{worst:.1f}",
            f"{best['steps_per_s']:.1f}",
            ratio,
            f"at least {TIMES_LEAST:g} ×",
            result["within_limits"],
        ),
        *(Figure(f"peers: steps/s beside {name}", f"{worst:.1f}", f"{rate:.1f}", f"{worst / rate:.1f}", "") for name, rate in others),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-command", action="append", default=[], metavar="COMMAND", help="runs another engine; repeatable")
    parser.add_argument("--peer-servers", default=None, metavar="COMMAND", help="servers for these alone, as --mock-command for all")
    parser.add_argument("--peer-episodes", type=int, default=96, metavar="N")
    parser.add_argument("--peer-concurrency", type=int, default=64, metavar="N")


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
