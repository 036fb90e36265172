"""The nouns of rayeval; every other module imports its words from here.

job          one planned episode: (task_id, sample_id, seed, split); known by its episode id
attempt      one execution of a job, numbered from 1 over the life of the run
episode      what an attempt does: reset, turns of model and environment, an end, a release
step         one turn of the model and, when its call was well formed, one action of the environment
trace        the record of an attempt; one line of ``traces.jsonl`` (schema ``rayeval-episode-v1``)
lease        the right to one environment slot, given by a reset and ended by a release
slot         one place for an episode
run          a directory with one manifest
plan         the frozen meaning of a run; ``fingerprint`` is its hash
receipt      the small record that a trace is durable; one line of ``receipts.jsonl``
shard        one Parquet file of traces

What is on disk is a ``TypedDict`` here; what is in memory is a frozen dataclass. ``runtime.py`` turns the second into the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, NotRequired, TypedDict

TRACE_SCHEMA = "rayeval-episode-v1"
FOREIGN_TRACE_SCHEMAS = frozenset({"shopsimrl-episode-v4"})
"""Traces that are read but never written."""
MANIFEST_SCHEMA = "rayeval-run-manifest-v1"
SUMMARY_SCHEMA = "rayeval-summary-v1"
STATUS_SCHEMA = "rayeval-status-v1"
ACTION_PROTOCOL = "rayeval-function-tools-v1"
PIPELINE_VERSION = "rayeval-pipeline-v1"

JsonObject = dict[str, Any]


class EpisodeStatus(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    """The environment said done; the reward counts, also when the policy failed."""
    FAILED = "failed"
    """Infrastructure failed; never a score."""
    CANCELLED = "cancelled"
    """Stopped from outside (drain, fencing, caps); no line is written and the job stays to be run."""


class Termination(StrEnum):
    """Why a completed episode ended. A user's environment may give words of its own."""

    PURCHASE = "purchase"
    ACTION_LIMIT = "action_limit"
    """``max_steps`` turns, or the server's own limit, were used up."""
    GENERATION_LENGTH = "generation_length"
    """The model ran into ``max_tokens`` before one usable call."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model; the environment is told ``generation_length``."""


class ErrorKind(StrEnum):
    """What failed, for counting; ``stage`` in the record says where."""

    MODEL_UNAVAILABLE = "model_unavailable"
    """Network faults, time-outs and refused statuses until ``model_attempts`` were used up."""
    MODEL_REFUSED = "model_refused"
    """A status that no retry mends (400, 401, 403, 404, 422 ...)."""
    ENVIRONMENT_UNAVAILABLE = "environment_unavailable"
    """Connection refused or lost, a time-out, a gateway's answer."""
    ENVIRONMENT_REFUSED = "environment_refused"
    """The server said that the request itself is wrong (unknown task, bad input): final at once."""
    ENVIRONMENT_ERROR = "environment_error"
    """A 500 of the server's own, or an answer that is not the contract's."""
    ENVIRONMENT_CHANGED = "environment_changed"
    """The server is of another version than the run began with."""
    LEASE_LOST = "lease_lost"
    """409: the lease is not ours any more."""
    RESET_TIMEOUT = "reset_timeout"
    """No slot within ``reset_timeout_s``; the request lives on in the reaper."""
    EPISODE_TIMEOUT = "episode_timeout"
    """``episode_timeout_s`` after the reset's answer."""
    LOST = "lost"
    """The actor, its node or its reply died; written by the driver, outside ``attempts``."""
    QUARANTINED = "quarantined"
    """The job killed an actor that ran nothing else; left out of later invocations unless asked for."""
    INTERNAL = "internal"
    """A defect of ours or of a user's class, with its traceback."""


class EpisodeJob(NamedTuple):
    """One planned episode."""

    task_id: int
    sample_id: int
    seed: int
    split: str

    @property
    def episode_id(self) -> str:
        return f"task-{self.task_id:06d}__sample-{self.sample_id:03d}"


class ToolCall(NamedTuple):
    """A decoded tool call: ``raw_arguments`` as the model wrote them, ``arguments`` parsed."""

    call_id: str
    name: str
    arguments: JsonObject
    raw_arguments: str


