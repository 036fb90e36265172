"""From what happened in one attempt to its line: the only writer of ``rayeval-episode-v1``. docs/traces.md says what each field means.

The conversation is kept as the bytes that were sent and goes into the line unparsed, so the trace cannot differ from what the model
saw. Results of the environment are referenced, not copied: they are never changed after they arrive.
"""

from __future__ import annotations

import time
import traceback as tracebacks
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from typing import Any

import orjson

from rayeval.encoding import encode, encode_line
from rayeval.exceptions import EpisodeError, ModelCallError
from rayeval.figures import StepSums, figures_of
from rayeval.hashing import fingerprint
from rayeval.latencies import packed
from rayeval.schemas import (
    TRACE_SCHEMA,
    EnvironmentIdentity,
    EpisodeJob,
    EpisodeStatus,
    ErrorKind,
    FinishedTrace,
    JsonObject,
    ModelOutput,
    ModelRetry,
    ProtocolError,
    Skill,
    ToolCall,
    TraceError,
)

_TRACEBACK_LIMIT = 16_000
_MESSAGE_LIMIT = 4_000


class TraceBuilder:
    """Collects one attempt. Not reusable, and silent: no method raises for odd content."""

    def __init__(self, job: EpisodeJob, attempt: int, provenance: JsonObject, server: str) -> None:
        self.job = job
        self.attempt = attempt
        self.provenance = provenance
        self.server = server
        self.messages: list[bytes] = []
        """The conversation: each message as encoded JSON. Also what the model client sends."""
        self.reset: JsonObject | None = None
        self.final: JsonObject | None = None
        self.identity = EnvironmentIdentity()
        self.error: TraceError | None = None
        self.environment_s: list[float] = []
        """Seconds that each answered call of the environment took, the reset's apart."""
        self._model_ms: list[float] = []
        self._skills: list[JsonObject] = []
        self._open_step: JsonObject | None = None
        self._sealed: list[orjson.Fragment] = []
        self._sums = StepSums()
        self._failed = False
        self._retryable = False
        self._kind: ErrorKind | None = None
        self._started_at = _now()
        self._started = time.monotonic()

    @property
    def failed(self) -> bool:
        return self._failed

    def add_message(self, message: JsonObject) -> None:
        self.messages.append(encode(message))

    def add_skills(self, skills: Sequence[Skill]) -> None:
        for s in skills:
            row = {"skill_id": s.skill_id, "content": s.content, "version": s.version, "metadata": s.metadata}
            self._skills.append({**row, "content_sha256": _content_sha256(s.content)})

    def add_step(self, index: int, observation: str, tools: list[JsonObject] | orjson.Fragment, output: ModelOutput) -> JsonObject:
        """-> the step, to be completed by the caller: ``action`` and ``environment`` are null so far."""
        step: JsonObject = {
            "step_index": index,
            "observation": observation,
            "tools": tools,
            "model": model_record(output),
            "action": None,
            "environment": None,
        }
        if output.resampled:
            step["resampled"] = "timeout"
        self._model_ms.append(output.latency_ms)
        self._seal_step()
        self._open_step = step
        return step

    def _seal_step(self) -> None:
        """Encode the step that is complete now and let go of its objects. Many conversations are open at once: a page's objects that
        wait for the end of the episode are out of every cache by then, and the collector walks them meanwhile."""
        step, self._open_step = self._open_step, None
        if step is None:
            return
        self._sealed.append(orjson.Fragment(encode(step)))
        self._sums.add(step)

    def fail(self, stage: str, error: BaseException) -> None:
        """Make this a failed attempt. Only the first failure counts."""
        if self._failed:
            return
        self._failed = True
        self.error = error_record(stage, error)
        if isinstance(error, EpisodeError):
            self._kind, self._retryable = error.kind, error.retryable
        else:
            self._kind, self._retryable = ErrorKind.INTERNAL, True

    def note_cleanup_error(self, error: BaseException) -> None:
        """A release that failed changes no verdict: it stands in ``error`` of a completed trace, beside the error of a failed one."""
        if self.error is None:
            self.error = error_record("cleanup", error)
        else:
            self.error.setdefault("cleanup_errors", []).append(f"{type(error).__name__}: {error}"[:_MESSAGE_LIMIT])

    def finish(self) -> FinishedTrace:
        """The line. Called once."""
        self._seal_step()
        status = EpisodeStatus.FAILED if self._failed else EpisodeStatus.COMPLETED
        trace: JsonObject = {
            "schema_version": TRACE_SCHEMA,
            "episode_id": self.job.episode_id,
            "attempt": self.attempt,
            "status": status.value,
            "job": self.job._asdict(),
            "provenance": self.provenance,
            "started_at": self._started_at,
            "ended_at": _now(),
            "duration_ms": round((time.monotonic() - self._started) * 1000, 3),
            "reset": self.reset,
            "selected_skills": self._skills,
            "conversation": [orjson.Fragment(message) for message in self.messages],
            "steps": self._sealed,
            "final": self.final,
            "error": self.error,
        }
        return FinishedTrace(
            episode_id=self.job.episode_id,
            attempt=self.attempt,
            status=status.value,
            line=encode_line(trace),
            error_kind=self._kind.value if self._kind is not None else None,
            retryable=self._retryable,
            figures=figures_of(trace, self._sums) | self._timings(),
            identity=self.identity,
            server=self.server,
        )

    def _timings(self) -> JsonObject:
        """What metrics add up and no trace or summary holds."""
        model = self.provenance.get("model")
        endpoint = model.get("base_url") if isinstance(model, dict) else None
        # a model class of a user's own may give anything for a latency
        model_s = [ms / 1e3 for ms in self._model_ms if isinstance(ms, int | float) and 0 <= ms < inf]
        return {"endpoint": endpoint, "model_s": packed(model_s), "environment_s": packed(self.environment_s)}


