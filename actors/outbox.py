"""What an actor has to say: finished traces, lease changes, returned jobs, in numbered replies.

Invariants:
* A trace is in exactly one reply; a reply keeps its number and content until the driver acknowledges it.
* ``take`` is synchronous: nothing can be added between reading the content and numbering the reply.
* A reply is due ``flush_s`` after the first trace, ``lease_flush_s`` after the first lease change, at once at ``FULL_BYTES``.
Closing rule: ``take`` may be called at any time, also after the last trace; an unacknowledged reply is lost only with the process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from actors.messages import LEASE_FLUSH_S, LeaseChange, Record, Reply
from rayeval.schemas import FinishedTrace, Lease

FULL_BYTES = 1_000_000
"""A reply of this size leaves at once."""


class Outbox:
    """Collects, numbers and remembers replies. Lives in the work loop; not thread-safe."""

    def __init__(self, on_due: Callable[[], None] = lambda: None) -> None:
        self.is_due = False
        self._on_due = on_due
        self.flush_s = 0.05
        self.lease_flush_s = LEASE_FLUSH_S
        self._records: list[Record] = []
        self._lines: list[bytes] = []
        self._bytes = 0
        self._leases: list[LeaseChange] = []
        self._returned: list[str] = []
        self._overdue: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0
        self._unacknowledged: deque[Reply] = deque()

    def add_trace(self, trace: FinishedTrace) -> None:
        """Queue a finished trace."""
        self._records.append(
            Record(
                trace.episode_id,
                trace.attempt,
                trace.status,
                trace.error_kind,
                trace.retryable,
                dict(trace.figures),
                trace.identity,
                trace.server or "",
            )
        )
        self._lines.append(trace.line)
        self._bytes += len(trace.line)
        if self._bytes >= FULL_BYTES:
            self._become_due()
        else:
            self._due_in(self.flush_s)

    def add_lease(self, event: str, lease: Lease) -> None:
        """Queue a lease change."""
        self._leases.append(LeaseChange(event, *lease))
        self._due_in(self.lease_flush_s if event == "held" else self.flush_s)

    def add_returned(self, episode_id: str, *, overdue: bool = False) -> None:
        """Queue a job that is given back unfinished; ``overdue``: because it outlived its deadlines."""
        self._returned.append(episode_id)
        if overdue:
            self._overdue.append(episode_id)
        self._due_in(self.lease_flush_s)

    def acknowledge(self, number: int) -> None:
        """Forget replies up to ``number``."""
        while self._unacknowledged and self._unacknowledged[0].number <= number:
            self._unacknowledged.popleft()

    def kept(self, after: int) -> list[Reply]:
        """Replies after ``after`` that were sent and not acknowledged, oldest first."""
        return [r for r in self._unacknowledged if r.number > after]

    def take(self, order: int) -> Reply:
        """Number and hand out what there is (also nothing)."""
        self._number += 1
        reply = Reply(
            number=self._number,
            order=order,
            records=self._records,
            lines=self._lines,
            leases=self._leases,
            returned=self._returned,
            overdue=self._overdue,
        )
        self._records, self._lines, self._leases, self._returned, self._overdue, self._bytes = [], [], [], [], [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_due = False
        self._unacknowledged.append(reply)
        return reply

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not (self._records or self._leases or self._returned)

    def _due_in(self, delay_s: float) -> None:
        if self.is_due:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._become_due)

    def _become_due(self) -> None:
        self.is_due = True
        self._on_due()
