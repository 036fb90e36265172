"""SlotBroker: one detached actor of a cluster that shares slots between its jobs, as quotas for runs, never as calls for episodes.

Protocol: a run calls ``sync`` with a numbered report: at once when something has changed, yet at most four times a second, and once a
second otherwise. The answer carries its quotas. The broker keeps nothing on disk. A run that meets another incarnation than the one it
knows is asked to say everything again; until ``SETTLE_S`` after its start a broker deals nothing beyond what runs say they have.

Invariants:
* ``sync`` and ``look`` are synchronous inside: no await stands between reading the shares and changing them.
* Live -> silent after ``SILENT_S`` without a report: frozen, it keeps what it has and is dealt nothing. Silent -> lapsed after its
  ``fence_s`` (its actors have stopped by themselves): its leases are released, and only then are its slots dealt again.
* Time in which the broker itself did not run is not held against anybody.
Closing rule: a broker without runs for ``IDLE_S`` ends itself; a run starts another when it needs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from actors.asking import ask_head
from actors.burial import release_leases
from actors.nodes import placed_without_cpu
from actors.recovery import living_capacities
from actors.sharing import RunShares
from rayeval.config import Config
from rayeval.environments import Environment, load_environment
from rayeval.exceptions import RayevalError
from rayeval.schemas import JsonObject, Lease

_log = logging.getLogger(__name__)

NAMESPACE = "rayeval"
NAME = "slot-broker-1"
"""Its number is the protocol's: jobs of two versions share only when they understand each other."""
SETTLE_S = 5.0
SILENT_S = 10.0
FENCE_MARGIN_S = 3.0
"""A driver may have lived, and renewed its actors, for so long after its last report."""
IDLE_S = 600.0
_LOOK_EVERY_S = 0.5
_ASLEEP_S = 3.0
_RETRY_S = 10.0
_GIVE_UP_S = 600.0
_CLOSE_S = 20.0
_REPORT_LAG_S = 0.5
_ENDED = "has ended"
MODEL = "model:"
"""Prefix of a resource that is a model endpoint; others are environment servers."""


class BrokerGoneError(RayevalError, ConnectionError):
    """The broker or the way to it is gone; whether the call was executed is not known."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a broker must know to release the leases of a run that cannot do so any more. Light; holds no secret."""

    name: str
    """For notes."""
    weight: int
    fence_s: float
    config: JsonObject
    """``Config.model_dump(mode="json")``."""
    persona: bool
    servers: tuple[str, ...]
    sys_path: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """Run to broker."""

    run_id: str
    """Of one driver: a resume has another."""
    number: int
    incarnation: str | None
    """The broker this run believes to speak to."""
    applied: int
    """Number of the newest answer of that broker that is in force."""
    wants: dict[str, int]
    """By resource: slots it could use."""
    taken: dict[str, int]
    """By resource: max(quota in force, what its actors hold or may still take)."""
    slots: dict[str, int]
    """By resource: all slots, as this run sees them."""
    resetting: dict[str, int] = field(default_factory=dict)
    """By server: resets without an answer."""
    spec: RunSpec | None = None
    """With it ``held`` is everything the run holds; without it, what has come since the last report."""
    held: list[Lease] = field(default_factory=list)
    ended: list[Lease] = field(default_factory=list)
    notes_seen: int = 0
    leaving: bool = False
    """The run is over: what it still holds is released, and it is forgotten."""


@dataclass(slots=True)
class Answer:
    """Broker to run."""

    incarnation: str
    number: int = 0
    """From 1 for each run."""
    quotas: dict[str, int] | None = None
    """None: say everything again first (a report with ``spec``)."""
    settled: bool = True
    notes: list[tuple[int, str]] = field(default_factory=list)
    """What became of other runs: (number, text)."""
    others: dict[str, int] = field(default_factory=dict)
    """By server: leases that other runs hold."""


class RunState(StrEnum):
    """Where a run stands."""

    LIVE = "live"
    SILENT = "silent"
    """No report for ``SILENT_S``: frozen."""
    LAPSED = "lapsed"
    """Over, in order or not: its leases are being released."""


@dataclass(slots=True)
class RunRecord:
    """One run as the broker knows it."""

    spec: RunSpec
    heard_at: float
    first_note: int
    state: RunState = RunState.LIVE
    last: int = 0
    """Number of its newest report."""
    answers: int = 0
    held: dict[tuple[str, str], Lease] = field(default_factory=dict)
    resetting: dict[str, int] = field(default_factory=dict)
    lapsed_at: float = 0.0


