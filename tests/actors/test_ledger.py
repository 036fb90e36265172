import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.ledger import Ledger
from actors.queue import JobQueue, JobState, Ticket
from rayeval.exceptions import StoreWriteError
from rayeval.schemas import EnvironmentIdentity, FinishedTrace
from rayeval.store import RunDirectory, RunLock, TraceLog, iter_traces
from tests.actors.plans import IDENTITY, index, small_plan, trace_of


class Desk:
    """A ledger over a real log, with what it told."""

    def __init__(self, root: Path, attempts: int = 3) -> None:
        self.run_dir = RunDirectory(root / "run").create()
        self.lock = RunLock.acquire(self.run_dir)
        self.log = TraceLog(self.run_dir, self.lock)
        self.queue = JobQueue(small_plan(root), index(), attempts=attempts, longest_first=False)
        self.pinned: list[EnvironmentIdentity] = []
        self.changed: list[tuple[str, str]] = []
        self.failed: list[str] = []
        self.fatal: list[BaseException] = []
        self.notes: list[tuple[str, str]] = []
        self.ledger = Ledger(
            self.log,
            self.queue,
            {"plan_fingerprint": "f"},
            EnvironmentIdentity(),
            on_pinned=self.pinned.append,
            on_changed=lambda server, why: self.changed.append((server, why)),
            on_final_failure=self.failed.append,
            on_fatal=self.fatal.append,
            on_note=lambda level, text: self.notes.append((level, text)),
        )

    def take(self) -> Ticket:
        (ticket,) = self.queue.take(1)
        return ticket

    def lines(self) -> list[dict[str, Any]]:
        return list(iter_traces(self.run_dir))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    yield made
    await made.log.close()
    made.lock.release()


async def test_done_moves_only_with_the_fsync(desk: Desk) -> None:
    ticket = desk.take()
    desk.ledger.commit([(ticket, trace_of(ticket, reward=0.25))])
    assert desk.ledger.done == 0 and desk.ledger.open_bytes > 0
    assert desk.queue.counts[JobState.COMPLETED] == 1
    await desk.ledger.settled()
    assert (desk.ledger.done, desk.ledger.reward_sum, desk.ledger.open_bytes) == (1, 0.25, 0)
    assert [t["episode_id"] for t in desk.lines()] == [ticket.job.episode_id]


async def test_a_listener_that_fails_costs_no_count_and_no_other_listener(desk: Desk) -> None:
    heard: list[str] = []

    def broken(trace: FinishedTrace) -> None:
        raise KeyError("base_url")

    desk.ledger.on_counted += [broken, lambda trace: heard.append(trace.episode_id)]
    tickets = [desk.take(), desk.take()]
    desk.ledger.commit([(ticket, trace_of(ticket)) for ticket in tickets])
    await desk.ledger.settled()
    assert desk.ledger.done == 2 and heard == [ticket.job.episode_id for ticket in tickets]
    assert [level for level, _ in desk.notes] == ["error"] and "broken" in desk.notes[0][1]


async def test_a_failed_attempt_is_a_line_and_a_retry(desk: Desk) -> None:
    ticket = desk.take()
    desk.ledger.commit([(ticket, trace_of(ticket, completed=False))])
    await desk.ledger.settled()
    assert desk.ledger.retries == 1 and desk.ledger.failed == 0 and not desk.failed
    assert [t["status"] for t in desk.lines()] == ["failed"]


async def test_a_final_failure_is_told_once_it_is_durable(desk: Desk) -> None:
    ticket = desk.take()
    desk.ledger.commit([(ticket, trace_of(ticket, completed=False, retryable=False, kind="model_refused"))])
    assert not desk.failed
    await desk.ledger.settled()
    assert desk.failed == ["model_refused"]
    assert desk.ledger.failures == {"model_refused": 1}


async def test_a_lost_attempt_is_a_line_of_its_own(desk: Desk) -> None:
    tickets = [desk.take(), desk.take()]
    desk.ledger.commit_lost(tickets, "its process was killed")
    await desk.ledger.settled()
    for line in desk.lines():
        assert line["error"] == {
            "stage": "lost",
            "kind": "lost",
            "type": "ActorLost",
            "message": "its process was killed",
            "retryable": True,
        }
        assert line["final"] is None
    assert desk.ledger.lost == 2
    again = desk.take()
    assert (again.job, again.attempt) == (tickets[0].job, 2)


