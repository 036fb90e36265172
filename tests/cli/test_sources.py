import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from rayeval.cli.sources import STALE_S, FarSource, look
from rayeval.exceptions import StoppedError
from rayeval.store import RunDirectory, RunLock, read_lock_record, write_status
from tests.cli.statuses import RUNNING
from tests.helpers.runs import completed, make_run


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return make_run(tmp_path / "r", [completed(0)])


@contextmanager
def since_long_ago(run: RunDirectory) -> Iterator[None]:
    """A driver that took the run an hour ago."""
    with RunLock.acquire(run) as lock:
        began = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        run.lock_record.write_bytes(orjson.dumps(asdict(replace(lock.record, acquired_at=began))))
        yield


def told(age_s: float = 0.0, **more: Any) -> dict[str, Any]:
    return {**RUNNING, "updated_at": (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat(), **more}


def test_a_living_run_is_as_its_status_says(run):
    with RunLock.acquire(run):
        write_status(run, told(state="draining"))
        sight = look(run)
    assert (sight.state, sight.stale, sight.advice) == ("draining", False, None)
    assert sight.age_s < 5


def test_a_driver_that_writes_nothing_is_stale_with_its_pid(run):
    with since_long_ago(run):
        write_status(run, told(STALE_S + 5))
        sight = look(run)
    assert sight.stale and sight.state == "running" and f"pid {os.getpid()}" in sight.advice and "look there" in sight.advice


@pytest.mark.parametrize("state", ["starting", "closing"])
def test_states_in_which_nothing_is_written_for_a_while_are_not_stale_at_once(run, state):
    with since_long_ago(run):
        write_status(run, told(STALE_S + 5, state=state))
        assert not look(run).stale


def test_a_stopped_driver_is_told_how_to_be_let_go_on(run):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        import psutil

        with RunLock.acquire(run) as lock:
            began = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
            record = replace(lock.record, pid=child.pid, start_time=psutil.Process(child.pid).create_time(), acquired_at=began)
            run.lock_record.write_bytes(orjson.dumps(asdict(record)))
            write_status(run, told(STALE_S + 5))
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            assert f"kill -CONT {child.pid}" in look(run).advice
    finally:
        child.kill()
        child.wait()


def test_on_another_machine_the_status_is_held_against_the_lock_record(run):
    """Its clock may differ from ours by less than the minute after which nobody is taken to live there."""
    with RunLock.acquire(run) as lock:
        record = lock.record
    theirs = datetime.now(UTC) - timedelta(seconds=40)
    for behind, stale in ((2, False), (STALE_S + 5, True)):
        began = (theirs - timedelta(hours=1)).isoformat()
        elsewhere = replace(record, host="far", boot_id="x", released=False, acquired_at=began, renewed_at=theirs.isoformat())
        run.lock_record.write_bytes(orjson.dumps(asdict(elsewhere)))
        write_status(run, {**RUNNING, "updated_at": (theirs - timedelta(seconds=behind)).isoformat()})
        assert look(run).stale is stale


def test_nobody_works_on_it(run):
    write_status(run, told(3))
    assert look(run).state == "interrupted" and look(run).advice == "nobody works on it; run the same command again to go on"
    with RunLock.acquire(run) as lock:
        record = lock.record
    run.lock_record.write_bytes(orjson.dumps(asdict(replace(record, pid=2**22 + 7, released=False))))
    assert f"pid {2**22 + 7} on host" in look(run).advice and "is gone" in look(run).advice
    assert read_lock_record(run) is not None


@pytest.mark.parametrize(("left", "before"), [("ended", "ended"), ("running", "interrupted")])
def test_a_run_is_as_its_last_driver_left_it_until_somebody_goes_on_with_it(run, left, before):
    write_status(run, told(60, state=left, exit_code=1))
    assert look(run).state == before
    with RunLock.acquire(run):
        sight = look(run)
        assert (sight.state, sight.stale) == ("starting", False) and "goes on with it" in sight.advice
        write_status(run, told(-1, state="ended", exit_code=1))
        assert look(run).state == "ended", "its own last status comes before its lock is given back"


def test_runs_without_a_status(tmp_path):
    begun, never = make_run(tmp_path / "b", [completed(0)]), make_run(tmp_path / "n", [])
    assert look(begun).state == "interrupted"
    never.traces.unlink(missing_ok=True)
    assert look(never).state == "not begun"
    with RunLock.acquire(never):
        assert look(never).state == "starting"


class Gone(StoppedError):
    pass


class Box:
    """Answers as the mailbox does; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[int] = []
        self._answers = list(answers)

    def __call__(self, after: int, wait_s: float) -> dict[str, Any]:
        self.asked.append(after)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        number, status, age_s = answer
        return {"number": number, "status": status, "age_s": age_s}


def test_a_far_run_is_asked_for_what_is_newer():
    box = Box((0, None, None), (4, told(), 0.1), (5, told(state="ended", exit_code=0), 0.0))
    source = FarSource(box, "far", Gone)
    assert [source.read(1.0).state for _ in range(3)] == ["starting", "running", "ended"]
    assert box.asked == [0, 0, 4]


def test_a_far_run_with_a_new_mailbox_that_has_heard_nothing_yet_is_as_it_was_last_heard_of():
    source = FarSource(Box((4, told(done=3), 2.0), (0, None, None), (1, told(done=5), 0.1)), "far", Gone)
    first, between, after = (source.read(1.0) for _ in range(3))
    assert (between.state, between.status) == (first.state, first.status) and 2.0 <= between.age_s < 10.0
    assert after.status["done"] == 5


def test_a_far_driver_that_tells_nothing_is_stale():
    sight = FarSource(Box((4, told(), STALE_S + 1)), "far", Gone).read(1.0)
    assert sight.stale and "has told nothing for 11 s" in sight.advice


def test_a_far_run_that_goes_away_is_interrupted_and_one_that_never_answered_is_an_error():
    source = FarSource(Box((4, told(), 0.1), Gone("x")), "far", Gone)
    source.read(1.0)
    assert source.read(1.0).state == "interrupted"
    with pytest.raises(Gone):
        FarSource(Box(Gone("x")), "far", Gone).read(1.0)
