"""A run's side of the broker: a governor that reports to it and puts its quotas in force.

Invariants:
* A server's admission starts at 0 and afterwards is the newest quota; only an answer changes it. While the broker cannot be reached
  quotas stay as they are: the run keeps what it has and takes no more.
* One call is open at a time, in a task of this object, with a deadline. After one without an answer everything is said anew.
* An answer older than the newest one applied is dropped.
Closing rule: ``aclose`` ends the open call and tells the broker, within a deadline, that this run is over.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.broker import MODEL, Answer, BrokerGoneError, BrokerLink, Report, RunSpec
from rayeval.schemas import JsonObject, Lease
from rayeval.transport import public_url

if TYPE_CHECKING:
    from actors.pool import RolloutPool

REPORT_EVERY_S = 0.25
HEARTBEAT_S = 1.0
LOST_S = 30.0
"""Without an answer for so long, people are told."""
_CALL_S = 5.0
_START_S = 60.0
"""The first call may have to start the broker."""
_RETRY_S = 1.0
_LOOK_AGAIN_S = 2.0


def spread(total: int, slots: Mapping[str, int], quotas: Mapping[str, int]) -> dict[str, int]:
    """Wants by resource for ``total`` episodes: in proportion to the slots, and what some resources do not give is asked of the others.

    A resource's want never falls below its own proportion, so that what one gives does not make the others ask for less and less.
    """
    everything = sum(slots.values())
    if not everything or total <= 0:
        return dict.fromkeys(slots, 0)
    base = {name: min(n, -(-total * n // everything)) for name, n in slots.items()}
    missing = sum(max(0, base[name] - quotas.get(name, 0)) for name in base)
    giving = [name for name in base if quotas.get(name, 0) >= base[name]]
    extra = -(-missing // len(giving)) if giving else 0
    return {name: min(slots[name], n + (extra if name in giving else 0)) for name, n in base.items()}


class BrokerClient:
    """Asks for slots on behalf of one run."""

    def __init__(self, link: BrokerLink, spec: RunSpec, slots: Mapping[str, int], model_slots: Mapping[str, int]) -> None:
        """``slots``: all slots of each environment server; ``model_slots``: configured limit of each model endpoint, if any."""
        self._link, self._spec = link, spec
        self._run_id = f"{spec.name}-{uuid.uuid4().hex[:12]}"
        self._slots, self._model_slots = dict(slots), dict(model_slots)
        self._quotas: dict[str, int] = {}
        self._incarnation: str | None = None
        self._applied = self._number = self._notes_seen = 0
        self._known: set[Lease] | None = None
        """Leases that the broker knows of; None: it is to be told everything."""
        self._said: tuple[object, ...] = ()
        self._call: asyncio.Task[Answer] | None = None
        self._calling: set[Lease] = set()
        self._sent_at = self._looked_at = 0.0
        self._answered_at = time.monotonic()
        self._settled = True
        self._lost = False
        self.others: dict[str, int] = {}
        """By server: leases that other runs held when the broker last answered."""

    def attach(self, pool: RolloutPool) -> None:
        """Before the pool runs: nothing is admitted until the first quota."""
        for server in self._slots:
            pool.admission.set_ceiling(pool, server, 0)
        for endpoint in self._model_slots:
            pool.dispatch.set_ceiling(endpoint, 0)

    def look(self, pool: RolloutPool, now: float) -> None:
        if self._call is not None:
            if not self._call.done():
                return
            call, self._call = self._call, None
            try:
                self._take(pool, call.result(), now)
            except BrokerGoneError as error:
                self._known = None
                if now - self._answered_at > LOST_S and not self._lost:
                    self._lost = True
                    pool.note("warning", f"the slot broker has not answered for {LOST_S:g} s, quotas stay as they are ({error})")
        if now - self._sent_at < (_RETRY_S if self._lost else REPORT_EVERY_S):
            return
        held = pool.held()
        report = self._report(pool, held)
        said = (report.wants, report.taken, report.slots, report.resetting)
        if report.spec is None and not report.held and not report.ended and said == self._said and now - self._sent_at < HEARTBEAT_S:
            return
        self._number += 1
        report.number, self._calling = self._number, set(held)
        self._said, self._sent_at = said, now
        timeout_s = _CALL_S if self._incarnation is not None else _START_S
        self._call = asyncio.create_task(self._link.sync(report, timeout_s), name="broker-sync")

    async def aclose(self, pool: RolloutPool) -> None:
        """Tell the broker that this run is over. Bounded; silence does the same later."""
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait({self._call}, timeout=_CALL_S)
        if self._incarnation is None:
            return
        self._known = None
        report = self._report(pool, pool.held())
        report.number, report.leaving = self._number + 1, True
        try:
            self.others = (await self._link.sync(report, _CALL_S)).others
        except BrokerGoneError as error:
            pool.note("debug", f"the slot broker was not told of the end: {error}")

    def picture(self) -> JsonObject:
        """For ``status.json``: quotas in force by server or model endpoint, slots that others hold, seconds of silence of the broker."""
        return {
            "quota": {public_url(name.removeprefix(MODEL)): quota for name, quota in self._quotas.items()},
            "others": {public_url(server): n for server, n in self.others.items()},
            "silent_s": round(time.monotonic() - self._answered_at, 1),
        }

    # ---- reports ------------------------------------------------------------------------------------------------------------------

    def _report(self, pool: RolloutPool, leases: list[Lease]) -> Report:
        held, known = set(leases), self._known
        seen = {server: pool.admission.slots.get(server, slots) for server, slots in self._slots.items()}
        resources = seen | {MODEL + endpoint: slots for endpoint, slots in self._model_slots.items()}
        taken = {server: max(self._quotas.get(server, 0), pool.dealer.outstanding(server)) for server in seen}
        for endpoint in self._model_slots:
            taken[MODEL + endpoint] = max(self._quotas.get(MODEL + endpoint, 0), pool.dispatch.endpoint_load.get(endpoint, 0))
        resetting: Counter[str] = Counter()
        for member in pool.members.values():
            if member.alive and member.last is not None:
                resetting.update(member.last.resetting)
        return Report(
            run_id=self._run_id,
            number=0,
            incarnation=self._incarnation,
            applied=self._applied,
            wants=self._wants(pool, seen),
            taken=taken,
            slots=resources,
            resetting={server: n for server, n in resetting.items() if n},
            spec=self._spec if known is None else None,
            held=list(held if known is None else held - known),
            ended=[] if known is None else list(known - held),
            notes_seen=self._notes_seen,
        )

    def _wants(self, pool: RolloutPool, slots: Mapping[str, int]) -> dict[str, int]:
        phase = pool.phase
        resources = [*slots, *(MODEL + endpoint for endpoint in self._model_slots)]
        if phase.draining or phase.closing or phase.paused:
            return dict.fromkeys(resources, 0)
        episodes = min(pool.slots, pool.queue.waiting + pool.queue.out)
        usable = {s: n for s, n in slots.items() if not pool.dispatch.out(s) and s not in pool.admission.refused}
        models = {MODEL + e: n for e, n in self._model_slots.items() if not pool.dispatch.out(e)}
        return dict.fromkeys(resources, 0) | spread(episodes, usable, self._quotas) | spread(episodes, models, self._quotas)

    # ---- answers ------------------------------------------------------------------------------------------------------------------

    def _take(self, pool: RolloutPool, answer: Answer, now: float) -> None:
        self._answered_at = now
        if self._lost:
            self._lost = False
            pool.note("info", "the slot broker answers again")
        if answer.incarnation != self._incarnation:
            if self._incarnation is not None:
                pool.note("info", "the slot broker has been started anew and is told what this run holds")
            self._incarnation, self._applied, self._notes_seen = answer.incarnation, 0, 0
        if answer.quotas is None:
            self._known = None
            self._sent_at = 0.0
            return
        self._known = self._calling
        self.others = answer.others
        for number, text in answer.notes:
            self._notes_seen = number
            pool.note("warning", f"slot broker: {text}")
        if answer.number <= self._applied:
            return
        self._applied = answer.number
        self._apply(pool, answer.quotas, now)

    def _apply(self, pool: RolloutPool, quotas: Mapping[str, int], now: float) -> None:
        before, self._quotas = self._quotas, dict(quotas)
        for resource, quota in quotas.items():
            if quota == before.get(resource):
                continue
            if resource.startswith(MODEL):
                pool.dispatch.set_ceiling(resource.removeprefix(MODEL), quota)
            else:
                pool.admission.set_ceiling(pool, resource, quota)
        pool.nudge_all()
        # what a server last said of its free slots may be older than the quota that frees them
        short = any(
            pool.dealer.admission.get(s, 0) < quota and s not in pool.admission.refused for s, quota in quotas.items() if s in self._slots
        )
        if short and now - self._looked_at > _LOOK_AGAIN_S:
            self._looked_at = now
            pool.admission.ask(pool, now)
