"""Durable lines to spans, beside the run and never in its way.

Invariants:
* ``offer`` is called by the driver's loop for lines that are durable. It chooses (every failed line; of the completed ones each whose
  episode id falls to it, the same in every run), puts the line into a bounded queue, and does nothing else. A full queue drops and counts.
* One thread parses, builds and sends. It takes at most a tenth of one CPU (it sleeps nine times as long as it worked), for it shares the
  interpreter with the driver's loop; what it cannot keep up with is dropped from the queue.
* A collector that does not answer costs spans and one warning, never the run: nothing here raises into it.
* Every chosen line is counted once more when its fate is known: exported, or dropped with the reason.
Closing rule: ``flush`` and ``end`` together take at most ``CLOSE_S`` seconds; what is not sent by then counts as dropped. The thread is
a daemon: one that hangs in a request keeps no process alive.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from rayeval.otel.records import RunContext, SpanRecord, run_span
from rayeval.otel.spans import episode_spans
from rayeval.schemas import EpisodeStatus, FinishedTrace, JsonObject

if TYPE_CHECKING:
    from rayeval.otel.sink import SpanSink

CLOSE_S = 5.0
QUEUE_BYTES = 32_000_000
QUEUE_LINES = 4_096
_BATCH_BYTES = 2_000_000
_BATCH_LINES = 16
_LINGER_S = 0.25
_REST = 9.0
"""Sleep after a batch, in units of the CPU time it took."""


def chosen(episode_id: str, one_in: int) -> bool:
    """Whether a completed episode is exported. ``one_in``: 1 takes all, 0 none. Depends on the episode id alone, so runs over the same
    tasks export the same episodes."""
    if one_in <= 1:
        return one_in == 1
    return int.from_bytes(hashlib.sha256(episode_id.encode("utf-8", "surrogatepass")).digest()[:8]) % one_in == 0


class TraceSender:
    """Exports the chosen lines of one invocation."""

    def __init__(
        self,
        context: RunContext,
        sink: SpanSink,
        *,
        one_in: int,
        queue_bytes: int = QUEUE_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.context = context
        self._sink, self._one_in, self._most_bytes, self._clock = sink, one_in, queue_bytes, clock
        self._started_ns = clock()
        self._left_s = CLOSE_S
        self._guard = threading.Lock()
        self._queue: deque[FinishedTrace] = deque()
        self._bytes = 0
        self._sending = 0
        """Lines taken from the queue whose fate is open."""
        self._last: list[SpanRecord] = []
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._idle = threading.Event()
        self._notes: list[tuple[str, str]] = []
        self._warned = False
        self._chosen = self._exported = self._spans = 0
        self._dropped = {"queue_full": 0, "not_sent": 0, "unreadable": 0}
        self._thread = threading.Thread(target=self._work, name="rayeval-otel", daemon=True)

    def start(self) -> TraceSender:
        """Begin to send. -> itself."""
        self._thread.start()
        return self

    def offer(self, trace: FinishedTrace) -> None:
        """Take a durable line, or not. Never waits and never raises."""
        if trace.status == EpisodeStatus.COMPLETED and not chosen(trace.episode_id, self._one_in):
            return
        with self._guard:
            self._chosen += 1
            if self._bytes + len(trace.line) > self._most_bytes or len(self._queue) >= QUEUE_LINES:
                self._dropped["queue_full"] += 1
                first = self._dropped["queue_full"] == 1
            else:
                self._queue.append(trace)
                self._bytes += len(trace.line)
                first = False
        if first:
            self._note(
                "warning", "tracing: the queue of episodes to export is full; some are dropped, the run goes on (tracing.dropped counts)"
            )

    def take_notes(self) -> list[tuple[str, str]]:
        """What there is to tell since the last call: (level, text). The thread itself tells nobody."""
        with self._guard:
            notes, self._notes = self._notes, []
        return notes

    def counts(self) -> JsonObject:
        """For status and summary: episodes chosen, exported, waiting, dropped (by reason), and spans sent."""
        with self._guard:
            waiting = len(self._queue) + self._sending
            return {
                "chosen": self._chosen,
                "exported": self._exported,
                "waiting": waiting,
                "dropped": sum(self._dropped.values()),
                "dropped_by": {name: n for name, n in self._dropped.items() if n},
                "spans": self._spans,
            }

    def flush(self) -> JsonObject:
        """Send what waits, as far as the time allows; -> the counts, in which nothing waits any more."""
        self._hurry.set()
        began = time.monotonic()
        self._idle.wait(self._left_s)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))
        if not self._idle.is_set():
            self._give_up()
        return self.counts()

    def end(self, status: Mapping[str, Any]) -> None:
        """Send the run's own span, made from its last status, and close. Nothing is offered after this; a second call does nothing."""
        if self._closing.is_set():
            return
        with self._guard:
            self._last = [run_span(self.context, self._started_ns, self._clock(), status)]
        self._hurry.set()
        self._closing.set()
        self._thread.join(self._left_s)
        self._left_s = 0.0
        if self._thread.is_alive():
            self._give_up()
        self._sink.close()

    # ---- the thread ---------------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        pause = _LINGER_S
        while True:
            self._hurry.wait(pause)
            closing = self._closing.is_set()  # before the queue is looked at: what came earlier is sent
            used = time.thread_time()
            batch = self._take()
            if batch:
                self._send(batch)
            elif closing:
                if self._last:
                    self._hand_over(self._last)
                return
            elif self._hurry.is_set():
                self._idle.set()
                self._closing.wait(_LINGER_S)
            pause = max(_LINGER_S, _REST * (time.thread_time() - used))

    def _take(self) -> list[FinishedTrace]:
        batch: list[FinishedTrace] = []
        size = 0
        with self._guard:
            while self._queue and len(batch) < _BATCH_LINES and (not batch or size + len(self._queue[0].line) <= _BATCH_BYTES):
                batch.append(self._queue.popleft())
                size += len(batch[-1].line)
            self._bytes -= size
            self._sending = len(batch)
        return batch

    def _send(self, batch: list[FinishedTrace]) -> None:
        records: list[SpanRecord] = []
        unreadable = 0
        for trace in batch:
            try:
                records += episode_spans(orjson.loads(trace.line), self.context, self._clock(), trace.figures.get("environment_s"))
            except Exception as error:  # a defect of ours costs this line's spans, and is told
                unreadable += 1
                self._warn(f"tracing: {trace.episode_id} could not be made into spans ({type(error).__name__}: {error})")
        sent = self._hand_over(records) if records else True
        with self._guard:
            if not self._sending:
                return  # given up meanwhile: counted already
            self._sending = 0
            self._dropped["unreadable"] += unreadable
            if sent:
                self._exported += len(batch) - unreadable
                self._spans += len(records)
            else:
                self._dropped["not_sent"] += len(batch) - unreadable

    def _hand_over(self, records: list[SpanRecord]) -> bool:
        try:
            failure = self._sink.send(records)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            self._warn(f"tracing: spans do not reach {self._sink.target}; the run goes on without them ({self.context.message(failure)})")
        return failure is None

    def _give_up(self) -> None:
        """The time is over: what is on its way or waits will not be sent."""
        with self._guard:
            left = len(self._queue) + self._sending
            self._queue.clear()
            self._bytes = self._sending = 0
            self._dropped["not_sent"] += left
        if left:
            why = self.context.message(self._sink.heard() or "no answer")
            self._warn(f"tracing: {self._sink.target} did not take the last {left} episodes within {CLOSE_S:g} s ({why})")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._note("warning", text)

    def _note(self, level: str, text: str) -> None:
        with self._guard:
            self._notes.append((level, text))
