"""How long after a death the work goes on.

    python -m benchmarks.recovery [--recovery-episodes 1200] [--recovery-starts 2] [--mock-command COMMAND] [--json FILE]

*An actor.* Two actors share 64 episodes at a model latency of 0.25 s on average. When a third of the run is done, the one with more
episodes gets SIGKILL. From the traces: how long until the last of its episodes has started again. From the servers' count of answers: how
long until they come at 90 % of the rate before. Twice: as it is, where the driver sees that the process is gone; and as between machines
(``--fence-by-time``), where it must wait until ``fence_s`` has passed. Beside both, in the same sitting, the same run undisturbed.

*The driver.* ``rayeval run`` gets SIGKILL, and nothing but it, when a third is done; the same command follows at once. From the start of
a process to its first durable episode (the first new receipt), beside the first start, which is the same without anything to recover. At
the end every episode must be there once, and those that were durable at the kill as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks import alone
from benchmarks.aftermath import Mark, again_s, back_s, missing_and_doubled, outlines, rate
from benchmarks.experiment import Figure, table, write_experiment
from benchmarks.live import LiveRun, limited, live_command, live_run
from benchmarks.processes import family
from benchmarks.servers import Servers, load_average
from rayeval.store import RunDirectory

ACTORS = 2
IN_FLIGHT = 64
LATENCY = "mean:0.25,0.25"
FENCE_S = 10.0
DIES_AT = 1 / 3
BACK = 0.9
BEFORE_S = 5.0
"""Time before the kill whose rate counts as the one before."""
AFTER_MOST_S = 10.0
"""From a kill to both, beyond ``fence_s`` where that is waited for."""
WALL_MOST = 1.25
WALL_MOST_FENCED = 1.5
"""Half of the places are empty for ``fence_s`` and a little, which is a quarter of the whole run."""
START_MOST = 1.5
_RUN_S = 300.0
_LOOK_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recovery-episodes", type=int, default=1200, metavar="N", help="of a run in which an actor dies")
    parser.add_argument("--recovery-starts", type=int, default=2, metavar="N", help="drivers that are killed, in runs of half the size")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All runs. Raises RuntimeError when one ends other than it must."""
    load = load_average()
    undisturbed = actor_run(options, None)
    killed = {name: actor_run(options, name) for name in ("seen", "fenced")}
    drivers = [driver_killed(options) for _ in range(options.recovery_starts)]
    for run in killed.values():
        run["ratio"] = run["wall_s"] / undisturbed["wall_s"]
    result = {
        "undisturbed": undisturbed,
        **killed,
        "drivers": drivers,
        **{name: statistics.median(d[name] for d in drivers) for name in ("first_s", "again_s")},
        "load": [load, load_average()],
    }
    return {**result, "within_limits": all(figure.within for figure in figures(result))}


# ---- an actor dies ----------------------------------------------------------------------------------------------------------------


def actor_run(options: argparse.Namespace, death: str | None) -> dict[str, Any]:
    """One run; ``death``: None, or "seen" (its pid says that it is gone), or "fenced" (time says so)."""
    episodes = options.recovery_episodes
    with _bench(options, episodes, fence_s=FENCE_S) as (config, fresh, directory):
        run_dir = RunDirectory(directory / "run")
        with live_run(config, run_dir.path, *(["--fence-by-time"] if death == "fenced" else [])) as run:
            marks, killed_at, victims = _watch(run, fresh, round(DIES_AT * episodes) if death else None)
            _ended(run)
            wall_s = run.result()["wall_s"]
        traces = list(outlines(run_dir))
    out = {"wall_s": wall_s, **missing_and_doubled(traces, episodes)}
    if killed_at is None:
        return out
    again = again_s(traces, killed_at)
    if not again:
        raise RuntimeError(f"no episode was lost with the actor that had {victims} in flight")
    before = rate(marks, killed_at - BEFORE_S, killed_at)
    return {
        **out,
        "lost": len(again),
        "again_s": max(again),
        "again_first_s": min(again),
        "steps_per_s_before": before,
        "back_s": back_s(marks, killed_at, BACK * before),
    }


