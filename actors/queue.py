"""The driver's one queue of jobs: lazily generated, refilled by retries, each job ending once.

Invariants:
* A job is in exactly one state: waiting (not yet generated, or in a retry list), out (dispatched), completed, failed, or left (drained).
* ``planned = reused + completed + failed + waiting + out + left`` at every moment.
* ``attempts`` bounds the attempts of one invocation; attempts lost with an actor or a server are counted apart, to ``LOST_LIMIT``.
* A job lost twice with its actor is a suspect: it waits apart, for an actor that runs nothing else.
* Nothing here awaits: every change is one synchronous step of the driver's loop.
Closing rule: the run is over when nothing waits and nothing is out.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from typing import NamedTuple

from rayeval.plan import Plan
from rayeval.schemas import EpisodeJob
from rayeval.store import ResumeIndex

LOST_LIMIT = 10
"""Attempts of one job that may be lost with their actors or servers in one invocation."""
SUSPECT_AFTER = 2
"""A job lost with its actor this often next runs alone."""
RETRY_BASE_S = 1.0
RETRY_CAP_S = 30.0


class JobState(IntEnum):
    """One byte a job."""

    WAITING = 0
    OUT = 1
    COMPLETED = 2
    FAILED = 3
    REUSED = 4
    """Completed by an earlier invocation."""
    LEFT_OUT = 5
    """Not part of this invocation (``--retry-failed`` runs only the failed ones; quarantined ones; cancelled by request)."""


class Ticket(NamedTuple):
    """A job with its place in the plan and the number of this attempt."""

    place: int
    job: EpisodeJob
    attempt: int


class JobQueue:
    """Jobs of one plan, minus what is done."""

    def __init__(
        self,
        plan: Plan,
        index: ResumeIndex,
        *,
        attempts: int,
        longest_first: bool,
        only_failed: bool = False,
        quarantined: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._attempts = attempts
        self._clock = clock
        self._state = bytearray(plan.job_count)
        self._last_attempt: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._retries: list[tuple[float, int]] = []
        self._killed: dict[int, int] = {}
        self._suspects: deque[int] = deque()
        self.counts = dict.fromkeys(JobState, 0)
        self.cancelled = 0
        """Jobs left out by request since the start."""
        self.retries_given = 0
        for episode_id in index.completed:
            place = plan.index_of(episode_id)
            if place is not None:
                self._state[place] = JobState.REUSED
        failed: set[int] = set()
        for episode_id in index.failed:
            place = plan.index_of(episode_id)
            if place is not None and self._state[place] == JobState.WAITING:
                failed.add(place)
        self.quarantined = 0
        for episode_id in quarantined:
            place = plan.index_of(episode_id)
            if place is not None and self._state[place] == JobState.WAITING:
                self._state[place] = JobState.LEFT_OUT
                self.quarantined += 1
        for episode_id, number in index.attempts.items():
            place = plan.index_of(episode_id)
            if place is not None:
                self._last_attempt[place] = number
        if only_failed:
            for place in range(plan.job_count):
                if self._state[place] == JobState.WAITING and place not in failed:
                    self._state[place] = JobState.LEFT_OUT
        self.failed_before = sum(self._state[place] == JobState.WAITING for place in failed)
        for state in JobState:
            self.counts[state] = self._state.count(state)
        self._fresh = self._in_order(index if longest_first else None)
        self._fresh_left = self.counts[JobState.WAITING]

    @property
    def waiting(self) -> int:
        """Jobs that may still be dispatched, those whose retry delay runs included."""
        return self.counts[JobState.WAITING]

    @property
    def out(self) -> int:
        """Jobs dispatched and not ended."""
        return self.counts[JobState.OUT]

    @property
    def over(self) -> bool:
        """Whether every job of this invocation has ended."""
        return self.waiting == 0 and self.out == 0

    def ready(self) -> int:
        """Jobs that ``take`` would hand out now."""
        now = self._clock()
        return self._fresh_left + sum(1 for at, _ in self._retries if at <= now)

    def take(self, limit: int) -> list[Ticket]:
        """Up to ``limit`` jobs, matured retries first; each becomes out."""
        tickets: list[Ticket] = []
        now = self._clock()
        while len(tickets) < limit and self._retries and self._retries[0][0] <= now:
            self._hand_out(heapq.heappop(self._retries)[1], tickets)
        while len(tickets) < limit and self._fresh_left:
            self._fresh_left -= 1
            self._hand_out(next(self._fresh), tickets)
        return tickets

    def _hand_out(self, place: int, tickets: list[Ticket]) -> None:
        if self._state[place] == JobState.WAITING:  # else it was left out while it waited
            tickets.append(self._ticket(place))

    def leave_out(self, episode_id: str) -> bool:
        """Drop a waiting job from this invocation. -> whether it was waiting."""
        place = self._plan.index_of(episode_id)
        if place is None or self._state[place] != JobState.WAITING:
            return False
        self._move(place, JobState.WAITING, JobState.LEFT_OUT)
        self.cancelled += 1
        return True

    def leave_out_ticket(self, ticket: Ticket) -> None:
        """Drop a dispatched job that was cancelled by request."""
        self._last_attempt[ticket.place] = ticket.attempt - 1
        self._move(ticket.place, JobState.OUT, JobState.LEFT_OUT)
        self.cancelled += 1

    def complete(self, ticket: Ticket) -> None:
        """The attempt's trace is completed."""
        self._move(ticket.place, JobState.OUT, JobState.COMPLETED)

    def fail(self, ticket: Ticket, retryable: bool) -> bool:
        """The attempt failed. -> whether the job will be tried again."""
        used = self._used.get(ticket.place, 0) + 1
        self._used[ticket.place] = used
        if retryable and used < self._attempts:
            self._again(ticket, min(RETRY_CAP_S, RETRY_BASE_S * 2 ** (used - 1)))
            return True
        self._move(ticket.place, JobState.OUT, JobState.FAILED)
        return False

    def lose(self, ticket: Ticket, *, with_actor: bool, blameless: bool = False) -> bool:
        """The attempt was lost with its actor, or with its environment server. -> whether the job will be tried again, with the same
        seed: at once after an actor, after a growing delay when a server failed. ``blameless``: what ended the actor was no job of its."""
        lost = self._lost.get(ticket.place, 0) + 1
        self._lost[ticket.place] = lost
        if lost >= LOST_LIMIT:
            self._move(ticket.place, JobState.OUT, JobState.FAILED)
            return False
        if not with_actor:
            self._again(ticket, min(RETRY_CAP_S, RETRY_BASE_S * 2 ** (lost - 1)))
            return True
        killed = self._killed.get(ticket.place, 0) + (not blameless)
        self._killed[ticket.place] = killed
        if killed < SUSPECT_AFTER:
            self._again(ticket, 0.0)
        else:
            self._move(ticket.place, JobState.OUT, JobState.WAITING)
            self._suspects.append(ticket.place)
            self.retries_given += 1
        return True

    @property
    def suspects(self) -> int:
        """Jobs that wait for an actor of their own."""
        return sum(self._state[place] == JobState.WAITING for place in self._suspects)

    def take_suspect(self) -> Ticket | None:
        """One suspect; it becomes out."""
        tickets: list[Ticket] = []
        while self._suspects and not tickets:
            self._hand_out(self._suspects.popleft(), tickets)
        return tickets[0] if tickets else None

    def quarantine(self, ticket: Ticket) -> None:
        """The job killed an actor that ran nothing else: it has failed for good, and over resumes."""
        self._move(ticket.place, JobState.OUT, JobState.FAILED)
        self.quarantined += 1

    def give_back(self, ticket: Ticket) -> None:
        """The attempt never ended and left no line (drain, cancellation): the job waits again under the same attempt number."""
        self._last_attempt[ticket.place] = ticket.attempt - 1
        if self._killed.get(ticket.place, 0) >= SUSPECT_AFTER:
            self._move(ticket.place, JobState.OUT, JobState.WAITING)
            self._suspects.append(ticket.place)
        else:
            self._again(ticket, 0.0, counted=False)

    def _again(self, ticket: Ticket, delay_s: float, counted: bool = True) -> None:
        self._move(ticket.place, JobState.OUT, JobState.WAITING)
        heapq.heappush(self._retries, (self._clock() + delay_s, ticket.place))
        self.retries_given += counted

    def _ticket(self, index: int) -> Ticket:
        self._move(index, JobState.WAITING, JobState.OUT)
        attempt = self._last_attempt.get(index, 0) + 1
        self._last_attempt[index] = attempt
        return Ticket(index, self._plan.job_at(index), attempt)

    def _move(self, index: int, old: JobState, new: JobState) -> None:
        if self._state[index] != old:
            raise AssertionError(f"job {index} is {JobState(self._state[index]).name}, not {old.name}")
        self._state[index] = new
        self.counts[old] -= 1
        self.counts[new] += 1

    def _in_order(self, index: ResumeIndex | None) -> Iterator[int]:
        """Places still waiting: longest expected first when earlier traces of their tasks tell (length of the line stands for length of
        the episode), else in the plan's order. States are read when a place is reached."""
        places: Iterator[int] = iter(range(self._plan.job_count))
        if index is not None and index.lengths:
            known = index.lengths
            typical = sum(known.values()) / len(known)
            plan = self._plan
            places = iter(sorted(range(plan.job_count), key=lambda i: -known.get(plan.task_ids[i // plan.repeats], typical)))
        waiting_at_start = bytes(self._state)
        return (i for i in places if waiting_at_start[i] == JobState.WAITING)