async def test_quarantine_is_written_so_that_a_resume_knows(desk: Desk) -> None:
    ticket = desk.take()
    desk.ledger.commit_quarantined(ticket, "killed")
    await desk.ledger.settled()
    (line,) = desk.lines()
    assert line["error"]["kind"] == "quarantined" and line["error"]["quarantined"] is True
    assert desk.failed == ["quarantined"]


async def test_the_first_completed_trace_pins_the_environment(desk: Desk) -> None:
    ticket = desk.take()
    desk.ledger.commit([(ticket, trace_of(ticket))])
    assert desk.pinned == [IDENTITY]


async def test_a_trace_of_another_environment_is_no_score(desk: Desk) -> None:
    first, second = desk.take(), desk.take()
    desk.ledger.commit([(first, trace_of(first)), (second, trace_of(second, identity=IDENTITY._replace(reward_version="reward-2")))])
    await desk.ledger.settled()
    assert desk.ledger.done == 1 and desk.ledger.reward_n == 1
    assert "reward-1 -> reward-2" in desk.changed[0][1]
    failed = desk.lines()[1]
    assert failed["status"] == "failed" and failed["error"]["kind"] == "environment_changed"
    assert failed["final"] is None


async def test_a_failed_write_ends_the_run_once_and_nothing_follows(desk: Desk) -> None:
    first, second = desk.take(), desk.take()
    record = orjson.loads(desk.run_dir.lock_record.read_bytes())
    desk.run_dir.lock_record.write_bytes(orjson.dumps({**record, "epoch": record["epoch"] + 1, "token": "other"}))
    desk.ledger.commit([(first, trace_of(first))])
    await desk.ledger.settled()
    assert len(desk.fatal) == 1 and "taken over" in str(desk.fatal[0])
    third, fourth = desk.take(), desk.take()
    desk.ledger.commit([(second, trace_of(second))])
    desk.ledger.commit_lost([third], "x")
    desk.ledger.commit_quarantined(fourth, "x")
    await desk.ledger.settled()
    assert desk.ledger.late == 1
    assert desk.queue.out == 0, "a run that can write nothing more must still come to its end"
    assert len(desk.fatal) == 1
    assert desk.ledger.done == 0 and desk.lines() == []


async def test_a_write_that_hangs_ends_the_wait_for_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.ledger._SETTLE_S", 0.05)
    monkeypatch.setattr(desk.log, "append", lambda traces: asyncio.get_running_loop().create_future())
    ticket = desk.take()
    desk.ledger.commit([(ticket, trace_of(ticket))])
    await asyncio.wait_for(desk.ledger.settled(), 20.0)
    assert desk.ledger.done == 0
    assert [type(error) for error in desk.fatal] == [StoreWriteError] and "hangs" in str(desk.fatal[0])


async def test_the_first_failure_of_each_kind_says_why(desk: Desk) -> None:
    for kind in ("model_refused", "model_refused", "environment_error"):
        ticket = desk.take()
        desk.ledger.commit([(ticket, trace_of(ticket, completed=False, retryable=False, kind=kind))])
    await desk.ledger.settled()
    told = [text for level, text in desk.notes if level == "warning"]
    assert len(told) == 2 and "model_refused" in told[0] and "environment_error" in told[1]
    assert "task-" in told[0]


async def test_attempts_that_are_made_again_are_counted_by_kind_beside_those_that_failed_for_good(desk: Desk) -> None:
    first, second, third, lost = (desk.take() for _ in range(4))
    desk.ledger.commit([(t, trace_of(t, completed=False, kind="episode_timeout")) for t in (first, second)])
    desk.ledger.commit([(third, trace_of(third, completed=False, retryable=False, kind="model_refused"))])
    desk.ledger.commit_lost([lost], "its process\nwas killed")
    await desk.ledger.settled()
    assert desk.ledger.retried == {"episode_timeout": 2, "lost": 1}
    assert desk.ledger.failures == {"model_refused": 1}
    assert set(desk.ledger.samples) == {"episode_timeout", "model_refused", "lost"}
    assert desk.ledger.samples["lost"] == "its process was killed"
    assert not any("was killed" in text for _, text in desk.notes), "the pool tells of a lost actor"
