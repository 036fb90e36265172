"""Spans as plain data, what they all say of their run, and the span of the run itself. Pure, and without OpenTelemetry.

Ids follow from the run, the episode and the attempt alone: the same line gives the same spans, and no two lines share an id. The run is
known by its fingerprint and the moment its manifest was made, so equal plans in two directories stay apart; attempts are counted over
the life of a run, so a resume cannot meet an id that was used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rayeval.costs import Prices
from rayeval.otel import names
from rayeval.otel.reading import NAME_CHARS, text_of, whole_of
from rayeval.schemas import JsonObject
from rayeval.scrub import Scrub

AttributeValue = str | bool | int | float | tuple[str, ...]

MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something at a moment inside a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span; times in nanoseconds since 1970."""

    name: str
    kind: Literal["internal", "client"]
    trace_id: int
    span_id: int
    parent_id: int | None
    """Span id of the parent, in the same trace."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    events: tuple[EventRecord, ...] = ()
    link: tuple[int, int] | None = None
    """(trace id, span id) of the run."""
    error: str | None = None
    """Description of the status ERROR; None: the status stays unset."""


@dataclass(frozen=True)
class RunContext:
    """What spans say of the run. ``created_at``: when the manifest was made. ``invocation``: the epoch of the run's lock, which grows with
    each driver; every invocation is a trace of its own."""

    name: str
    experiment: str
    fingerprint: str
    created_at: str
    invocation: int
    agent_name: str
    agent_id: str
    agent_version: str | None
    provider: str
    prices: Prices | None = None
    scrub: Scrub = field(default_factory=Scrub)
    content: bool = False

    @property
    def run_id(self) -> str:
        """16 hexadecimal digits, the same for every invocation of one run directory."""
        return _digest("run", self.fingerprint, self.created_at)[:8].hex()

    @property
    def span(self) -> tuple[int, int]:
        """(trace id, span id) of this invocation."""
        trace_id = id_of(16, "invocation", self.run_id, str(self.invocation))
        return trace_id, id_of(8, "span", f"{trace_id:032x}", "run")

    def attributes(self, found: JsonObject, ready: JsonObject | None = None) -> dict[str, AttributeValue]:
        """What is there of ``found``: texts cleaned and cut, and whole numbers as far as OTLP can carry them. ``ready``: texts that
        have been cleaned and cut to a length of their own."""
        made: dict[str, AttributeValue] = {}
        for name, value in found.items():
            if isinstance(value, str):
                made[name] = self.short(value)
            elif isinstance(value, tuple):
                made[name] = tuple(self.short(v) for v in value)
            elif isinstance(value, bool | float) or whole_of(value) is not None:
                made[name] = value
        made |= {name: value for name, value in (ready or {}).items() if value is not None}
        return made

    def short(self, text: str) -> str:
        """A name or a code: cleaned first and cut afterwards, so that no half of a key is left."""
        return self.scrub.text(text)[:NAME_CHARS]

    def message(self, text: str) -> str:
        """Free text of ours or a server's, the same way."""
        return self.scrub.error(text[: 8 * MESSAGE_CHARS])[:MESSAGE_CHARS]


def run_span(context: RunContext, start_ns: int, end_ns: int, status: Mapping[str, Any]) -> SpanRecord:
    """``invoke_workflow``: one invocation. ``status``: the last content of ``status.json``."""
    trace_id, span_id = context.span
    code = whole_of(status.get("exit_code"))
    reason = text_of(status.get("reason"))
    attributes = context.attributes(
        {
            names.OPERATION_NAME: names.OPERATION_WORKFLOW,
            names.WORKFLOW_NAME: context.experiment,
            names.RUN_ID: context.run_id,
            names.RUN_NAME: context.name,
            names.RUN_INVOCATION: context.invocation,
            names.PLAN_FINGERPRINT: context.fingerprint,
            names.AGENT_NAME: context.agent_name,
            names.RUN_EXIT_CODE: code,
            names.RUN_PLANNED: whole_of(status.get("planned")),
            names.RUN_REUSED: whole_of(status.get("reused")),
            names.RUN_DONE: whole_of(status.get("done")),
            names.RUN_FAILED: whole_of(status.get("failed")),
            names.ERROR_TYPE: f"exit_{code}" if code else None,
        },
        {names.RUN_REASON: context.message(reason) if reason else None},
    )
    name = f"{names.OPERATION_WORKFLOW} {context.short(context.experiment)}"
    error = context.message(reason or f"exit code {code}") if code else None
    return SpanRecord(name, "internal", trace_id, span_id, None, start_ns, max(start_ns, end_ns), attributes, error=error)


def _digest(*words: str) -> bytes:
    return hashlib.sha256("\0".join(("rayeval-otel-v1", *words)).encode("utf-8", "surrogatepass")).digest()


def id_of(size: int, *words: str) -> int:
    """An id of ``size`` bytes; zero, which OpenTelemetry forbids, is one."""
    return int.from_bytes(_digest(*words)[:size]) or 1