def _watch(run: LiveRun, fresh: Servers, kill_at: int | None) -> tuple[list[Mark], float | None, int]:
    """Count answers until the run is over, and kill the fuller actor once ``kill_at`` episodes are done.
    -> the counts, the moment of the kill, the episodes of its victim."""
    marks: list[Mark] = []
    killed_at, victims = None, 0
    deadline = time.monotonic() + _RUN_S
    while run.alive:
        marks.append((time.time(), int(fresh.stats()["model"].get("ok", 0))))
        status = run.status()
        if status.get("planned") and status["done"] + status["failed"] >= status["planned"]:
            break
        if kill_at is not None and killed_at is None and status.get("done", 0) >= kill_at:
            victim = max(status["actors"], key=lambda actor: int(actor["in_flight"]))
            killed_at, victims = time.time(), victim["in_flight"]
            os.kill(victim["pid"], signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run was not over within {_RUN_S:g} s; status: {status}")
        time.sleep(_LOOK_S)
    return marks, killed_at, victims


# ---- the driver dies --------------------------------------------------------------------------------------------------------------


def driver_killed(options: argparse.Namespace) -> dict[str, Any]:
    """One run whose driver is killed, and the same command again."""
    episodes = options.recovery_episodes // 2
    with _bench(options, episodes) as (config, fresh, directory):
        run_dir = RunDirectory(directory / "runs" / "bench")
        command = ["rayeval", "run", str(config), "--display", "plain"]
        began = time.monotonic()
        with live_command(command, run_dir.path) as run:
            first_s = _first_receipt(run, run_dir, 0, began)
            run.wait_for(lambda: run.status().get("done", 0) >= DIES_AT * episodes or None, _RUN_S)
            counted, left = run.status()["done"], family(run.pid)
            run.kill()
        try:
            durable = {trace["episode_id"] for trace in outlines(run_dir) if trace["status"] == "completed"}
            size = _size(run_dir.receipts)
            began = time.monotonic()
            with live_command(command, run_dir.path) as run:
                again_s = _first_receipt(run, run_dir, size, began)
                _ended(run)
            held = fresh.stats()["env"]["leases_held"]
        finally:
            for process in left:  # Ray's own agents outlive a killed driver by a minute
                with contextlib.suppress(psutil.Error):
                    process.kill()
        traces = list(outlines(run_dir))
    kept = {trace["episode_id"] for trace in traces if trace["status"] == "completed"}
    return {
        "first_s": first_s,
        "again_s": again_s,
        "counted": counted,
        "durable": len(durable),
        "forgotten": max(0, counted - len(durable)) + len(durable - kept),
        "leases_held": held,
        **missing_and_doubled(traces, episodes),
    }


def _first_receipt(run: LiveRun, run_dir: RunDirectory, size: int, began: float) -> float:
    """Seconds from ``began`` to the first receipt beyond ``size`` bytes of them: one is written after the fsync of its trace."""
    run.wait_for(lambda: _size(run_dir.receipts) > size or None, _RUN_S, every_s=0.01)
    return time.monotonic() - began


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# ---- both -------------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _bench(options: argparse.Namespace, episodes: int, **execution: Any) -> Iterator[tuple[Path, Servers, Path]]:
    """Fresh servers and a configuration. -> (configuration, servers, its directory)."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        limited(options.mock_command, IN_FLIGHT + IN_FLIGHT // 8, model_latency=LATENCY) as fresh,
    ):
        directory = Path(temporary)
        yield write_experiment(directory, fresh, episodes=episodes, concurrency=IN_FLIGHT, actors=ACTORS, **execution), fresh, directory


def _ended(run: LiveRun) -> None:
    code = run.wait_for_end(_RUN_S)
    if code != 0:
        raise RuntimeError(f"the run ended with {code}")


def show(result: dict[str, Any]) -> str:
    whole = result["undisturbed"]["wall_s"]
    rows: list[tuple[str, ...]] = [
        ("recovery: an actor killed", "lost with it", "again after, s", "90 % after, s", "wall, s", "undisturbed, s")
    ]
    for name, run in (("its end seen", result["seen"]), (f"fenced by time ({FENCE_S:g} s)", result["fenced"])):
        again = f"{run['again_first_s']:.1f} to {run['again_s']:.1f}"
        rows.append((name, str(run["lost"]), again, _seconds(run["back_s"]), f"{run['wall_s']:.1f}", f"{whole:.1f}"))
    head = ("the driver killed", "counted", "durable", "first start, s", "again, s", "forgotten", "leases held at the end")
    drivers: list[tuple[str, ...]] = [head]
    for n, d in enumerate(result["drivers"], 1):
        counts = (str(d["counted"]), str(d["durable"]), f"{d['first_s']:.1f}", f"{d['again_s']:.1f}")
        drivers.append((str(n), *counts, str(d["forgotten"]), str(d["leases_held"])))
    missing, doubled = _accounts(result)
    return f"{table(rows)}\n{table(drivers)}\nepisodes missing or forgotten {missing}, doubled {doubled} (limit 0)"


def _accounts(result: dict[str, Any]) -> tuple[int, int]:
    runs = [result["undisturbed"], result["seen"], result["fenced"], *result["drivers"]]
    return sum(run["missing"] + run.get("forgotten", 0) for run in runs), sum(run["doubled"] for run in runs)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def figures(result: dict[str, Any]) -> list[Figure]:
    whole = result["undisturbed"]["wall_s"]
    out: list[Figure] = []
    for name, run, fence_s, wall_most in (
        ("actor killed", result["seen"], 0.0, WALL_MOST),
        ("the same, fenced by time", result["fenced"], FENCE_S, WALL_MOST_FENCED),
    ):
        beside = f"{fence_s:g} (fence_s)" if fence_s else ""
        again, back = run["again_s"], run["back_s"]
        for what, value in ((f"s until its {run['lost']} episodes run again", again), ("s until 90 % of the steps/s before", back)):
            over = f"{value - fence_s:+.1f}" if fence_s and value is not None else ""
            limit = f"+{AFTER_MOST_S:g}" if fence_s else f"{AFTER_MOST_S:g}"
            kept = value is not None and value <= fence_s + AFTER_MOST_S
            out.append(Figure(f"recovery: {name}, {what}", _seconds(value), beside, over, limit, kept))
        wall = (f"{run['wall_s']:.1f}", f"{whole:.1f}", f"{run['ratio']:.2f}")
        out.append(Figure(f"recovery: {name}, wall beside undisturbed, s", *wall, f"{wall_most:g} ×", run["ratio"] <= wall_most))
    first, again = result["first_s"], result["again_s"]
    start = (f"{again:.1f}", f"{first:.1f}", f"{again / first:.2f}")
    out.append(
        Figure("recovery: driver killed, s from start to new durable episode", *start, f"{START_MOST:g} ×", again <= START_MOST * first)
    )
    wrong = sum(_accounts(result))
    out.append(Figure("recovery: episodes lost or doubled over all these runs", str(wrong), "", "", "0", wrong == 0))
    return out


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
