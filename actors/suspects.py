"""Episodes lost twice with their actors run one at a time in an actor that runs nothing else, until each has ended or has killed it.

An actor of its own is asked for; where the cluster has no room for one, the working actor with the fewest episodes becomes it as soon as
they have ended, and goes back to work when no suspect is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.member import Member, MemberState

if TYPE_CHECKING:
    from actors.pool import RolloutPool

PLACE_S = 30.0
"""An actor of its own must run within this time."""


class Suspects:
    """The governor of suspect episodes."""

    def __init__(self) -> None:
        self._no_room = False

    def unplaced(self) -> None:
        """The cluster had no room for an actor of its own."""
        self._no_room = True

    def look(self, pool: RolloutPool, now: float) -> None:
        own = [m for m in pool.members.values() if m.suspect and m.state not in (MemberState.ENDED, MemberState.DEAD)]
        if pool.queue.suspects and not own and not pool.phase.draining:
            pool.note("warning", f"{pool.queue.suspects} episodes were lost twice with their actors: each runs alone now")
            if self._no_room:
                self._convert(pool)
            else:
                pool.bear(1, suspect=True)
        if pool.queue.suspects or pool.queue.over:
            return
        for member in own:
            if not member.alive or member.jobs:
                continue
            if member.converted:
                member.suspect = member.converted = False
                member.nudge.set()
            else:
                member.state = MemberState.ENDED
                pool.start(pool.retire(member), f"retire-{member.actor_id}")

    def _convert(self, pool: RolloutPool) -> None:
        working: list[Member] = [m for m in pool.members.values() if m.alive and not m.suspect]
        if working:
            chosen = min(working, key=lambda m: len(m.jobs))
            chosen.suspect = chosen.converted = True
            chosen.nudge.set()
