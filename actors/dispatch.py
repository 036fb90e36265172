"""What the driver says to an actor, and when there is something to say. Synchronous: nothing here awaits.

* Credit: an actor holds the episodes its share of the environment admits, and a few more; none more once the queue is shorter than the sum
  of the extras, so that what is left stays where any actor can take it.
* A model endpoint is given to an episode for its whole length: the one with the fewest episodes of this run, among those that answer.
* While no model endpoint or no environment server answers, nothing is dispatched.
* A suspect (``queue``) goes to an actor that holds nothing else.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from actors.dealing import Dealer
from actors.ledger import Ledger
from actors.member import Member, MemberState
from actors.messages import LEASE_FLUSH_S, Assignment, Order
from actors.queue import JobQueue, Ticket

_ASSIGNMENT_LIMIT = 4096
_PAUSE_SLACK_S = 0.5


@dataclass(slots=True)
class Phase:
    """What the run is doing, as far as dispatch must know."""

    paused: bool = False
    """By request: what runs goes on, nothing new starts."""
    draining: bool = False
    """Queued jobs are given back, nothing new starts."""
    cancelled: bool = False
    """Running episodes are cancelled too."""
    closing: bool = False
    """Actors are being stopped."""


class Dispatcher:
    """Reads queue, dealer and ledger; writes orders."""

    def __init__(
        self,
        phase: Phase,
        members: Mapping[str, Member],
        *,
        queue: JobQueue,
        ledger: Ledger,
        dealer: Dealer,
        endpoints: tuple[str, ...],
    ) -> None:
        self._phase, self._members = phase, members
        self._queue, self._ledger, self._dealer = queue, ledger, dealer
        self._endpoint_load: Counter[str] = Counter(dict.fromkeys(endpoints, 0))
        self._endpoint_ceilings: dict[str, int] = {}
        self._pause_until: dict[str, float] = {}
        self.endpoint_retries: dict[str, Counter[str]] = {}
        """Retries by cause of the attempts given to each endpoint, those that went on at another one included."""
        self.endpoint_weights: dict[str, float] = {}
        """How much each endpoint bears beside the others (adaptive concurrency); empty: all alike."""

    # ---- endpoints ----------------------------------------------------------------------------------------------------------------

    @property
    def endpoint_load(self) -> Mapping[str, int]:
        """Episodes of this run for each model endpoint."""
        return self._endpoint_load

    def endpoint_freed(self, endpoint: str) -> None:
        """An episode of ``endpoint`` has ended."""
        self._endpoint_load[endpoint] -= 1

    def count_retries(self, endpoint: str, retries: Mapping[str, int] | None) -> None:
        """Retries by cause that a finished attempt of ``endpoint`` tells of."""
        if retries:
            self.endpoint_retries.setdefault(endpoint, Counter()).update(retries)

    def pause_left(self, endpoint: str) -> float:
        """Seconds left of a pause that ``endpoint`` asked for; 0: none."""
        return max(0.0, self._pause_until.get(endpoint, 0.0) - time.monotonic())

    def set_ceiling(self, endpoint: str, episodes: int) -> None:
        """Bound the episodes of this run at a model endpoint; those beyond a lowered bound go on to their ends."""
        self._endpoint_ceilings[endpoint] = episodes

    def _endpoint_room(self, endpoint: str) -> float:
        return self._endpoint_ceilings.get(endpoint, math.inf) - self._endpoint_load[endpoint]

    def heard_pauses(self, pauses: Mapping[str, float]) -> None:
        """Pauses that an actor was asked for."""
        now = time.monotonic()
        for endpoint, seconds in pauses.items():
            self._pause_until[endpoint] = max(self._pause_until.get(endpoint, 0.0), now + seconds)

    def out(self, name: str) -> bool:
        """Whether a model endpoint or an environment server is out: half of the actors or more, of those that have said anything, cannot
        reach it."""
        said = [m for m in self._members.values() if m.alive and m.last is not None]
        return bool(said) and 2 * sum(name in m.last.out for m in said if m.last) >= len(said)

    def all_out(self) -> list[str]:
        """Every endpoint of a kind of which none answers; empty while each kind has one that does. A server without slots for this run (it
        is full, or of another version) is no help while the others are out."""
        stopped: list[str] = []
        admitting = [server for server, slots in self._dealer.admission.items() if slots > 0]
        for names in (list(self._endpoint_load), admitting):
            if names and all(self.out(name) for name in names):
                stopped += names
        return stopped

    def _next_endpoint(self) -> str:
        usable = [e for e in self._endpoint_load if not self.out(e)] or list(self._endpoint_load)
        usable = [e for e in usable if self._endpoint_room(e) >= 1] or usable
        endpoint = min(usable, key=self._weighed_load, default="")
        self._endpoint_load[endpoint] += 1
        return endpoint

    def _weighed_load(self, endpoint: str) -> float:
        return (self._endpoint_load[endpoint] + 1) / max(1e-9, self.endpoint_weights.get(endpoint, 1.0))

    # ---- credit -------------------------------------------------------------------------------------------------------------------

    def fair_slots(self, member: Member) -> int:
        """Episodes this actor can have running: jobs beyond them wait in the driver, where any actor can take them."""
        return min(member.slots, sum(self._dealer.fair(member.actor_id, server) for server in self._dealer.admission))

    def credit(self, member: Member) -> int:
        """Jobs this actor may be given now."""
        phase = self._phase
        if phase.draining or phase.closing or phase.paused or member.state != MemberState.WORKING or self.all_out():
            return 0
        room = self._room()
        if member.suspect:
            return 0 if member.jobs else min(1, self._queue.suspects, room)
        slots = self.fair_slots(member)
        extras = sum(max(1, m.slots // 8) for m in self._members.values() if m.alive)
        ahead = max(1, slots // 8) if slots and self._queue.ready() >= extras else 0
        return max(0, min(slots + ahead - len(member.jobs), room))

    def _room(self) -> int:
        """Episodes that the bounds of model endpoints still admit."""
        if not self._endpoint_ceilings:
            return sys.maxsize
        room = sum(max(0.0, self._endpoint_room(e)) for e in self._endpoint_load if not self.out(e))
        return sys.maxsize if room == math.inf else int(room)

    def _wanted(self) -> dict[str, int]:
        more = not self._phase.draining and self._queue.ready() > 0
        return {
            m.actor_id: (
                self.fair_slots(m)
                if more and m.state == MemberState.WORKING and not m.suspect
                else min(max(len(m.jobs), int(m.suspect)), m.slots)
            )
            for m in self._members.values()
            if m.alive
        }

    # ---- orders -------------------------------------------------------------------------------------------------------------------

    def news_for(self, member: Member) -> bool:
        """Whether an order now would say something that the open exchange does not carry."""
        phase = self._phase
        if member.cancel_wanted or (phase.draining and not member.told_give_back) or (phase.cancelled and not member.told_cancel):
            return True
        if member.told_pinned != self._ledger.pinned or member.slots_wanted is not None or self._pauses_for(member):
            return True
        if member.suspect:
            return self.credit(member) > 0
        if self._queue.ready() and self.credit(member) >= max(1, member.slots // 16):
            return True
        if member.last is not None and member.last.queued and sum(member.last.taken.values()) < min(len(member.jobs), member.slots):
            return self._dealer.would_grow(member.actor_id, self._wanted())
        return False

    def order_for(self, member: Member, resend: bool) -> Order:
        """The next order, with as many jobs as the credit allows."""
        phase = self._phase
        member.orders += 1
        assignments: list[Assignment] = []
        for ticket in self._tickets(member):
            endpoint = self._next_endpoint()
            member.jobs[ticket.job.episode_id] = (ticket, endpoint)
            assignments.append(Assignment(ticket.job, ticket.attempt, endpoint))
        actors = max(1, sum(m.alive for m in self._members.values()))
        cancel = tuple(member.cancel_wanted)
        member.cancel_wanted.clear()
        if phase.cancelled:
            cancel, member.told_cancel = ("*",), True
        if phase.draining:
            member.told_give_back = True
        pinned = self._ledger.pinned if member.told_pinned != self._ledger.pinned else None
        member.told_pinned = self._ledger.pinned
        slots, member.slots_wanted = member.slots_wanted, None
        if phase.paused and slots is not None:
            slots = 0
        pauses = self._pauses_for(member)
        now = time.monotonic()
        for endpoint, seconds in pauses.items():
            member.told_pauses[endpoint] = now + seconds
        return Order(
            number=member.orders,
            ack=member.acknowledged,
            assignments=tuple(assignments),
            quotas=self._dealer.deal(member.actor_id, member.orders, self._wanted()),
            slots=slots,
            flush_s=max(0.05, actors / 400),
            lease_flush_s=max(LEASE_FLUSH_S, actors / 800),
            idle_s=max(1.0, actors / 200),
            pinned=pinned,
            cancel=cancel,
            give_back=phase.draining,
            pauses=pauses or None,
            resend=resend,
        )

    def _tickets(self, member: Member) -> list[Ticket]:
        credit = self.credit(member)
        if not credit:
            return []
        if member.suspect:
            ticket = self._queue.take_suspect()
            return [] if ticket is None else [ticket]
        return self._queue.take(min(credit, _ASSIGNMENT_LIMIT))

    def _pauses_for(self, member: Member) -> dict[str, float]:
        """Pauses that this actor does not know of."""
        now = time.monotonic()
        own = member.last.pauses if member.last is not None else {}
        return {
            endpoint: until - now
            for endpoint, until in self._pause_until.items()
            if until - now > _PAUSE_SLACK_S
            and until - now > own.get(endpoint, 0.0) + _PAUSE_SLACK_S
            and until > member.told_pauses.get(endpoint, 0.0) + _PAUSE_SLACK_S
        }
