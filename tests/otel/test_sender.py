import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rayeval.otel import sender
from rayeval.otel.records import SpanRecord
from rayeval.otel.sender import TraceSender, chosen
from tests.otel.lines import completed, context, failed, finished


class Sink:
    """Keeps what it is sent. ``failure``: what it answers; ``gate``: while cleared, it does not answer."""

    target = "http://collector:4318/v1/traces"

    def __init__(self, failure: str | None = None) -> None:
        self.failure = failure
        self.records: list[SpanRecord] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0

    def send(self, records: Sequence[SpanRecord]) -> str | None:
        self.gate.wait(30)
        if self.failure == "raise":
            raise OSError("torn")
        if self.failure is None:
            self.records += records
        return self.failure

    def heard(self) -> str | None:
        return "connection refused"

    def close(self) -> None:
        self.closed += 1

    def roots(self) -> list[Any]:
        return [r.attributes["rayeval.episode.id"] for r in self.records if r.name.startswith("invoke_agent")]


def line(task: int, *, good: bool = True, **more: Any) -> Any:
    episode_id = f"task-{task:06d}__sample-000"
    return finished(completed(episode_id=episode_id) if good else failed(episode_id=episode_id), **more)


def test_all_failed_and_one_in_n_of_the_completed_are_exported() -> None:
    sink = Sink()
    started = TraceSender(context(), sink, one_in=4).start()
    good, bad = [line(i) for i in range(100)], [line(1000 + i, good=False) for i in range(20)]
    for trace in (*good, *bad):
        started.offer(trace)
    wanted = {t.episode_id for t in good if chosen(t.episode_id, 4)} | {t.episode_id for t in bad}
    counts = started.flush()
    assert set(sink.roots()) == wanted and len(sink.roots()) == len(wanted) and 30 < len(wanted) < 70
    assert counts == {
        "chosen": len(wanted),
        "exported": len(wanted),
        "waiting": 0,
        "dropped": 0,
        "dropped_by": {},
        "spans": len(sink.records),
    }
    started.end({"exit_code": 0, "done": 100})
    assert sink.records[-1].name == "invoke_workflow small" and sink.records[-1].error is None and sink.closed == 1
    assert started.take_notes() == []


@pytest.mark.parametrize(("one_in", "taken"), [(0, 0), (1, 1000), (10, 100)])
def test_the_choice_is_the_same_in_every_run(one_in: int, taken: int) -> None:
    ids = [f"task-{i:06d}__sample-000" for i in range(1000)]
    assert sum(chosen(i, one_in) for i in ids) == pytest.approx(taken, abs=0 if one_in < 2 else 40)


def test_known_choices_stay_what_they_are() -> None:
    assert [i for i in range(40) if chosen(f"task-{i:06d}__sample-000", 10)] == [0, 9, 15]


def test_a_full_queue_drops_counts_and_says_so_once() -> None:
    sink = Sink()
    trace = line(1, good=False)
    waiting = TraceSender(context(), sink, one_in=1, queue_bytes=3 * len(trace.line) + 10)  # not started: nothing is taken out
    began = time.monotonic()
    for _ in range(1000):
        waiting.offer(trace)
    assert time.monotonic() - began < 1.0
    counts = waiting.counts()
    assert (counts["chosen"], counts["waiting"], counts["dropped"], counts["dropped_by"]) == (1000, 3, 997, {"queue_full": 997})
    ((level, text),) = waiting.take_notes()
    assert level == "warning" and "queue" in text and waiting.take_notes() == []
    waiting.start()
    assert waiting.flush()["exported"] == 3
    waiting.end({})


def test_what_was_sent_makes_room_again() -> None:
    trace = line(1, good=False)
    started = TraceSender(context(), Sink(), one_in=1, queue_bytes=2 * len(trace.line)).start()
    for _ in range(3):
        started.offer(trace)
        started.offer(trace)
        until = time.monotonic() + 10
        while started.counts()["waiting"] and time.monotonic() < until:
            time.sleep(0.01)
    counts = started.flush()
    started.end({})
    assert (counts["exported"], counts["dropped"]) == (6, 0)


@pytest.mark.parametrize("failure", ["503", "raise"])
def test_a_collector_that_fails_costs_spans_and_one_warning(failure: str) -> None:
    started = TraceSender(context(), Sink(failure), one_in=1).start()
    for i in range(40):  # more than one batch
        started.offer(line(i))
    counts = started.flush()
    started.end({"exit_code": 0})
    assert (counts["exported"], counts["dropped"], counts["dropped_by"]) == (0, 40, {"not_sent": 40})
    ((level, text),) = started.take_notes()
    assert level == "warning" and text.startswith("tracing: spans do not reach http://collector:4318/v1/traces")


def test_one_that_hangs_is_waited_for_no_longer_than_the_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 0.6)
    sink = Sink()
    sink.gate.clear()
    started = TraceSender(context(), sink, one_in=1).start()
    for i in range(40):
        started.offer(line(i))
    began = time.monotonic()
    counts = started.flush()
    started.end({"exit_code": 0})
    took = time.monotonic() - began
    assert 0.5 < took < 1.5
    assert (counts["chosen"], counts["exported"], counts["waiting"], counts["dropped_by"]) == (40, 0, 0, {"not_sent": 40})
    ((_, text),) = started.take_notes()
    assert "did not take the last 40 episodes within 0.6 s (connection refused)" in text and sink.closed == 1
    sink.gate.set()  # what comes back afterwards counts no more
    started._thread.join(5)
    assert not started._thread.is_alive() and started.counts() == counts


def test_a_line_that_cannot_be_read_costs_itself_alone() -> None:
    sink = Sink()
    started = TraceSender(context(), sink, one_in=1).start()
    started.offer(line(1)._replace(line=b"{torn\n"))
    started.offer(line(2))
    counts = started.flush()
    started.end({})
    assert (counts["exported"], counts["dropped_by"]) == (1, {"unreadable": 1}) and sink.roots() == ["task-000002__sample-000"]


def test_the_end_tells_the_exit_code_and_a_second_one_nothing() -> None:
    sink = Sink()
    started = TraceSender(context(), sink, one_in=1).start()
    started.flush()
    for code in (5, 0):
        started.end({"exit_code": code, "reason": "the disk is full", "planned": 8, "done": 3, "failed": 1, "reused": 2})
    (run,) = sink.records
    assert run.error == "the disk is full" and run.attributes == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "small",
        "gen_ai.agent.name": "qwen-x",
        "rayeval.run.id": context().run_id,
        "rayeval.run.name": "small",
        "rayeval.run.invocation": 1,
        "rayeval.plan.fingerprint": "f" * 64,
        "rayeval.run.exit_code": 5,
        "rayeval.run.reason": "the disk is full",
        "rayeval.run.planned": 8,
        "rayeval.run.reused": 2,
        "rayeval.run.done": 3,
        "rayeval.run.failed": 1,
        "error.type": "exit_5",
    }


def test_it_takes_a_small_part_of_a_processor_while_the_run_lasts() -> None:
    """A burst of failures must not take the interpreter from the driver's loop."""
    started = TraceSender(context(), Sink(), one_in=1).start()
    for i in range(600):
        started.offer(line(i, good=False))
    own = time.thread_time()
    used, began = time.process_time(), time.monotonic()
    while time.monotonic() - began < 1.0:
        time.sleep(0.05)
    share = (time.process_time() - used - (time.thread_time() - own)) / (time.monotonic() - began)
    counts = started.counts()
    started.flush()
    started.end({})
    assert counts["exported"] > 0 and share < 0.3