def environment_of(spec: RunSpec) -> Environment:
    """The environment through which a run's leases are released."""
    for directory in spec.sys_path:
        if directory not in sys.path:
            sys.path.append(directory)
    return load_environment(Config.model_validate(spec.config), spec.persona, spec.servers)


class SlotBroker:
    """Shares slots. A plain class; ``RayBroker`` puts it on Ray."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        build: Callable[[RunSpec], Environment] = environment_of,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self.incarnation = uuid.uuid4().hex
        self._clock, self._build, self._on_idle = clock, build, on_idle
        self._shares = RunShares()
        self._runs: dict[str, RunRecord] = {}
        now = clock()
        self._settled_at = now + SETTLE_S
        self._looked_at = self._busy_at = now
        self._notes: deque[tuple[int, str]] = deque(maxlen=100)
        self._noted = 0
        self._watch: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()

    async def sync(self, report: Report) -> Answer:
        """Take a run's report, deal it its quotas."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watching())
        return self.take(report)

    async def status(self) -> JsonObject:
        """What the broker knows, for people and tests."""
        now = self._clock()
        return {
            "incarnation": self.incarnation,
            "settled": now >= self._settled_at,
            "resources": {
                resource: {"slots": self._shares.total(resource), "outstanding": self._shares.outstanding(resource)}
                for resource in self._shares.resources()
            },
            "runs": {
                run_id: {
                    "name": run.spec.name,
                    "state": str(run.state),
                    "silent_s": round(now - run.heard_at, 1),
                    "quotas": self._shares.quotas_of(run_id),
                    "outstanding": self._shares.outstanding_of(run_id),
                    "held": len(run.held),
                    "resetting": sum(run.resetting.values()),
                }
                for run_id, run in self._runs.items()
            },
            "notes": [text for _, text in self._notes],
        }

    # ---- reports ------------------------------------------------------------------------------------------------------------------

    def take(self, report: Report) -> Answer:
        """One report. Synchronous."""
        self.look()  # before this run counts as heard: what others have lost is free for it now
        now = self._clock()
        run = self._runs.get(report.run_id)
        if report.spec is not None and (run is None or run.state == RunState.LAPSED):
            run = self._runs[report.run_id] = RunRecord(report.spec, now, self._noted)
            self._shares.join(report.run_id, max(1, report.spec.weight))
        if run is None or run.state == RunState.LAPSED or (report.incarnation != self.incarnation and report.spec is None):
            return Answer(self.incarnation)
        if report.number <= run.last:
            return Answer(self.incarnation)  # overtaken on the way by a later one
        run.last, run.heard_at = report.number, now
        if run.state == RunState.SILENT:
            run.state = RunState.LIVE
            self._shares.freeze(report.run_id, False)
        if report.spec is not None:
            run.held.clear()
        run.held |= {(lease.server, lease.lease_id): lease for lease in report.held}
        for lease in report.ended:
            run.held.pop((lease.server, lease.lease_id), None)
        run.resetting = report.resetting
        applied = report.applied if report.incarnation == self.incarnation else 0
        self._shares.report(report.run_id, applied, wants=report.wants, taken=report.taken, slots=report.slots)
        answer = Answer(self.incarnation, settled=now >= self._settled_at, others=self._held_by_others(report.run_id))
        if report.leaving:
            self._lapse(report.run_id, run, _ENDED)
            answer.quotas = {}
            return answer
        run.answers += 1
        answer.number = run.answers
        answer.quotas = self._shares.deal(report.run_id, answer.number, settled=answer.settled)
        answer.notes = [(n, text) for n, text in self._notes if n > max(run.first_note, report.notes_seen)]
        return answer

    def _held_by_others(self, run_id: str) -> dict[str, int]:
        return dict(Counter(lease.server for other, run in self._runs.items() if other != run_id for lease in run.held.values()))

    # ---- the passing of time ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One pass over silent runs. Synchronous; releases run in tasks."""
        now = self._clock()
        asleep = now - self._looked_at
        self._looked_at = now
        if asleep > _ASLEEP_S:
            self._settled_at += asleep if now - asleep < self._settled_at else 0.0
            for run in self._runs.values():
                run.heard_at += asleep
        for run_id, run in list(self._runs.items()):
            silent = now - run.heard_at
            if run.state == RunState.LIVE and silent > SILENT_S:
                run.state = RunState.SILENT
                self._shares.freeze(run_id)
                self._note(f"run {run.spec.name} is silent: its quota is frozen")
            if run.state == RunState.SILENT and silent > run.spec.fence_s + FENCE_MARGIN_S:
                self._lapse(run_id, run, f"was silent for {silent:.0f} s")
        if self._runs:
            self._busy_at = now
        elif now - self._busy_at > IDLE_S and self._on_idle is not None:
            self._on_idle()

    def _lapse(self, run_id: str, run: RunRecord, why: str) -> None:
        run.state, run.lapsed_at = RunState.LAPSED, self._clock()
        self._shares.freeze(run_id)
        if why == _ENDED and not run.held:
            self._forget(run_id, run)
            return
        task = asyncio.create_task(self._release(run_id, run, why))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    def _forget(self, run_id: str, run: RunRecord) -> None:
        if self._runs.get(run_id) is run:
            del self._runs[run_id]
            self._shares.leave(run_id)

    async def _release(self, run_id: str, run: RunRecord, why: str) -> None:
        """Release what a lapsed run held; its slots are free as far as that goes. Tried again until ``_GIVE_UP_S``."""
        held = kept = list(run.held.values())
        orderly = why == _ENDED
        unnamed = 0 if orderly else sum(run.resetting.values())
        most = sum(n for resource, n in self._shares.outstanding_of(run_id).items() if not resource.startswith(MODEL))
        try:
            environment = self._build(run.spec)
        except Exception as error:  # a user's class that cannot be made here: its slots stay as the servers have them
            self._note(f"run {run.spec.name} {why}: its {len(held)} leases cannot be released here ({type(error).__name__}: {error})")
            self._forget(run_id, run)
            return

        def ended(lease: Lease) -> None:
            run.held.pop((lease.server, lease.lease_id), None)

        try:
            noted = False
            while True:
                kept = await release_leases(environment, kept, ended)
                if not noted and not orderly:  # looked at before its slots are anybody's
                    unnamed = max(unnamed, min(await self._unnamed(environment, run.spec.servers), most))
                if self._runs.get(run_id) is not run:
                    return  # it came back and has said anew what it holds
                self._shares.keep(run_id, Counter(lease.server for lease in kept))
                if not noted:
                    noted = True
                    self._note(
                        f"run {run.spec.name} {why}: {len(held) - len(kept)} of its {len(held)} leases were released"
                        + (f"; up to {unnamed} more cannot be named (a reset was under way or not yet reported)" if unnamed else "")
                    )
                if not kept or self._clock() - run.lapsed_at > _GIVE_UP_S:
                    return
                await asyncio.sleep(_RETRY_S)
        except Exception as error:  # a user's class again
            self._note(f"run {run.spec.name} {why}: {len(run.held)} of its leases cannot be released ({type(error).__name__}: {error})")
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await environment.aclose()
            self._forget(run_id, run)

    async def _unnamed(self, environment: Environment, servers: tuple[str, ...]) -> int:
        """Slots that are taken by no lease that a run has named; the smaller of two looks, for runs report late."""
        found: list[int] = []
        for pause in (_REPORT_LAG_S, 0.0):
            capacities = await living_capacities(environment, servers)
            known = Counter(self._held_by_others(""))
            for run in self._runs.values():
                known.update(run.resetting if run.state != RunState.LAPSED else {})
            found.append(sum(max(0, c.slots - c.free - known[c.server]) for c in capacities))
            await asyncio.sleep(pause)
        return min(found)

    def _note(self, text: str) -> None:
        self._noted += 1
        self._notes.append((self._noted, text))
        _log.warning(text)

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()


