"""Sharing environment slots out to actors as quotas. Pure bookkeeping; nothing here awaits.

Invariant: for each server, the slots that actors hold or may take (``outstanding``) never pass ``admission``, except while admission
itself has fallen below what is already in use. A smaller quota counts as given back only once the actor says that it has applied the
order which carried it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Share:
    """What one actor holds of one server."""

    quota: int = 0
    """Newest quota sent."""
    in_force: int = 0
    """What the actor may have taken, as it last said."""
    sent: list[tuple[int, int]] = field(default_factory=list)
    """(order number, quota) not yet confirmed."""

    @property
    def outstanding(self) -> int:
        return max(self.in_force, self.quota, *(quota for _, quota in self.sent)) if self.sent else max(self.in_force, self.quota)


class Dealer:
    """Deals the slots of every server among actors."""

    def __init__(self, admission: dict[str, int]) -> None:
        self.admission = dict(admission)
        self._shares: dict[str, dict[str, Share]] = {}
        self._slots: dict[str, int] = {}

    def join(self, actor_id: str, slots: int) -> None:
        """A new actor, holding nothing."""
        self._shares[actor_id] = {server: Share() for server in self.admission}
        self._slots[actor_id] = slots

    def resize(self, actor_id: str, slots: int) -> None:
        """An actor's slots have changed: so have all fair shares."""
        if actor_id in self._slots:
            self._slots[actor_id] = slots

    def leave(self, actor_id: str) -> None:
        """A dead actor whose leases have been released (only then: until it is fenced its slots are taken)."""
        self._shares.pop(actor_id, None)
        self._slots.pop(actor_id, None)

    def outstanding(self, server: str) -> int:
        """Slots of a server that actors hold or may take."""
        return sum(shares[server].outstanding for shares in self._shares.values())

    def reported(self, actor_id: str, order: int, taken: dict[str, int]) -> None:
        """An actor's reply: the newest order it has applied, and for each server max(quota in force, slots in use)."""
        shares = self._shares.get(actor_id)
        if shares is None:
            return
        for server, share in shares.items():
            share.sent = [(number, quota) for number, quota in share.sent if number > order]
            share.in_force = taken.get(server, 0)

    def deal(self, actor_id: str, order: int, wanted: dict[str, int]) -> dict[str, int]:
        """Quotas for this actor's next order. ``wanted``: for each actor the episodes it holds or could start, capped at its slots.

        An actor gets what it wants up to its fair share at once, and beyond it from what nobody needs; it gives back what it does not
        want, and what it holds beyond its fair share while another one is short.
        """
        quotas: dict[str, int] = {}
        for server in self.admission:
            share = self._shares[actor_id][server]
            share.quota = quotas[server] = self._next_quota(actor_id, server, wanted)
            share.sent.append((order, share.quota))
        return quotas

    def would_grow(self, actor_id: str, wanted: dict[str, int]) -> bool:
        """Whether ``deal`` would now give this actor more of some server."""
        shares = self._shares[actor_id]
        return any(self._next_quota(actor_id, server, wanted) > shares[server].quota for server in self.admission)

    def _next_quota(self, actor_id: str, server: str, wanted: dict[str, int]) -> int:
        share = self._shares[actor_id][server]
        want = goal = wanted.get(actor_id, 0)
        kept = min(share.quota, want)
        if self._others_short(actor_id, server, wanted):
            fair = self.fair(actor_id, server)
            kept, goal = min(kept, fair), min(want, fair)
        others = self.outstanding(server) - share.outstanding
        return min(max(kept, goal), max(0, self.admission[server] - others))

    def fair(self, actor_id: str, server: str) -> int:
        """Slots of a server that are this actor's by its share of all slots."""
        total = sum(self._slots.values())
        if not total:
            return 0
        # cumulative rounding, so that the shares of all actors add up to the admission exactly
        before = 0
        for other, slots in self._slots.items():
            if other == actor_id:
                admission = self.admission[server]
                return (before + slots) * admission // total - before * admission // total
            before += slots
        return 0

    def _others_short(self, actor_id: str, server: str, wanted: dict[str, int]) -> bool:
        others: Iterable[str] = (a for a in self._shares if a != actor_id)
        return any(self._shares[a][server].quota < min(wanted.get(a, 0), self.fair(a, server)) for a in others)
