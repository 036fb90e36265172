"""``execution.concurrency: auto``: episodes in flight follow what the model endpoints bear.

Each actor's gate has a limiter for each endpoint (``rayeval.models.limiter``), which bounds calls; this governor bounds episodes, so that
a few calls always wait for leave and no environment slot is held by an episode that would only wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.pool import RolloutPool

MOST_EPISODES = 4096
EPISODES_PER_ACTOR = 256
MIN_EPISODES = 8
EVERY_S = 1.0
_WAITING_SHARE = 0.25
_STILL = 0.05
"""Changes smaller than this share are not worth an order to every actor."""

Load = tuple[int, int, int]
"""(limit, calls in flight, calls that wait) of one endpoint in one actor."""


def episodes_wanted(loads: Iterable[Load], in_flight: int) -> int:
    """Episodes to have in flight, of which ``in_flight`` are there now: as many calls as the limits allow, a quarter more to wait for
    them, and those episodes that are not at a model at all. Where nobody waits the limit may be growing: twice as many."""
    wanted = 0
    outside = in_flight
    for limit, calling, waiting in loads:
        wanted += math.ceil(limit * (1.0 + _WAITING_SHARE)) + 1 if waiting else 2 * limit
        outside -= calling + waiting
    return wanted + max(0, outside)


class Adaptive:
    """Sets the pool's slots once a second."""

    def __init__(self, per_actor: int = EPISODES_PER_ACTOR, most: int = MOST_EPISODES) -> None:
        self._per_actor, self.most = per_actor, most
        self._next = 0.0

    def look(self, pool: RolloutPool, now: float) -> None:
        if now < self._next or pool.phase.draining or pool.phase.paused:
            return
        self._next = now + EVERY_S
        alive = [m for m in pool.members.values() if m.alive and not m.suspect and m.last is not None]
        loads = [load for m in alive if m.last for load in m.last.limits.values()]
        if not loads or pool.dispatch.all_out() or any(m.last.pauses for m in alive if m.last):
            return  # calls that wait for an endpoint to come back say nothing of what it bears
        in_flight = sum(m.last.in_flight for m in alive if m.last)
        admitted = sum(pool.dealer.admission.values())
        wanted = episodes_wanted(loads, in_flight)
        bounded = max(1, min(wanted, admitted, self._per_actor * len(alive), self.most, 2 * max(pool.slots, MIN_EPISODES)))
        if abs(bounded - pool.slots) > max(1.0, _STILL * pool.slots) or pool.slots > self.most:
            pool.set_slots(bounded)
        self._weigh(pool)

    @staticmethod
    def _weigh(pool: RolloutPool) -> None:
        """Endpoints get episodes in proportion to what they bear."""
        weights: dict[str, float] = {}
        for member in pool.members.values():
            if member.alive and member.last is not None:
                for endpoint, (limit, _, _) in member.last.limits.items():
                    weights[endpoint] = weights.get(endpoint, 0.0) + limit
        pool.dispatch.endpoint_weights = weights
