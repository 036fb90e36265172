"""The acceptance rows as functions: each runs one thing, asserts what was promised, and returns the figures it saw.

The suite calls them small, against the demo servers. By hand, at full size, against the demo or against another mock with the same flags:

    python -m tests.acceptance.rows --row determinism --row faults [--mock-command "python servers.py"]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import psutil

from rayeval.hashing import canonical_trace
from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory, iter_traces, last_records, load_journal
from tests.acceptance.runs import (
    Bench,
    Driver,
    JsonObject,
    Recorder,
    actors_of,
    assert_exactly_once,
    canonical,
    descendants,
    lines_of,
    records,
    run_here,
    status_of,
    summary_of,
    wait_gone,
)
from tests.acceptance.servers import DemoPair, Servers, StartServers, external
from tests.actors.sessions import shared_ray

FAULTY = {"fault_malformed": 0.02, "fault_length": 0.02}
REFUSING = {"fault_429": 0.05, "fault_500": 0.05}
JOURNAL_S = 0.05
"""A lease older than this is in the driver's journal."""


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


def _assert_gone(family: Sequence[psutil.Process]) -> None:
    left = wait_gone(family)
    assert not left, f"processes of an ended driver live on: {left}"


@contextlib.contextmanager
def when(holds: Callable[[], bool], act: Callable[[], None], every_s: float = 0.01) -> Iterator[None]:
    """Beside the block, call ``act`` once ``holds()`` does."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            if holds():
                act()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


# ---- kill and resume --------------------------------------------------------------------------------------------------------------


def kill_and_resume(
    start: StartServers, root: Path, episodes: int = 500, marks: Sequence[float] = (0.3, 0.6, 0.9), exclusive: bool = True
) -> JsonObject:
    """SIGKILL of the driver's group at ``marks``, the same command again: each episode once, none that was counted lost."""
    bench = Bench(root, episodes)
    log = root / "requests.log"
    figures: JsonObject = {"kills": []}
    with start(slots=64, env_latency="fixed:0.05", request_log=str(log)) as servers:
        config = bench.config("killed", servers, {"execution.exclusive_environment": exclusive})
        bound = 0
        for mark in marks:
            driver = Driver(config)
            driver.until(f"{mark:.0%}", lambda at=int(mark * episodes), d=driver: status_of(d.run_dir).get("done", 0) >= at)
            family = descendants(driver.pid)
            counted = status_of(driver.run_dir)["done"]
            in_flight = servers.stats()["env"]["resets_in_flight"]
            killed_at = time.time()
            driver.kill()
            time.sleep(0.2)  # what was in flight is answered by now
            young = [t for t, action in _requests(log) if action == "reset" and killed_at - JOURNAL_S <= t <= killed_at]
            after = [t for t, action in _requests(log) if action == "reset" and t > killed_at]
            bound += len(young) + len(after)
            figures["kills"].append(
                {"counted": counted, "resets_in_flight": in_flight, "young": len(young), "after": len(after), "processes": len(family)}
            )
            driver.process.communicate()
            survivors = completed_counts_of_whole_lines(driver.run_dir)
            assert survivors >= counted, f"{counted} were counted as done, {survivors} are on disk"
            figures["kills"][-1]["family"] = family
        driver = Driver(config)
        assert driver.wait() == ExitCode.OK, driver.output
        late = sum(1 for t, action in _requests(log) if action == "reset") - servers.stats()["env"]["reset"]
        assert late == 0
        for kill in figures["kills"]:
            _assert_gone(kill.pop("family"))
        assert_exactly_once(driver.run_dir, episodes)
        held = servers.stats()["env"]["leases_held"]
        figures |= {"held_at_end": held, "bound": 0 if exclusive else bound, "hash": canonical(driver.run_dir)}
        if exclusive:
            assert held == 0, f"{held} leases are held at the end"
        else:
            journalled = len(load_journal(driver.run_dir.leases).held)
            assert journalled == 0, f"{journalled} leases of the journal were not released"
            assert held <= bound, f"{held} leases are held by nobody, at most {bound} could not be known"
            doctor = json.loads(_cli("leases", "doctor", str(driver.run_dir.path), "--json"))
            figures["doctor"] = doctor
            assert sum(s["held_by_nobody"] for s in doctor["servers"]) == held, doctor
    return figures