class ProtocolError(NamedTuple):
    """A model answer that breaks the tool protocol: fed back to the model, costs one step."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ModelRetry:
    """One attempt at a model call that was thrown away."""

    cause: str
    """``status_429``, ``status_500`` ..., ``timeout``, ``connect``, ``disconnected``."""
    waited_s: float
    """Back-off slept after it, in seconds."""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The outcome of one model turn, well formed or not (never an infrastructure failure: those are raised)."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: JsonObject
    response_id: str | None
    latency_ms: float
    """Wall clock of the turn in milliseconds, retries and back-off included."""
    protocol_error: ProtocolError | None = None
    policy_failure: ProtocolError | None = None
    """``generation_length`` or ``context_overflow``: the episode ends here, scored."""
    raw_response: Any = None
    """The body as received (parsed JSON, or text cut at 64 KB), kept only when the answer was rejected."""
    retries: tuple[ModelRetry, ...] = ()
    metadata: JsonObject = field(default_factory=dict)

    @property
    def resampled(self) -> bool:
        """Whether an answer may have been generated and lost before this one (time-out or cut connection)."""
        return any(r.cause in ("timeout", "disconnected") for r in self.retries)


@dataclass(frozen=True, slots=True)
class Skill:
    """One piece of advice put into the system message."""

    skill_id: str
    content: str
    version: str = "1"
    metadata: JsonObject = field(default_factory=dict)


class Lease(NamedTuple):
    """The right to one slot of one server."""

    server: str
    """Base URL of the environment server."""
    env_idx: int
    lease_id: str


class EnvironmentIdentity(NamedTuple):
    """What a server says it is. None: not seen yet."""

    environment_version: str | None = None
    observation_version: str | None = None
    reward_version: str | None = None

    def differs_from(self, pinned: EnvironmentIdentity) -> str | None:
        """-> the first version that both know and that is not equal, as ``name: pinned -> seen``; None when compatible."""
        for name, mine, theirs in zip(self._fields, self, pinned, strict=True):
            if mine is not None and theirs is not None and mine != theirs:
                return f"{name}: {theirs} -> {mine}"
        return None

    def merged(self, other: EnvironmentIdentity) -> EnvironmentIdentity:
        """Fill what is unknown here from ``other``."""
        return EnvironmentIdentity(*(a if a is not None else b for a, b in zip(self, other, strict=True)))


class ServerCapacity(NamedTuple):
    """What one environment server said of its slots."""

    server: str
    slots: int
    free: int
    identity: EnvironmentIdentity


class TraceError(TypedDict):
    """``trace["error"]``."""

    stage: str
    """reset, skill_selection, model_step_N, environment_step_N, policy_termination_step_N, action_limit_termination, cleanup,
    evaluator_boundary, lost."""
    kind: NotRequired[str]
    """An ``ErrorKind``; absent in foreign traces."""
    type: str
    message: str
    retryable: NotRequired[bool]
    traceback: NotRequired[str]
    model_retries: NotRequired[list[JsonObject]]
    """Attempts thrown away in the model call that failed: ``{cause, waited_s}``."""
    cleanup_errors: NotRequired[list[str]]
    quarantined: NotRequired[bool]
    """True in the line that puts a job into quarantine."""


class Trace(TypedDict):
    """One attempt, one line. See docs/traces.md for each field."""

    schema_version: str
    episode_id: str
    attempt: int
    status: str
    job: JsonObject
    provenance: JsonObject
    started_at: str
    ended_at: str
    duration_ms: float
    reset: JsonObject | None
    selected_skills: list[JsonObject]
    conversation: list[JsonObject]
    steps: list[JsonObject]
    final: JsonObject | None
    error: TraceError | None


class FinishedTrace(NamedTuple):
    """A trace on its way from an actor to the trace log: its line is bytes, and what the driver must know is beside it."""

    episode_id: str
    attempt: int
    status: str
    """``EpisodeStatus``: completed or failed."""
    line: bytes
    """The JSON line with its newline."""
    error_kind: str | None
    retryable: bool
    figures: Mapping[str, Any]
    """``summary.figures_of(trace)``, which the live display adds up; of a trace just built also ``endpoint``, ``model_s`` and
    ``environment_s`` (``latencies.Packed``) for metrics."""
    identity: EnvironmentIdentity = EnvironmentIdentity()
    server: str | None = None


class Receipt(NamedTuple):
    """Where a durable trace lies in ``traces.jsonl``."""

    episode_id: str
    attempt: int
    status: str
    offset: int
    """Byte offset of the line."""
    length: int
    """Bytes of the line, newline included."""
    crc32: int


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    """All done."""
    FAILED_EPISODES = 1
    """The work ended, but more than ``max_failed`` episodes failed for good."""
    BAD_INPUT = 2
    """Bad configuration or input: one line names the field, the value and what to give."""
    FINGERPRINT = 3
    """The run directory holds another plan, or other weights."""
    REFUSED = 4
    """A refused action or a condition not met: test guard, gate, ``--fail-if``, a second driver."""
    STOPPED = 5
    """Stopped by the machine: disk full, unwritable, endpoints out."""
    INTERNAL = 70
    """A defect of ours, with its traceback."""
    SIGINT = 130
    """Drained after SIGINT."""
    SIGPIPE = 141
    """Nobody reads standard output any more, and how it ends was not known yet. A verb that comes to its end keeps its own code."""
    SIGTERM = 143
    """Drained after SIGTERM."""
