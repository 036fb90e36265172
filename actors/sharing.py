"""Sharing slots out to runs as quotas, fair by weight. Pure bookkeeping: no clock, nothing here awaits.

Words: a *resource* is a server whose slots are shared; a run *wants* some of them, is dealt a *quota*, and has *taken* what it holds or
may still take. Answers to a run are numbered; the run says which it has applied.

Invariants, for each resource:
* A quota grows only out of ``total - sum of outstanding``, so what runs hold or may take (``outstanding``) never passes ``total`` by a
  deal. It can only by a report: of a run that comes back after its slots were given away, or of a server that has become smaller.
* A lowered quota counts as given back only once the run says that the answer which carried it is applied, and what it has taken since.
* A frozen run keeps what is outstanding and is dealt nothing; nobody else is dealt it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from actors.dealing import Share


def max_min(total: int, wants: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Whole shares of ``total``: nobody gets more than it wants, and nobody's share (for its weight) can grow but at the cost of a smaller
    one. Rounding favours none by more than one slot."""
    shares = [0] * len(wants)
    left = total
    open_ = [i for i, want in enumerate(wants) if want > 0]
    while open_ and left > 0:
        weight = sum(weights[i] for i in open_)
        content = [i for i in open_ if wants[i] * weight <= left * weights[i]]
        if not content:
            before = 0
            for i in open_:
                upto = before + weights[i]
                shares[i] = upto * left // weight - before * left // weight
                before = upto
            break
        for i in content:
            shares[i] = wants[i]
            left -= wants[i]
        open_ = [i for i in open_ if i not in content]
    return shares


@dataclass(slots=True)
class Claim:
    """One run's part in one resource."""

    share: Share = field(default_factory=Share)
    wanted: int = 0
    slots: int = 0
    """All slots of the resource, as the run sees them."""


@dataclass(slots=True)
class Sharer:
    """One run."""

    weight: int
    frozen: bool = False
    claims: dict[str, Claim] = field(default_factory=dict)


class RunShares:
    """Deals the slots of every resource among runs, in the order in which they came."""

    def __init__(self) -> None:
        self._runs: dict[str, Sharer] = {}

    def join(self, run_id: str, weight: int) -> None:
        """A new run that has taken nothing yet, or one that begins anew."""
        self._runs[run_id] = Sharer(weight)

    def leave(self, run_id: str) -> None:
        """A run that holds nothing any more."""
        self._runs.pop(run_id, None)

    def freeze(self, run_id: str, frozen: bool = True) -> None:
        """A run that has fallen silent, or speaks again."""
        self._runs[run_id].frozen = frozen

    def keep(self, run_id: str, taken: Mapping[str, int]) -> None:
        """A run that can act no more: only ``taken`` of its slots are not free yet."""
        for resource, claim in self._runs[run_id].claims.items():
            claim.wanted = 0
            claim.share = Share(in_force=taken.get(resource, 0))

    def report(self, run_id: str, applied: int, *, wants: Mapping[str, int], taken: Mapping[str, int], slots: Mapping[str, int]) -> None:
        """What a run says: the newest answer it has applied, and by resource what it wants, has taken, and sees of slots in all."""
        claims = self._runs[run_id].claims
        for resource in slots:
            claim = claims.setdefault(resource, Claim())
            claim.wanted, claim.slots = wants.get(resource, 0), slots[resource]
            claim.share.in_force = taken.get(resource, 0)
            claim.share.sent = [(number, quota) for number, quota in claim.share.sent if number > applied]

    def deal(self, run_id: str, number: int, *, settled: bool = True) -> dict[str, int]:
        """Quotas for the answer ``number`` to this run. While not ``settled``, a run keeps what it has taken and gets no more."""
        quotas: dict[str, int] = {}
        for resource, claim in self._runs[run_id].claims.items():
            share = claim.share
            if settled:
                share.quota = self._next_quota(run_id, resource)
            else:
                share.quota = share.in_force
            quotas[resource] = share.quota
            share.sent.append((number, share.quota))
        return quotas

    def _next_quota(self, run_id: str, resource: str) -> int:
        share = self._runs[run_id].claims[resource].share
        goal = self.targets(resource).get(run_id, 0)
        if goal <= share.outstanding:
            return goal  # nothing that is not the run's own already
        others = self.outstanding(resource) - share.outstanding
        return max(share.outstanding, min(goal, self.total(resource) - others))

    def targets(self, resource: str) -> dict[str, int]:
        """Quotas that the runs' demand leads to: frozen runs keep theirs, the rest is shared fairly."""
        kept = sum(c.share.outstanding for run, c in self._claims(resource) if run.frozen)
        living = {i: (r, r.claims[resource]) for i, r in self._runs.items() if not r.frozen and resource in r.claims}
        wants = [claim.wanted for _, claim in living.values()]
        weights = [run.weight for run, _ in living.values()]
        return dict(zip(living, max_min(max(0, self.total(resource) - kept), wants, weights), strict=True))

    def total(self, resource: str) -> int:
        """Slots of a resource: when runs see it differently, the fewest."""
        seen = [claim.slots for run, claim in self._claims(resource) if not run.frozen]
        return min(seen or [claim.slots for _, claim in self._claims(resource)], default=0)

    def outstanding(self, resource: str) -> int:
        """Slots that runs hold or may take."""
        return sum(claim.share.outstanding for _, claim in self._claims(resource))

    def outstanding_of(self, run_id: str) -> dict[str, int]:
        """By resource, the slots that one run holds or may take."""
        return {resource: claim.share.outstanding for resource, claim in self._runs[run_id].claims.items()}

    def quotas_of(self, run_id: str) -> dict[str, int]:
        """By resource, the newest quota of one run."""
        return {resource: claim.share.quota for resource, claim in self._runs[run_id].claims.items()}

    def resources(self) -> list[str]:
        """Every resource that a run has named."""
        return list(dict.fromkeys(resource for run in self._runs.values() for resource in run.claims))

    def _claims(self, resource: str) -> Iterable[tuple[Sharer, Claim]]:
        return ((run, run.claims[resource]) for run in self._runs.values() if resource in run.claims)
