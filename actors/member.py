"""One actor as the driver sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum

from actors.handles import ActorHandle
from actors.health import Vitals
from actors.messages import ActorInfo, ActorSpec, ActorView, Reply
from actors.queue import Ticket
from rayeval.schemas import EnvironmentIdentity, Lease


class MemberState(StrEnum):
    """Where an actor stands."""

    STARTING = "starting"
    """Asked for; not placed yet."""
    WORKING = "working"
    SLOW = "slow"
    """Its work loop is late: it keeps what it has and gets no new jobs."""
    DEAD = "dead"
    """Declared dead. It may still be alive; its results are dropped, its slots stay taken until it is fenced."""
    ENDED = "ended"
    """Stopped in good order, or fenced and cleared."""


@dataclass(slots=True)
class Member:
    """State of one actor. Changed only in the driver's loop."""

    spec: ActorSpec
    handle: ActorHandle
    state: MemberState = MemberState.STARTING
    info: ActorInfo | None = None
    vitals: Vitals | None = None
    asked_at: float = field(default_factory=time.monotonic)
    """When it was asked for, by the driver's monotonic clock."""
    died_at: float | None = None
    """When it was declared dead, by the driver's monotonic clock."""
    jobs: dict[str, tuple[Ticket, str]] = field(default_factory=dict)
    """Dispatched and not ended: episode id -> (ticket, model endpoint)."""
    held: dict[tuple[str, str], Lease] = field(default_factory=dict)
    """Leases it is known to hold, by server and lease id."""
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    orders: int = 0
    acknowledged: int = 0
    """Replies up to this number have been taken."""
    ahead: set[int] = field(default_factory=set)
    """Numbers of replies taken beyond the first gap."""
    last: Reply | None = None
    view: ActorView | None = None
    """The newest that it has told."""
    view_at: float = 0.0
    """Monotonic, when it came."""
    lag_s: float = 0.0
    """Largest delay of its loop over the replies since the last status."""
    told_give_back: bool = False
    told_cancel: bool = False
    told_pinned: EnvironmentIdentity | None = None
    suspect: bool = False
    """Runs one suspect job at a time and nothing else."""
    extra: bool = False
    """Added to a run that can go on without it."""
    converted: bool = False
    """A working actor that stands in for one of its own."""
    slots_wanted: int | None = None
    """New number of slots to tell it of."""
    slots_now: int | None = None
    """Slots it was told of last, when they were changed."""
    told_pauses: dict[str, float] = field(default_factory=dict)
    cancel_wanted: set[str] = field(default_factory=set)

    @property
    def actor_id(self) -> str:
        return self.spec.actor_id

    @property
    def slots(self) -> int:
        if self.slots_now is not None:
            return self.slots_now
        return self.info.slots if self.info is not None else self.spec.slots

    @property
    def alive(self) -> bool:
        """Whether it is given orders."""
        return self.state in (MemberState.WORKING, MemberState.SLOW)

    def took(self, number: int) -> bool:
        """Mark a reply as taken. -> False when it had been taken before."""
        if number <= self.acknowledged or number in self.ahead:
            return False
        self.ahead.add(number)
        while self.acknowledged + 1 in self.ahead:
            self.acknowledged += 1
            self.ahead.discard(self.acknowledged)
        return True