def model_record(output: ModelOutput) -> JsonObject:
    """``steps[].model``."""
    record: JsonObject = {
        "content": output.content,
        "reasoning": output.reasoning,
        "tool_calls": [call._asdict() for call in output.tool_calls],
        "finish_reason": output.finish_reason,
        "usage": output.usage,
        "response_id": output.response_id,
        "metadata": output.metadata,
        "latency_ms": output.latency_ms,
        "protocol_error": fault_record(output.protocol_error),
        "policy_failure": fault_record(output.policy_failure),
    }
    if output.raw_response is not None:
        record["raw_response"] = output.raw_response
    if output.retries:
        record["retries"] = retry_records(output.retries)
    return record


def fault_record(fault: ProtocolError | None) -> JsonObject | None:
    return None if fault is None else fault._asdict()


def retry_records(retries: Sequence[ModelRetry]) -> list[JsonObject]:
    return [{"cause": r.cause, "waited_s": round(r.waited_s, 3)} for r in retries]


def error_record(stage: str, error: BaseException) -> TraceError:
    """``trace["error"]``. Our own errors say what happened; the others come with a traceback."""
    record: TraceError = {"stage": stage, "type": type(error).__name__, "message": str(error)[:_MESSAGE_LIMIT]}
    if isinstance(error, EpisodeError):
        record["kind"] = error.kind.value
        record["retryable"] = error.retryable
        if isinstance(error, ModelCallError) and error.retries:
            record["model_retries"] = retry_records(error.retries)
    else:
        record["kind"] = ErrorKind.INTERNAL.value
        record["retryable"] = True
        record["traceback"] = "".join(tracebacks.format_exception(error))[-_TRACEBACK_LIMIT:]
    return record


def assistant_message(content: str | None, calls: Sequence[ToolCall]) -> JsonObject:
    """An answer as it goes back into the conversation; reasoning does not."""
    message: JsonObject = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.raw_arguments}} for c in calls
        ]
    return message


def tool_message(call: ToolCall, content: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": call.call_id, "content": content}


def _now() -> str:
    return datetime.now(UTC).isoformat()


@lru_cache(maxsize=1024)
def _content_sha256(content: str) -> Any:
    return fingerprint(content)
