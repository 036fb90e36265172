"""From replies to durable traces: what the driver commits and what it counts.

Invariants:
* A trace is committed only while its ticket is out, so no line of an episode follows its completed line.
* ``done`` and ``failed`` move only when the line and its fsync are behind us; the queue's own state moves when the line is handed over.
* A failed write ends the run: ``on_fatal`` is called once and nothing is committed after it.
Closing rule: ``settled()`` returns once every line handed over is durable or the log has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from actors.queue import JobQueue, Ticket
from rayeval.costs import PRICED
from rayeval.exceptions import StoreWriteError
from rayeval.figures import figures_of
from rayeval.private_fields import without_solution
from rayeval.schemas import (
    TRACE_SCHEMA,
    EnvironmentIdentity,
    EpisodeStatus,
    ErrorKind,
    FinishedTrace,
    JsonObject,
    Receipt,
)
from rayeval.store import TraceLog

_SETTLE_S = 60.0
_MAX_OPEN_BYTES = 64_000_000
"""Beyond this much not yet durable, finished traces stay in the actors."""
_SERVER_LOST = frozenset({ErrorKind.LEASE_LOST, ErrorKind.ENVIRONMENT_UNAVAILABLE, ErrorKind.RESET_TIMEOUT, ErrorKind.ENVIRONMENT_CHANGED})
"""Failures of the environment server rather than of the attempt: counted apart, as attempts lost with an actor are."""

_OUTLIVED = "it outlived every deadline of its own and was cancelled from outside"


class Ledger:
    """Commits traces and keeps the live figures of this invocation."""

    def __init__(
        self,
        log: TraceLog,
        queue: JobQueue,
        provenance: JsonObject,
        pinned: EnvironmentIdentity,
        *,
        on_pinned: Callable[[EnvironmentIdentity], None],
        on_changed: Callable[[str, str], None],
        on_final_failure: Callable[[str], None],
        on_fatal: Callable[[BaseException], None],
        on_note: Callable[[str, str], None] = lambda level, text: None,
    ) -> None:
        self._log = log
        self._queue = queue
        self._provenance = provenance
        self.pinned = pinned
        self._on_pinned, self._on_changed = on_pinned, on_changed
        self._on_final_failure, self._on_fatal, self._on_note = on_final_failure, on_fatal, on_note
        self._open: set[asyncio.Future[Any]] = set()
        self.fatal: BaseException | None = None
        self.done = 0
        """Episodes completed and durable in this invocation."""
        self.failed = 0
        """Episodes failed for good, their last line durable."""
        self.retries = 0
        self.lost = 0
        self.late = 0
        """Results dropped because their actor had been declared dead."""
        self._room = asyncio.Event()
        self.open_bytes = 0
        """Bytes handed to the log and not durable yet."""
        self.reward_sum = 0.0
        self.reward_n = 0
        self.totals: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """By kind, episodes failed for good."""
        self.retried: Counter[str] = Counter()
        """By kind, attempts that failed or were lost and are made again."""
        self.samples: dict[str, str] = {}
        """For each kind of failure the words of the first one, in one line."""
        self.on_counted: list[Callable[[FinishedTrace], None]] = []
        """Called for each trace once it is durable and counted."""
        self._deaf: set[str] = set()

    def commit(self, results: Sequence[tuple[Ticket, FinishedTrace]]) -> None:
        """Hand a batch of finished attempts to the log."""
        if self.fatal is not None:
            self.late += len(results)
            self._unwritten(ticket for ticket, _ in results)
            return
        traces: list[FinishedTrace] = []
        final_failures: list[str] = []
        for ticket, trace in results:
            trace = self._checked(ticket, trace)
            if trace.status == EpisodeStatus.COMPLETED:
                self._queue.complete(ticket)
            elif self._again(ticket, trace):
                self.retries += 1
                self.retried[str(trace.error_kind)] += 1
            else:
                final_failures.append(str(trace.error_kind))
            traces.append(trace)
        self._hand_over(traces, final_failures)

    def commit_lost(self, tickets: Sequence[Ticket], cause: str, name: str = "ActorLost", *, blameless: bool = False) -> None:
        """Write a line for each attempt that was lost with its actor. ``blameless``: no job of its ended it."""
        if self.fatal is not None:
            self._unwritten(tickets)
        if self.fatal is not None or not tickets:
            return
        traces: list[FinishedTrace] = []
        final_failures: list[str] = []
        for ticket in tickets:
            self.lost += 1
            if self._queue.lose(ticket, with_actor=True, blameless=blameless):
                self.retried[ErrorKind.LOST.value] += 1
            else:
                final_failures.append(ErrorKind.LOST)
            traces.append(self._failed_line(ticket, "lost", ErrorKind.LOST, name, cause, retryable=True))
        self._hand_over(traces, final_failures)

    def commit_quarantined(self, ticket: Ticket, cause: str) -> None:
        """Write the line that puts a job into quarantine."""
        if self.fatal is not None:
            self._unwritten([ticket])
            return
        self.lost += 1
        self._queue.quarantine(ticket)
        message = f"in an actor that ran nothing else: {cause}"
        trace = self._failed_line(ticket, "lost", ErrorKind.QUARANTINED, "Quarantined", message, retryable=False)
        self._hand_over([trace], [ErrorKind.QUARANTINED])

    def commit_overdue(self, tickets: Sequence[Ticket], *, alone: bool) -> None:
        """Write a line for each attempt that had to be cancelled from outside: as bad as the loss of its actor, which the next one may
        be. ``alone``: it had an actor of its own, and goes into quarantine."""
        for ticket in tickets:
            if alone:
                self.commit_quarantined(ticket, _OUTLIVED)
            else:
                self.commit_lost([ticket], _OUTLIVED, "Overdue")

    def _unwritten(self, tickets: Iterable[Ticket]) -> None:
        """Attempts that ended after the log had: no line tells of them, so their jobs wait as if they had never been out."""
        for ticket in tickets:
            self._queue.give_back(ticket)

    def _again(self, ticket: Ticket, trace: FinishedTrace) -> bool:
        """-> whether the job is tried again. A server that went away is nobody's attempt."""
        if trace.retryable and trace.error_kind in _SERVER_LOST:
            return self._queue.lose(ticket, with_actor=False)
        return self._queue.fail(ticket, trace.retryable)

    async def settled(self) -> None:
        """Wait until everything handed over is durable or has failed."""
        while self._open and self.fatal is None:
            ended, _ = await asyncio.wait(self._open, timeout=_SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                self._end(StoreWriteError(f"a write of traces hangs for {_SETTLE_S:.0f} s: check the disk and run the same command again"))

    async def room(self) -> None:
        """Wait while more is handed over and not durable than the driver should hold."""
        while self.open_bytes > _MAX_OPEN_BYTES and self.fatal is None:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await self._room.wait()
                    continue
            self._end(StoreWriteError(f"nothing became durable for {_SETTLE_S:g} s: the disk of the run directory does not answer"))

    def _end(self, error: BaseException) -> None:
        if self.fatal is None:
            self.fatal = error
            self._on_fatal(error)

    def _hand_over(self, traces: Sequence[FinishedTrace], final_failures: Sequence[str]) -> None:
        size = sum(len(t.line) for t in traces)
        self.open_bytes += size
        future = self._log.append(traces)
        self._open.add(future)

        def durable(done: asyncio.Future[list[Receipt]]) -> None:
            self._open.discard(done)
            self.open_bytes -= size
            self._room.set()
            error = done.exception() if not done.cancelled() else asyncio.CancelledError()
            if error is not None:
                self._end(error)
                return
            for trace in traces:
                self._count(trace)
                if trace.status == EpisodeStatus.FAILED:
                    self._tell_first(trace)
            for kind in final_failures:
                self.failed += 1
                self.failures[str(kind)] += 1
                self._on_final_failure(kind)

        future.add_done_callback(durable)

    def _tell_first(self, trace: FinishedTrace) -> None:
        """One line for the first failure of each kind, so that a run that only fails says why."""
        kind = str(trace.error_kind)
        if kind in self.samples:
            return
        error = orjson.loads(trace.line).get("error") or {}
        words = without_solution(" ".join(str(error.get("message")).split()))[:300]
        self.samples[kind] = words
        if kind == ErrorKind.LOST:
            return  # the loss of an actor is told by the pool
        self._on_note(
            "warning", f"first failure of kind {kind}: {trace.episode_id}, attempt {trace.attempt}, {error.get('stage')}: {words}"
        )

    def _count(self, trace: FinishedTrace) -> None:
        figures = trace.figures
        for name in ("steps", "actions", "invalid_actions", "protocol_errors"):
            self.totals[name] += int(figures.get(name) or 0)
        tokens = figures.get("tokens") or {}
        self.totals["tokens"] += int(tokens.get("total_tokens") or 0)
        for name in PRICED:
            self.totals[name] += int(tokens.get(name, figures.get(name)) or 0)
        for cause, n in (figures.get("model_retries") or {}).items():
            self.totals[f"model_retry.{cause}"] += n
        if trace.status == EpisodeStatus.COMPLETED:
            self.done += 1
            reward = figures.get("reward")
            if isinstance(reward, int | float):
                self.reward_sum += reward
                self.reward_n += 1
        for counted in self.on_counted:
            try:
                counted(trace)
            except Exception as error:  # a listener's defect is told once, and costs no count
                name = getattr(counted, "__qualname__", type(counted).__name__)
                if name not in self._deaf:
                    self._deaf.add(name)
                    self._on_note("error", f"{name} failed over {trace.episode_id} and misses what it failed over: {described(error)}")

    def _checked(self, ticket: Ticket, trace: FinishedTrace) -> FinishedTrace:
        """Hold a completed trace to the environment's identity: the first one pins what is not pinned yet."""
        if trace.error_kind == ErrorKind.ENVIRONMENT_CHANGED:
            self._on_changed(trace.server or "", "an attempt met another version of the environment")
            return trace
        if trace.status != EpisodeStatus.COMPLETED:
            return trace
        difference = trace.identity.differs_from(self.pinned)
        if difference is not None:
            self._on_changed(trace.server or "", difference)
            return self._failed_line(
                ticket,
                "evaluator_boundary",
                ErrorKind.ENVIRONMENT_CHANGED,
                "EnvironmentChanged",
                difference,
                retryable=True,
            )
        merged = self.pinned.merged(trace.identity)
        if merged != self.pinned:
            self.pinned = merged
            self._on_pinned(merged)
        return trace

    def _failed_line(self, ticket: Ticket, stage: str, kind: ErrorKind, name: str, message: str, *, retryable: bool) -> FinishedTrace:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        job = ticket.job
        error: JsonObject = {"stage": stage, "kind": kind, "type": name, "message": message, "retryable": retryable}
        if kind == ErrorKind.QUARANTINED:
            error["quarantined"] = True
        trace: dict[str, Any] = {
            "schema_version": TRACE_SCHEMA,
            "episode_id": job.episode_id,
            "attempt": ticket.attempt,
            "status": EpisodeStatus.FAILED,
            "job": job._asdict(),
            "provenance": self._provenance,
            "started_at": now,
            "ended_at": now,
            "duration_ms": 0.0,
            "reset": None,
            "selected_skills": [],
            "conversation": [],
            "steps": [],
            "final": None,
            "error": error,
        }
        figures: Mapping[str, Any] = figures_of(trace)
        line = orjson.dumps(trace, option=orjson.OPT_APPEND_NEWLINE)
        return FinishedTrace(job.episode_id, ticket.attempt, EpisodeStatus.FAILED, line, kind, retryable, figures)


def described(error: BaseException) -> str:
    """The traceback of an error that is nobody's input."""
    return "".join(traceback.format_exception(error)).rstrip()
