"""``actors: auto``: one more actor while an actor is busy and a CPU is free.

An actor is one event loop on one core. What keeps it over ``BUSY`` of that core makes every episode in it late, whatever the model servers
could give. One more actor shares the episodes; it is given its slots when it joins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from actors.member import MemberState

if TYPE_CHECKING:
    from actors.pool import RolloutPool

BUSY = 0.8
BUSY_FOR_S = 10.0
AT_MOST_EVERY_S = 15.0
_ASK_S = 10.0
"""Deadline of the question for free CPUs."""


class Scaling:
    """Bears actors. ``free_cpus``: CPUs of the cluster that nothing has taken, 0 when none; a TimeoutError is no answer. ``per_actor``:
    with a number of slots for each actor that the pool's slots have reached, one more is wanted too."""

    def __init__(self, free_cpus: Callable[[], Awaitable[int]], *, per_actor: int | None = None, busy_for_s: float = BUSY_FOR_S) -> None:
        self._free_cpus, self._per_actor, self._busy_for_s = free_cpus, per_actor, busy_for_s
        self._busy_since: dict[str, float] = {}
        self._next = 0.0
        self._joining: str | None = None

    def look(self, pool: RolloutPool, now: float) -> None:
        if self._joining is not None:
            self._look_at_the_new_one(pool)
            return
        wanted = self._why(pool, now)
        if wanted is None or now < self._next or pool.phase.draining or pool.phase.paused or pool.phase.closing:
            return
        self._next = now + AT_MOST_EVERY_S
        pool.start(self._grow(pool, wanted), "scaling")

    def _why(self, pool: RolloutPool, now: float) -> str | None:
        """Why one more actor would help; None while it would not."""
        alive = [m for m in pool.members.values() if m.alive and not m.suspect and m.last is not None]
        busy = {m.actor_id: m.last.cpu_share for m in alive if m.last and m.last.cpu_share is not None and m.last.cpu_share > BUSY}
        self._busy_since = {actor_id: self._busy_since.get(actor_id, now) for actor_id in busy}
        if not alive or pool.queue.waiting <= sum(m.last.in_flight for m in alive if m.last):
            return None  # what runs and what little is left would not be shared out any more
        if self._per_actor is not None and pool.slots >= self._per_actor * len(alive):
            return f"{len(alive)} actors run {pool.slots} episodes"
        longest = min(self._busy_since.values(), default=now)
        if now - longest < self._busy_for_s:
            return None
        return f"an actor has used more than {BUSY:.0%} of a core for {now - longest:.0f} s"

    async def _grow(self, pool: RolloutPool, why: str) -> None:
        try:
            async with asyncio.timeout(_ASK_S):
                free = await self._free_cpus()
        except TimeoutError:
            return  # a cluster that is slow to say what is free is asked again later
        if free < 1 or pool.phase.draining or pool.phase.closing:
            return
        self._joining = pool.add_actor()
        self._busy_since.clear()
        pool.note("info", f"one more actor: {why}, and {free} CPUs are free")

    def _look_at_the_new_one(self, pool: RolloutPool) -> None:
        """Deal the slots anew once it is there; forget it when it could not be placed."""
        member = pool.members.get(self._joining or "")
        if member is not None and member.state == MemberState.STARTING:
            return
        if member is not None and member.alive:
            pool.set_slots(pool.slots)
        self._joining = None
        self._next = time.monotonic() + AT_MOST_EVERY_S
