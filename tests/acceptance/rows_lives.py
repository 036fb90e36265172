"""One driver for a run; actors that end; signals."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil

from rayeval.schemas import ExitCode
from tests.acceptance.rows_kill import completed_counts_of_whole_lines
from tests.acceptance.runs import (
    Bench,
    Driver,
    JsonObject,
    Recorder,
    actors_of,
    assert_exactly_once,
    assert_gone,
    descendants,
    lines_of,
    records,
    run_here,
    status_of,
    summary_of,
    when,
)
from tests.acceptance.servers import StartServers


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
        assert_gone(family)
        return {"done": status["done"]}


def signals(start: StartServers, root: Path, episodes: int = 300) -> JsonObject:
    """The first signal drains, the second ends at once; both leave a run that goes on."""
    bench = Bench(root, episodes)
    figures: JsonObject = {}
    with start(slots=64, env_latency="fixed:0.02", model_latency="fixed:0.3") as servers:
        config = bench.config("signals", servers, {"execution.concurrency": 8})
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
            assert_gone(family)
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
        assert_gone(family)
        assert servers.stats()["env"]["leases_held"] == 0
        driver = Driver(config)
        assert driver.wait() == ExitCode.OK, driver.output
        assert_exactly_once(driver.run_dir, episodes)
        assert servers.stats()["env"]["leases_held"] == 0
    return figures