class BrokerLink(Protocol):
    """A run's way to the broker."""

    async def sync(self, report: Report, timeout_s: float) -> Answer:
        """Raises BrokerGoneError, also when there was no answer in time."""
        ...


def _end_this_actor() -> None:
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


class _RaySlotBroker(SlotBroker):
    """The plain broker that ends its own actor."""

    def __init__(self) -> None:
        super().__init__(on_idle=_end_this_actor)


_RemoteSlotBroker: Any = ray.remote(_RaySlotBroker)


class RayBroker:
    """The cluster's one broker: found by its name, started where there is none."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def sync(self, report: Report, timeout_s: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                if self._actor is None:
                    self._actor = await ask_head(_find_or_start, timeout_s)
                answer = await self._actor.sync.remote(report)
        except (RayError, ValueError, TimeoutError) as error:
            self._actor = None
            text = str(error).strip().splitlines()
            raise BrokerGoneError(f"{type(error).__name__}: {text[0] if text else f'no answer within {timeout_s:g} s'}") from error
        assert isinstance(answer, Answer)
        return answer


def _find_or_start() -> Any:
    return _RemoteSlotBroker.options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=0,  # its runs start another
        max_task_retries=0,
        max_concurrency=256,
        **placed_without_cpu(),
    ).remote()
