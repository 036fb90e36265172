"""Drivers that are killed, and what a resume makes of what they left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory, iter_traces, load_journal
from tests.acceptance.runs import (
    Bench,
    Driver,
    JsonObject,
    assert_exactly_once,
    assert_gone,
    canonical,
    cli,
    descendants,
    run_here,
    status_of,
)
from tests.acceptance.servers import FAULTY, StartServers

JOURNAL_S = 0.05
"""A lease is in the journal so soon after its reset: the bound of what a SIGKILL leaves unnamed."""


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
            assert_gone(kill.pop("family"))
        assert_exactly_once(driver.run_dir, episodes)
        held = servers.stats()["env"]["leases_held"]
        figures |= {"held_at_end": held, "bound": 0 if exclusive else bound, "hash": canonical(driver.run_dir)}
        if exclusive:
            assert held == 0, f"{held} leases are held at the end"
        else:
            journalled = len(load_journal(driver.run_dir.leases).held)
            assert journalled == 0, f"{journalled} leases of the journal were not released"
            assert held <= bound, f"{held} leases are held by nobody, at most {bound} could not be known"
            doctor = json.loads(cli("leases", "doctor", str(driver.run_dir.path), "--json"))
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
