"""What crosses between the driver and an actor. Plain tuples and bytes: they are pickled for every exchange."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, SupportsIndex

from rayeval.models import KeyMark
from rayeval.schemas import EnvironmentIdentity, EpisodeJob, JsonObject

LEASE_FLUSH_S = 0.04
"""A new lease is told after so long: what a driver has been told of is what its successor can give back, and it is in the journal 50 ms
after the reset at most."""


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """All an actor needs to build its clients where it lives. Light and picklable; holds no secret (the API key is read there)."""

    actor_id: str
    config: JsonObject
    """``Config.model_dump(mode="json")``."""
    system_prompt: str
    skill_bank: JsonObject | None
    persona: bool
    provenance: JsonObject
    """The static part of every trace's provenance."""
    servers: tuple[str, ...]
    """Resolved environment base URLs."""
    endpoints: tuple[str, ...]
    """Resolved model base URLs."""
    slots: int
    fence_s: float
    resets_per_s: float
    """This actor's share of the resets a server may get in a second."""
    pinned: EnvironmentIdentity
    sys_path: tuple[str, ...] = ()
    """Directories a user's own classes are imported from."""


class ActorInfo(NamedTuple):
    """Where an actor lives, as it says itself."""

    node_id: str
    host: str
    space: str
    """``burial.process_space``: where its pid means something."""
    pid: int
    start_time: float
    """Process start in seconds since the epoch, as psutil reads it: with the pid it names one process."""
    slots: int
    """Slots it can bear: what was asked, or fewer when file descriptors are short."""
    key_mark: KeyMark | None = None
    """By which the driver, which need not have the model's key, finds it in what the process printed."""


class Assignment(NamedTuple):
    """A job on its way to an actor."""

    job: EpisodeJob
    attempt: int
    endpoint: str
    """Model base URL, kept for the whole episode so that prefix caches hit."""


@dataclass(slots=True)
class Order:
    """Driver to actor, one an exchange."""

    number: int
    """From 1; the actor applies each order when it arrives, and only the newest one waits."""
    ack: int
    """Number of the last reply the driver has."""
    assignments: tuple[Assignment, ...] = ()
    quotas: dict[str, int] | None = None
    """New quota for each server; None: as before."""
    slots: int | None = None
    flush_s: float = 0.05
    lease_flush_s: float = LEASE_FLUSH_S
    idle_s: float = 1.0
    pinned: EnvironmentIdentity | None = None
    cancel: tuple[str, ...] = ()
    """Episode ids to cancel; ``("*",)``: all, queued and running."""
    give_back: bool = False
    """Return what is queued and not started (drain)."""
    pauses: dict[str, float] | None = None
    """Model endpoints that asked another actor for a pause: seconds left of each."""
    resend: bool = False
    """The reply after ``ack`` was lost on the way: send it again."""


class Record(NamedTuple):
    """One finished trace inside a reply; its line is the one of ``Reply.lines`` at the same place."""

    episode_id: str
    attempt: int
    status: str
    error_kind: str | None
    retryable: bool
    figures: dict[str, Any]
    identity: EnvironmentIdentity
    server: str


class LeaseChange(NamedTuple):
    event: str
    """``held`` or ``ended``."""
    server: str
    env_idx: int
    lease_id: str


class EpisodeView(NamedTuple):
    """One episode as somebody who watches the run sees it; nothing private."""

    episode_id: str
    age_s: float
    """Since it took its slot."""
    stage: str
    """One of ``rayeval.stages.STAGES``."""
    stage_s: float
    """In this stage, short by up to a second."""
    step: int
    """From 1; 0 outside of a step."""


class ActorView(NamedTuple):
    """Where the episodes of an actor stand."""

    stages: dict[str, int]
    """Episodes in each of ``rayeval.stages.STAGES``."""
    oldest: tuple[EpisodeView, ...]
    """At most ten, oldest first."""


@dataclass(slots=True)
class Reply:
    """Actor to driver."""

    number: int
    order: int
    """Number of the newest order applied when this was made."""
    records: list[Record] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    """One line for each record. They travel as buffers of their own: copied neither into the pickled reply nor out of it, which for the
    megabyte that a reply holds is half of what an exchange costs."""
    leases: list[LeaseChange] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    """Episode ids given back unfinished: queued ones on drain, cancelled ones."""
    taken: dict[str, int] = field(default_factory=dict)
    """For each server: max(quota in force, slots in use)."""
    in_flight: int = 0
    queued: int = 0
    resetting: dict[str, int] = field(default_factory=dict)
    """For each server: resets not answered yet."""
    out: dict[str, float] = field(default_factory=dict)
    """Model endpoints and environment servers that do not answer: since how many seconds."""
    pauses: dict[str, float] = field(default_factory=dict)
    """Seconds left of pauses that model endpoints asked for."""
    limits: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """With adaptive concurrency, for each model endpoint: (limit, calls in flight, calls that wait for leave)."""
    cpu_share: float | None = None
    """Of a core, used by the actor's work loop over the last second or longer; None: not measured yet."""
    lag_s: float = 0.0
    """Largest delay of the actor's loop since the last reply, in seconds."""
    missed: list[Reply] = field(default_factory=list)
    """Earlier replies sent again because they were asked for."""
    overdue: list[str] = field(default_factory=list)
    """Those of ``returned`` that had outlived every deadline of their own."""
    view: ActorView | None = None
    """For people who watch; None: as told before. At most once a second."""

    logs: list[tuple[float, str, str]] = field(default_factory=list)
    """Log records of the actor's process, scrubbed: Unix time, level, text."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # named tuples go through a Python hook of the pickler one by one, plain ones do not
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["records"] = [(*r[:6], tuple(r.identity), r.server) for r in self.records]
        values["leases"] = [tuple(change) for change in self.leases]
        if int(protocol) >= 5:
            values["lines"] = [pickle.PickleBuffer(line) for line in self.lines]
        return _reply, (values,)


def own_bytes(line: Any) -> bytes:
    """A line as bytes: what came from another process is a view of memory that Ray lends."""
    return line if isinstance(line, bytes) else bytes(memoryview(line))


def _reply(values: dict[str, Any]) -> Reply:
    values["records"] = [Record._make((*r[:6], EnvironmentIdentity._make(r[6]), r[7])) for r in values["records"]]
    values["leases"] = list(map(LeaseChange._make, values["leases"]))
    return Reply(**values)


class Ping(NamedTuple):
    """Answer of the control thread."""

    tick_age_s: float
    """Seconds since the work loop last ran."""
