"""The logs of an invocation, without Ray: notes, records that come with replies, and the last output of the dead."""

import logging

import pytest

from actors.handles import ActorGoneError
from actors.last_output import last_output
from actors.logs import DriverLogs
from actors.messages import ActorInfo, Order, Reply
from rayeval.models import Scrubber
from rayeval.store import RunDirectory
from tests.actors.specs import spec

INFO = ActorInfo("node", "host", "space", 4_000_000, 0.0, 4)


class Heard:
    """A display that keeps what it hears."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *what: self.calls.append((name, *what))


class Inner:
    """A handle with a script."""

    def __init__(self, *answers):
        self.answers, self.killed = list(answers), 0

    async def start(self, timeout_s):
        return self._next()

    async def exchange(self, order):
        return self._next()

    async def stop(self, ack, timeout_s):
        return self._next()

    def ping(self, timeout_s):
        return None

    def kill(self):
        self.killed += 1

    def _next(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def reply(number, *texts, missed=()):
    return Reply(number, 0, logs=[(0.0, "warning", text) for text in texts], missed=list(missed))


@pytest.fixture
def made(tmp_path):
    run_dir, display = RunDirectory(tmp_path / "r").create(), Heard()
    logs = DriverLogs(display, "hunter2secret")
    yield run_dir, display, logs
    logs.close()


def driver_log(run_dir):
    return (run_dir.logs / "latest" / "driver.log").read_text()


def actor_log(run_dir, actor_id):
    return (run_dir.logs / "latest" / f"actor-{actor_id}.log").read_text()


def test_the_display_hears_everything_and_so_do_the_files_also_what_came_before_them(made):
    run_dir, display, logs = made
    logs.note("warning", "early hunter2secret")
    logs.open(run_dir, 1)
    logs.start({"run": "r", "planned": 3, "goal": "private"})
    logs.note("debug", "later")
    for _ in range(5):
        logs.update({"state": "running", "done": 1, "planned": 3, "goal": "private"})
    logs.event("reset", {"task_instruction": "private"})
    logging.getLogger("actors.somewhere").warning("from a record")
    logs.end({"exit_code": 1, "reason": "1 episode failed", "summary": {"goal": "private"}})
    assert [call[0] for call in display.calls] == ["note", "start", "note", *["update"] * 5, "event", "end"]
    lines = [line.split(" ", 1)[1] for line in driver_log(run_dir).splitlines()]
    assert lines == [
        "warning early [redacted]",
        "info start: planned 3",
        "debug later",
        "info running: done 1, planned 3, failed None, in_flight None, queued None, retries None, lost None",
        "warning actors.somewhere: from a record",
        "info ended with exit code 1: 1 episode failed",
    ]


def test_after_the_end_the_loggers_are_as_before(made):
    run_dir, _, logs = made
    before = logging.getLogger("actors").handlers[:]
    logs.open(run_dir, 1)
    logs.close()
    assert logging.getLogger("actors").handlers == before


async def test_records_are_written_once_whatever_is_sent_again(made):
    run_dir, _, logs = made
    logs.open(run_dir, 1)
    lost = reply(2, "two")
    inner = Inner(INFO, reply(1, "one"), reply(3, "three", missed=[lost]), reply(4, "four", missed=[lost]))
    handle = logs.watch(spec(actor_id="1-a"), inner)
    await handle.start(1.0)
    for _ in range(2):
        await handle.exchange(Order(1, 0))
    await handle.stop(0, 1.0)
    handle.kill()  # after an end in order: nothing died
    logs.settle()
    assert [line.rpartition(" ")[2] for line in actor_log(run_dir, "1-a").splitlines()] == ["one", "two", "three", "four"]


@pytest.mark.parametrize("how", ["gone", "killed", "at start"])
async def test_a_death_is_told_once_and_nothing_of_it_is_kept_from_the_pool(made, how, monkeypatch):
    monkeypatch.setattr("actors.logs.last_output", lambda info, error: None)  # asking a cluster for another host's files takes its time
    run_dir, _, logs = made
    logs.open(run_dir, 1)
    gone = ActorGoneError("ActorDiedError: it is no more")
    inner = Inner(gone) if how == "at start" else Inner(INFO, gone)
    handle = logs.watch(spec(actor_id="1-a"), inner)
    if how != "at start":
        assert await handle.start(1.0) is INFO
    if how == "gone":
        with pytest.raises(ActorGoneError):
            await handle.exchange(Order(1, 0))
    if how == "at start":
        with pytest.raises(ActorGoneError):
            await handle.start(1.0)
    handle.kill()
    assert inner.killed == 1
    logs.settle()
    line, rest = actor_log(run_dir, "1-a").splitlines()
    assert "error died: " in line and ("pid 4000000 on host" in line) == (how != "at start")
    assert rest.endswith("nothing of its output is at hand")


async def test_the_key_of_an_actor_that_the_driver_does_not_have_stays_out_of_its_last_output(made, monkeypatch):
    monkeypatch.setattr("actors.logs.last_output", lambda info, error: "fatal: sent actors-own-key-77 and hunter2secret\n")
    run_dir, _, logs = made
    logs.open(run_dir, 1)
    handle = logs.watch(spec(actor_id="1-a"), Inner(INFO._replace(key_mark=Scrubber("actors-own-key-77").mark()), ActorGoneError("gone")))
    await handle.start(1.0)
    with pytest.raises(ActorGoneError):
        await handle.exchange(Order(1, 0))
    logs.settle()
    assert actor_log(run_dir, "1-a").splitlines()[-1] == "fatal: sent [redacted] and [redacted]"


def test_without_ray_there_is_no_last_output():
    assert last_output(None, None) is None
    assert last_output(None, ActorGoneError("x")) is None
