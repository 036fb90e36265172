"""What watches over a running pool and steers it: each has one synchronous ``look``, called by the pool's supervision about four times a
second, and acts only through the pool's public methods.

Shipped here: ``Admission`` (how many slots of each server are this run's, and stalls) and ``Outages`` (nothing answers at all).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from actors.recovery import living_capacities
from rayeval.schemas import ExitCode

if TYPE_CHECKING:
    from actors.pool import RolloutPool

ASK_EVERY_S = 10.0
_LOOK_AGAIN_S = 2.0
_REPORT_LAG_S = 0.1
"""A lease that a server counts is known here about so much later."""


class Governor(Protocol):
    """One concern of a running pool."""

    def look(self, pool: RolloutPool, now: float) -> None:
        """``now``: ``time.monotonic()``. Must not block; long work goes through ``pool.start``."""
        ...


class Admission:
    """Slots of each environment server that this run may use: min(slots, free + ours), and never more than a ceiling set by others.

    Looked at again every ``ASK_EVERY_S`` while a reset waits or slots are short. A run in which no reset is answered for
    ``stall_timeout_s`` drains.
    """

    def __init__(self, observed: dict[str, int]) -> None:
        self._observed = dict(observed)
        self._ceilings: dict[str, int] = {}
        self._refused: set[str] = set()
        self._seen: dict[str, int] = {}
        self.slots: dict[str, int] = {}
        """All slots of each server that was looked at again."""
        self._asked_at = self._answered_at = time.monotonic()

    @property
    def refused(self) -> set[str]:
        """Servers that get no more work."""
        return self._refused

    def answered(self) -> None:
        """A reset was answered, or an episode ended."""
        self._answered_at = time.monotonic()

    def set_ceiling(self, pool: RolloutPool, server: str, slots: int | None) -> None:
        """Bound a server's slots from outside (a quota); None: no bound."""
        if slots is None:
            self._ceilings.pop(server, None)
        else:
            self._ceilings[server] = max(0, slots)
        self._apply(pool)

    def refuse(self, pool: RolloutPool, server: str, why: str) -> None:
        """No more work for this server, for the rest of the invocation."""
        if server not in self._observed or server in self._refused:
            return
        self._refused.add(server)
        pool.note("error", f"environment {server} gets no more work: {why}")
        self._apply(pool)
        if len(self._refused) == len(self._observed):
            pool.drain(f"every environment server is of another version ({why})", ExitCode.STOPPED, grace_s=0.0)

    def look(self, pool: RolloutPool, now: float) -> None:
        admission = pool.dealer.admission
        nothing_admitted = pool.queue.waiting > 0 and sum(admission.values()) == 0
        waiting = nothing_admitted or pool.resetting() > 0
        short = pool.queue.waiting > 0 and sum(admission.values()) < pool.slots
        if (waiting or short) and now - self._asked_at > ASK_EVERY_S:
            self.ask(pool, now)
        if not waiting or pool.phase.paused:
            self._answered_at = now
        elif now - self._answered_at > pool.settings.stall_timeout_s and not pool.phase.draining:
            full = ", ".join(server for server in admission if server not in self._refused)
            waited = f"no reset was answered for {pool.settings.stall_timeout_s:g} s"
            pool.drain(f"{waited}: {full} is full or stuck", ExitCode.STOPPED, grace_s=0.0)

    def ask(self, pool: RolloutPool, now: float) -> None:
        """Look at the servers' free slots now."""
        self._asked_at = now
        pool.start(self._ask(pool), "admission")

    async def look_again(self, pool: RolloutPool) -> None:
        """Look at the servers' free slots before those of a dead actor are dealt again; bounded, for a server may be away."""
        self._asked_at = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._ask(pool)

    async def _ask(self, pool: RolloutPool) -> None:
        before = set(pool.held())
        capacities = await living_capacities(pool.environment, self._observed)
        await asyncio.sleep(_REPORT_LAG_S)
        after = set(pool.held())
        surely, perhaps = (Counter(lease.server for lease in leases) for leases in (before & after, before | after))
        for server, slots, free, _ in capacities:
            self.slots[server] = slots
            # leases come and go while it is asked: only what lies outside of what they can explain is news
            known = self._observed.get(server, 0)
            admission = seen = min(slots, max(free + surely[server], min(known, free + perhaps[server])))
            if server in self._ceilings:  # others come and go all the time: one low look may be a reset under way
                admission = max(seen, self._seen.get(server, 0))
            self._seen[server] = seen
            if admission != self._observed.get(server):
                self._observed[server] = admission
                if server not in self._refused and server not in self._ceilings:
                    pool.note("info", f"environment {server}: {admission} of {slots} slots are open to this run")
        self._apply(pool)

    def _apply(self, pool: RolloutPool) -> None:
        for server, observed in self._observed.items():
            bound = 0 if server in self._refused else min(observed, self._ceilings.get(server, observed))
            pool.dealer.admission[server] = bound
        pool.nudge_all()


class Outages:
    """Times how long nothing answers at all. Nothing is dispatched meanwhile, so nothing counts against attempts."""

    def __init__(self) -> None:
        self._since: float | None = None

    def look(self, pool: RolloutPool, now: float) -> None:
        out = pool.dispatch.all_out()
        if not out:
            if self._since is not None:
                pool.note("info", f"servers answer again after {now - self._since:.0f} s")
                pool.nudge_all()
            self._since = None
        elif self._since is None:
            self._since = now
            pool.note("warning", f"dispatch waits: no answer from {', '.join(out)}")
        elif now - self._since > pool.settings.endpoint_outage_s and not pool.phase.draining:
            pool.drain(f"no answer from {', '.join(out)} for {now - self._since:.0f} s", ExitCode.STOPPED, grace_s=0.0)