def _requests(log: Path) -> Iterator[tuple[float, str]]:
    for line in log.read_text().splitlines():
        words = line.split()
        yield float(words[0]), words[1]


def completed_counts_of_whole_lines(run_dir: RunDirectory) -> int:
    """Distinct completed episodes in a file whose last line may be torn."""
    return len({t["episode_id"] for t in iter_traces(run_dir) if t["status"] == "completed"})


def torn_resume(start: StartServers, root: Path, episodes: int = 120, cuts: int = 3, on_ray: bool = True) -> JsonObject:
    """A finished run cut at random bytes runs to the end again, to the same hash."""
    import random

    bench = Bench(root, episodes)
    with start(slots=64, **FAULTY) as servers:
        config = bench.config("torn", servers)
        run_dir = RunDirectory(run_here(config, show=not on_ray).run_dir)
        whole, expected = run_dir.traces.read_bytes(), canonical(run_dir)
        dice = random.Random(5)
        offsets = [dice.randrange(len(whole) - 100_000, len(whole)) for _ in range(cuts)]
        for offset in offsets:
            with run_dir.traces.open("r+b") as file:
                file.truncate(offset)
            outcome = run_here(config, show=not on_ray)
            assert outcome.exit_code == ExitCode.OK, outcome.reason
            assert_exactly_once(run_dir, episodes)
            assert canonical(run_dir) == expected
        return {"bytes": len(whole), "offsets": offsets, "hash": expected}


# ---- faults -----------------------------------------------------------------------------------------------------------------------


def faults(
    start: StartServers, root: Path, episodes: int = 500, hang: float = 0.01, on_ray: bool = True, model: str = "random"
) -> JsonObject:
    """What the summary counts is what the servers dealt; nothing that failed is scored.

    ``model``: one that makes no mistakes of its own (the demo's ``random``; other mocks take any name).
    """
    bench = Bench(root, episodes)
    overrides = {"experiment.name": "same", "execution.model_timeout_s": 2, "model.name": model}
    with start(slots=64) as servers:
        clean = RunDirectory(
            run_here(bench.config("clean", servers, {**overrides, "experiment.output_dir": "runs/clean"}), show=not on_ray).run_dir
        )
    with start(slots=64, fault_hang=hang, hang_s=30, **FAULTY, **REFUSING) as servers:
        outcome = run_here(bench.config("faulty", servers, {**overrides, "experiment.output_dir": "runs/faulty"}), show=not on_ray)
        model = servers.stats()["model"]
        assert servers.stats()["env"]["leases_held"] == 0
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    run_dir = RunDirectory(outcome.run_dir)
    attempts = summary_of(run_dir)["attempts"]
    retries = attempts["model_retries"]
    counted = {
        "fault_429": retries.get("status_429", 0),
        "fault_500": retries.get("status_500", 0),
        "fault_hang": retries.get("timeout", 0),
        "fault_malformed": attempts["protocol_errors"],
        "fault_length": attempts["generation_length"],
    }
    dealt = {name: model.get(name, 0) for name in counted}
    assert counted == dealt, f"counted {counted}, dealt {dealt}"
    assert all(dealt.values()) or hang == 0, dealt
    for trace in records(run_dir):
        if trace["status"] == "failed":
            assert trace["final"] is None or not trace["final"].get("done"), "a failure is scored"
    reference = {t["episode_id"]: canonical_trace(t) for t in last_records(clean, completed_only=True)}
    compared = 0
    for trace in last_records(run_dir, completed_only=True):
        if not any(s.get("protocol_error") or s.get("policy_failure") for s in trace["steps"]):
            compared += 1
            assert canonical_trace(trace) == reference[trace["episode_id"]], trace["episode_id"]
    return {"counted": counted, "failed_lines": attempts["failed_lines"], "equal_to_fault_free": compared, "episodes": episodes}


# ---- one driver -------------------------------------------------------------------------------------------------------------------


