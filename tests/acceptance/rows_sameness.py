"""Load, and one hash whatever the size, the order and the faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory
from tests.acceptance.runs import (
    Bench,
    Driver,
    JsonObject,
    Recorder,
    actors_of,
    assert_exactly_once,
    canonical,
    lines_of,
    run_here,
    summary_of,
    when,
)
from tests.acceptance.servers import FAULTY, REFUSING, Servers, StartServers


def real_load(start: StartServers, root: Path, episodes: int = 1000) -> JsonObject:
    """Every episode completes; every reset is released once."""
    bench = Bench(root, episodes)
    with start(slots=64) as servers:
        driver = Driver(bench.config("load", servers))
        began = time.monotonic()
        assert driver.wait() == ExitCode.OK, driver.output
        wall = time.monotonic() - began
        assert_exactly_once(driver.run_dir, episodes)
        env = servers.stats()["env"]
        assert env["leases_held"] == 0
        assert env["reset"] == env["release_one"] == episodes
        return {"episodes": episodes, "wall_s": round(wall, 1), "peak_leases": env.get("peak_leases"), "interact": env["interact"]}


# ---- determinism ------------------------------------------------------------------------------------------------------------------


def determinism(start: StartServers, root: Path, episodes: int = 300, variants: Sequence[str] = (), on_ray: bool = True) -> JsonObject:
    """One canonical hash over sizes, a resume, refusals, several servers and a killed actor.

    ``variants``: names, default all; ``on_ray=False`` runs them in this process, which those of several actors cannot.
    """
    bench = Bench(root, episodes)
    show = not on_ray
    hashes: dict[str, str] = {}
    plain: dict[str, dict[str, Any]] = {
        "actors-1": {},
        "actors-2": {"execution.actors": 2},
        "actors-8": {"execution.actors": 8},
        "concurrency-1": {"execution.concurrency": 1},
        "concurrency-7": {"execution.concurrency": 7},
        "order-plan": {"execution.order": "plan"},
    }
    chosen = set(variants) or {*plain, "resume", "refusals", "two-servers", "actor-killed"}
    with start(slots=64, **FAULTY) as servers:
        for name, overrides in plain.items():
            if name in chosen or name == "actors-1":
                hashes[name] = _completed(bench, name, servers, episodes, overrides, show)
        if "resume" in chosen:
            hashes["resume"] = _resumed(bench, servers, episodes, show)
        if "two-servers" in chosen:
            with start(slots=64, **FAULTY) as second:
                overrides = {"execution.actors": 2 if on_ray else 1}
                hashes["two-servers"] = _completed(bench, "two-servers", [servers, second], episodes, overrides, show)
                assert second.count("env", "reset") > 0 and second.count("model", "requests") > 0, "the second pair was not used"
    if "refusals" in chosen:
        with start(slots=64, **FAULTY, **REFUSING) as servers:
            hashes["refusals"] = _completed(bench, "refusals", servers, episodes, {}, show)
    if "actor-killed" in chosen:
        with start(slots=64, env_latency="fixed:0.02", **FAULTY) as servers:
            hashes["actor-killed"] = _with_killed_actor(bench, servers, episodes)
    different = {name: h for name, h in hashes.items() if h != hashes["actors-1"]}
    assert not different, f"the canonical hash differs from actors-1 ({hashes['actors-1']}): {different}"
    shape = summary_of(bench.run_dir("actors-1"))["behavior"]
    assert shape["protocol_errors"] > 0, "no malformed answer was met: nothing is shown"
    return {"hash": hashes["actors-1"], "variants": sorted(hashes), "protocol_errors": shape["protocol_errors"]}


def _completed(bench: Bench, name: str, servers: Servers | Sequence[Servers], episodes: int, overrides: JsonObject, show: bool) -> str:
    for pair in [servers] if isinstance(servers, Servers) else servers:
        pair.reset()
    config = bench.config(name, servers, {"experiment.name": "same", "experiment.output_dir": f"runs/{name}", **overrides})
    outcome = run_here(config, show=show)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    run_dir = RunDirectory(outcome.run_dir)
    assert_exactly_once(run_dir, episodes)
    _keep(bench, name, run_dir)
    return canonical(run_dir)


def _keep(bench: Bench, name: str, run_dir: RunDirectory) -> None:
    """The runs of a row have one name, for the name is part of the plan; each lies in a place of its own."""
    place = bench.run_dir(name).path
    if place != run_dir.path and not (place / "summary.json").exists():
        (place / "summary.json").write_bytes((run_dir.path / "summary.json").read_bytes())


def _resumed(bench: Bench, servers: Servers, episodes: int, show: bool) -> str:
    """Half of a finished run's file, torn inside a line, run to the end again."""
    servers.reset()
    config = bench.config("resume", servers, {"experiment.name": "same", "experiment.output_dir": "runs/resume"})
    run_dir = RunDirectory(run_here(config, show=show).run_dir)
    with run_dir.traces.open("r+b") as file:
        file.truncate(run_dir.traces.stat().st_size // 2)
    done = lines_of(run_dir)
    display = Recorder()
    outcome = run_here(config, display=display, show=show)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert display.started["reused"] == done, (display.started, done)
    assert_exactly_once(run_dir, episodes)
    return canonical(run_dir)


def _with_killed_actor(bench: Bench, servers: Servers, episodes: int) -> str:
    config = bench.config(
        "actor-killed", servers, {"experiment.name": "same", "experiment.output_dir": "runs/actor-killed", "execution.actors": 2}
    )
    run_dir = RunDirectory(config.parent / "runs" / "actor-killed" / "same")
    killed: list[int] = []

    def strike() -> None:
        pids = actors_of(run_dir)
        os.kill(pids[0], signal.SIGKILL)
        killed.append(pids[0])

    with when(lambda: lines_of(run_dir) >= episodes // 3, strike):
        outcome = run_here(config)
    assert killed, "no actor was killed: the run was too fast"
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, episodes)
    assert summary_of(run_dir)["attempts"]["lost"] > 0
    return canonical(run_dir)