def lock(start: StartServers, root: Path, episodes: int = 400, stopped_s: float = 90.0, takeover: bool = True) -> JsonObject:
    """A stopped holder keeps its run; a killed one does not."""
    bench = Bench(root, episodes)
    with start(slots=64, env_latency="fixed:0.02", model_latency="fixed:0.05") as servers:
        config = bench.config("held", servers, {"execution.concurrency": 16})
        holder = Driver(config)
        holder.until_lines(episodes // 10)
        holder.signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        second = Driver(config)
        assert second.wait() == ExitCode.REFUSED, second.output
        assert f"pid {holder.pid}" in second.output, second.output
        holder.signal(signal.SIGCONT)
        assert holder.wait() == ExitCode.OK, holder.output
        assert_exactly_once(holder.run_dir, episodes)
        replaced = status_of(holder.run_dir)
        message = next(line for line in second.output.splitlines() if f"pid {holder.pid}" in line)
        if not takeover:
            return {"refusal": message}

        config = bench.config("taken", servers, {"execution.concurrency": 16})
        dead = Driver(config)
        dead.until_lines(episodes // 10)
        dead.kill()
        dead.process.communicate()
        began = time.monotonic()
        heir = Driver(config)
        heir.until("the heir's record", lambda: f'"pid": {heir.pid}' in _text(heir.run_dir.lock_record))
        took = time.monotonic() - began
        assert heir.wait() == ExitCode.OK, heir.output
        assert_exactly_once(heir.run_dir, episodes)
        assert servers.stats()["env"]["leases_held"] == 0
    return {"refusal": message, "lost_by_the_stop": replaced.get("lost"), "takeover_s": round(took, 2)}


def lock_from_another_host(start: StartServers, root: Path, episodes: int = 300) -> JsonObject:
    """A record of another boot is taken over after a minute unchanged; the old holder writes nothing more.

    The other host is played by a stopped driver whose record is rewritten.
    """
    bench = Bench(root, episodes)
    with start(slots=64, env_latency="fixed:0.02", model_latency="fixed:0.05") as servers:
        config = bench.config("moved", servers, {"execution.concurrency": 16})
        old = Driver(config)
        old.until_lines(episodes // 10)
        old.signal(signal.SIGSTOP)
        record = json.loads(old.run_dir.lock_record.read_text())
        old.run_dir.lock_record.write_text(json.dumps({**record, "host": "elsewhere", "boot_id": "another-boot"}))
        began = time.monotonic()
        new = Driver(config)
        new.until("the takeover", lambda: f'"pid": {new.pid}' in _text(new.run_dir.lock_record), timeout_s=120.0)
        waited = time.monotonic() - began
        old.signal(signal.SIGCONT)
        assert old.wait() == ExitCode.STOPPED, old.output
        assert "taken over" in old.output, old.output
        assert new.wait() == ExitCode.OK, new.output
        assert_exactly_once(new.run_dir, episodes)
        said = next(line for line in old.output.splitlines() if "taken over" in line)
        return {"waited_s": round(waited, 1), "old_says": said}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


# ---- actors -----------------------------------------------------------------------------------------------------------------------


def actor_ends(start: StartServers, root: Path, episodes: int = 300, stop: bool = False) -> JsonObject:
    """An actor SIGKILLed (or stopped for good) midway: replaced, its jobs run again, one line each with stage ``lost``."""
    bench = Bench(root, episodes)
    with start(slots=64, env_latency="fixed:0.02", model_latency="fixed:0.05") as servers:
        config = bench.config("ends", servers, {"execution.actors": 2, "execution.concurrency": 32})
        run_dir = bench.run_dir("ends")
        struck: list[int] = []

        def strike() -> None:
            pids = actors_of(run_dir)
            os.kill(pids[-1], signal.SIGSTOP if stop else signal.SIGKILL)
            struck.append(pids[-1])

        display = Recorder()
        began = time.monotonic()
        with when(lambda: lines_of(run_dir) >= episodes // 4, strike):
            outcome = run_here(config, display=display)
        assert struck, "no actor was struck: the run was too fast"
        assert outcome.exit_code == ExitCode.OK, outcome.reason
        assert_exactly_once(run_dir, episodes)
        lost = [t for t in records(run_dir) if t["status"] == "failed"]
        assert lost and all(t["error"]["stage"] == "lost" for t in lost), lost[:1]
        assert len({(t["episode_id"], t["attempt"]) for t in lost}) == len(lost)
        assert len(lost) == summary_of(run_dir)["attempts"]["lost"] == status_of(run_dir)["lost"]
        env = servers.stats()["env"]
        assert env["leases_held"] == 0
        # a release that the dead actor had sent is sent again and answered 409; a reset in flight at the kill is a lease that nobody can
        # name: release_all ended it
        released = env["release_one"] - env.get("stale_lease", 0)
        assert 0 <= env["reset"] - released <= len(lost), env
        assert not psutil.pid_exists(struck[0]) or psutil.Process(struck[0]).status() == psutil.STATUS_ZOMBIE
        return {
            "lost": len(lost),
            "wall_s": round(time.monotonic() - began, 1),
            "notes": [text for level, text in display.notes if level == "warning"],
        }


# ---- signals ----------------------------------------------------------------------------------------------------------------------


def drain(start: StartServers, root: Path, episodes: int = 40) -> JsonObject:
    """SIGTERM midway: what runs ends, everything is given back, the verdict is 143."""
    bench = Bench(root, episodes)
    with start(slots=64, env_latency="fixed:0.02", model_latency="fixed:0.05") as servers:
        driver = Driver(bench.config("drained", servers, {"execution.concurrency": 4}))
        driver.until_lines(episodes // 10)
        family = descendants(driver.pid)
        driver.signal(signal.SIGTERM)
        assert driver.wait() == ExitCode.SIGTERM, driver.output
        status = status_of(driver.run_dir)
        assert status["state"] == "ended" and status["exit_code"] == ExitCode.SIGTERM, status
        assert servers.stats()["env"]["leases_held"] == 0
        on_disk = completed_counts_of_whole_lines(driver.run_dir)
        assert 0 < status["done"] == on_disk < episodes, (status, on_disk, driver.output)
        _assert_gone(family)
        return {"done": status["done"]}


def signals(start: StartServers, root: Path, episodes: int = 300) -> JsonObject:
    """The first signal drains, the second ends at once; both leave a run that goes on."""
    bench = Bench(root, episodes)
    figures: JsonObject = {}
    with start(slots=64, env_latency="fixed:0.02", model_latency="fixed:0.05") as servers:
        config = bench.config("signals", servers, {"execution.concurrency": 16})
        for number in (signal.SIGTERM, signal.SIGINT):
            driver = Driver(config)
            before = lines_of(driver.run_dir)
            driver.until_lines(before + episodes // 10)
            family = descendants(driver.pid)
            began = time.monotonic()
            driver.signal(number)
            assert driver.wait() == 128 + number, driver.output
            took = time.monotonic() - began
            status = status_of(driver.run_dir)
            assert status["state"] == "ended" and status["exit_code"] == 128 + number, status
            assert servers.stats()["env"]["leases_held"] == 0
            assert status["done"] == completed_counts_of_whole_lines(driver.run_dir)
            _assert_gone(family)
            figures[number.name] = {"seconds": round(took, 1), "done": status["done"], "says": driver.output.splitlines()[-6:]}
        driver = Driver(config)
        before = lines_of(driver.run_dir)
        driver.until_lines(before + episodes // 10)
        family = descendants(driver.pid)
        driver.signal(signal.SIGTERM)
        driver.until("the drain", lambda: status_of(driver.run_dir).get("state") == "draining", timeout_s=20.0)
        began = time.monotonic()
        driver.signal(signal.SIGTERM)
        assert driver.wait(20.0) == 128 + signal.SIGTERM, driver.output
        figures["second"] = round(time.monotonic() - began, 2)
        _assert_gone(family)
        driver = Driver(config)
        assert driver.wait() == ExitCode.OK, driver.output
        assert_exactly_once(driver.run_dir, episodes)
        assert servers.stats()["env"]["leases_held"] == 0
    return figures


# ---- secrets ----------------------------------------------------------------------------------------------------------------------

KEY = "sk-acceptance-0123456789abcdef"


def secrets(start: StartServers, root: Path, episodes: int = 40, modes: Sequence[str] = ("good", "echo_key", "echo_key_500")) -> JsonObject:
    """No key, private goal or lease id where it has no business, whatever the servers echo."""
    figures: JsonObject = {}
    for mode in modes:
        place = root / mode
        bench = Bench(place, episodes if mode == "good" else 6)
        options: JsonObject = {} if mode == "good" else {mode: True}
        # only the demo echoes a key
        with (start if mode == "good" else DemoPair)(slots=64, **options) as servers, tempfile.TemporaryDirectory(prefix="rs") as ray_dir:
            overrides = {"model.api_key_env": "ACCEPTANCE_KEY", "execution.model_attempts": 2, "execution.attempts": 1}
            config = bench.config("secret", servers, overrides)
            driver = Driver(config, environment={"ACCEPTANCE_KEY": KEY, "RAY_TMPDIR": ray_dir})
            code = driver.wait()
            assert code == (ExitCode.OK if mode == "good" else ExitCode.FAILED_EPISODES), driver.output
            (place / "output.txt").write_text(driver.output)
            files = [p for d in (place, Path(ray_dir)) for p in d.rglob("*") if p.is_file() and not p.is_symlink()]
            leases = _lease_ids(driver.run_dir.leases)
            goals = _goals(driver.run_dir)
            found = _search(files, {KEY, *leases, *goals}, driver.run_dir, leases, goals)
            assert not found, found
            if mode == "good":
                assert goals, "no private goal is in the traces: nothing is shown"
            figures[mode] = {"files": len(files), "lease_ids": len(leases), "goals": len(goals), "exit": code}
    return figures


def _lease_ids(journal: Path) -> set[str]:
    return {orjson.loads(line)["lease"][2] for line in journal.read_bytes().splitlines() if b'"lease"' in line}


def _goals(run_dir: RunDirectory) -> set[str]:
    """Texts that only the private goal has."""
    goals: set[str] = set()
    for trace in iter_traces(run_dir):
        goal = (trace.get("final") or {}).get("goal") or {}
        public = trace["reset"]["task_instruction"]
        goals |= {v for k, v in goal.items() if isinstance(v, str) and len(v) > 6 and v not in public and k not in ("user_id",)}
    return goals


def _search(files: Sequence[Path], words: set[str], run_dir: RunDirectory, leases: set[str], goals: set[str]) -> list[str]:
    found = []
    encoded = {word: word.encode() for word in words}
    for path in files:
        content = path.read_bytes()
        for word, raw in encoded.items():
            if raw not in content:
                continue
            if word in leases and path == run_dir.leases:
                continue
            if word in goals and path == run_dir.traces:
                continue
            kind = "the key" if word == KEY else "a lease id" if word in leases else f"a goal ({word})"
            found.append(f"{kind} in {path}")
    return found


# ---- by hand ----------------------------------------------------------------------------------------------------------------------


def _cli(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "rayeval", *words], capture_output=True, text=True, timeout=60.0)
    return done.stdout


ROWS: dict[str, Callable[[StartServers, Path], JsonObject]] = {
    "load": real_load,
    "determinism": determinism,
    "kill": kill_and_resume,
    "kill-shared": lambda start, root: kill_and_resume(start, root, exclusive=False),
    "torn": torn_resume,
    "faults": faults,
    "lock": lock,
    "lock-host": lock_from_another_host,
    "actor-killed": actor_ends,
    "actor-stopped": lambda start, root: actor_ends(start, root, 900, stop=True),
    "signals": signals,
    "secrets": secrets,
}


def _told(name: str, start: StartServers, place: Path) -> bool:
    """Run one row and print its line. -> whether it holds."""
    shutil.rmtree(place, ignore_errors=True)
    began = time.monotonic()
    line: JsonObject = {"row": name, "holds": True}
    try:
        figures = ROWS[name](start, place)
    except Exception as error:
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        line["holds"], figures = False, {"why": f"{type(error).__name__}: {error}"[-3000:]}
    line |= {"seconds": round(time.monotonic() - began, 1), **figures}
    print(json.dumps(line, ensure_ascii=False, default=str), flush=True)
    return bool(line["holds"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run rows by hand; one JSON line each. -> how many did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="default: all, one after another")
    parser.add_argument("--mock-command", help="command of a mock that serves both sides on --port and prints its URL; default: the demo")
    parser.add_argument("--keep", type=Path, help="directory for the runs, kept; default: a temporary one")
    args = parser.parse_args(argv)
    start: StartServers = external(args.mock_command) if args.mock_command else DemoPair
    root = args.keep or Path(tempfile.mkdtemp(prefix="rayeval-rows-"))
    wrong = 0
    with shared_ray():
        for name in args.row or ROWS:
            wrong += not _told(name, start, root / name)
    if not args.keep:
        shutil.rmtree(root, ignore_errors=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
