"""Span records into OpenTelemetry: the one module that imports it (extra ``[otel]``), and nothing imports this one before it is needed.

Spans go through a tracer of our own: no global provider is set, what else in the process uses OpenTelemetry is left alone.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from rayeval.exceptions import ConfigurationError
from rayeval.otel import names
from rayeval.otel.records import SpanRecord
from rayeval.transport import public_url

TRACES_PATH = "/v1/traces"
_SCOPE = "rayeval"
_LOGGERS = (OTLPSpanExporter.__module__, "opentelemetry.exporter.otlp.common.http", "opentelemetry.exporter.otlp.proto.http._common")
"""A logger's filter sees what is logged by that name alone, so each is named."""
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


class SpanSink(Protocol):
    """Where spans go. Called from one thread; ``close`` from any."""

    target: str

    def send(self, records: Sequence[SpanRecord]) -> str | None:
        """Hand them over; -> what went wrong, or None. May block for as long as the exporter's time-out."""

    def heard(self) -> str | None:
        """What the exporter has complained of since the last ``send`` began."""

    def close(self) -> None:
        """End a ``send`` that waits to try again."""


class SdkSink:
    """Spans through the SDK to any ``SpanExporter``."""

    def __init__(self, exporter: SpanExporter, *, version: str, service_name: str | None = None, target: str = "") -> None:
        self.target = target
        self._exporter = exporter
        self._ids = _GivenIds()
        self._ended = _Ended()
        self._said = _Said()
        resource = {names.SERVICE_NAME: service_name or os.environ.get("OTEL_SERVICE_NAME") or "rayeval", names.SERVICE_VERSION: version}
        provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(resource), shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(_SCOPE, version)

    def send(self, records: Sequence[SpanRecord]) -> str | None:
        for record in records:
            self._play(record)
        with self._said:
            result = self._exporter.export(self._ended.take())
        return None if result is SpanExportResult.SUCCESS else self._said.words or "the exporter gives no reason"

    def heard(self) -> str | None:
        return self._said.words

    def close(self) -> None:
        self._exporter.shutdown()

    def _play(self, record: SpanRecord) -> None:
        """Start and end one span with the times and ids of its record."""
        self._ids.next = record.trace_id, record.span_id
        parent = None if record.parent_id is None else _context(record.trace_id, record.parent_id)
        span = self._tracer.start_span(
            record.name,
            context=set_span_in_context(NonRecordingSpan(parent) if parent is not None else NonRecordingSpan(_NOTHING)),
            kind=_KINDS[record.kind],
            attributes=record.attributes,
            links=() if record.link is None else (Link(_context(*record.link)),),
            start_time=record.start_ns,
        )
        for event in record.events:
            span.add_event(event.name, event.attributes, event.at_ns)
        if record.error is not None:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(record.end_ns)


def otlp_sink(*, endpoint: str | None, service_name: str | None, version: str) -> SdkSink:
    """OTLP over HTTP. ``endpoint``: base URL of the collector, or one that ends in ``/v1/traces``; None: what the ``OTEL_EXPORTER_OTLP_*``
    variables say, which also give headers, certificates, compression and time-out.

    Raises ConfigurationError for variables that name another protocol or hold what the exporter cannot use.
    """
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable)
        if protocol:
            if protocol != "http/protobuf":
                raise ConfigurationError(variable, protocol, "give http/protobuf, and the collector's HTTP port (4318 by default)")
            break
    try:
        exporter = OTLPSpanExporter(endpoint=None if endpoint is None else traces_url(endpoint))
    except Exception as error:
        raise ConfigurationError("tracing", None, f"the OTEL_EXPORTER_OTLP_* variables cannot be used: {error}") from error
    target = endpoint and traces_url(endpoint)
    return SdkSink(exporter, version=version, service_name=service_name, target=public_url(target or endpoint_of_environment()))


def traces_url(endpoint: str) -> str:
    """The URL that spans are posted to."""
    return endpoint if urlsplit(endpoint).path.endswith(TRACES_PATH) else endpoint.rstrip("/") + TRACES_PATH


def endpoint_of_environment() -> str:
    """Where the exporter sends to when the configuration names no endpoint."""
    own = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return own or traces_url(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318")


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


_NOTHING = SpanContext(0, 0, is_remote=False)
"""No parent: also keeps a span that is current in the calling thread from becoming one."""


class _GivenIds(IdGenerator):
    """The ids of the record that is played."""

    def __init__(self) -> None:
        self.next = (1, 1)

    def generate_trace_id(self) -> int:
        return self.next[0]

    def generate_span_id(self) -> int:
        return self.next[1]


class _Ended(SpanProcessor):
    """Keeps ended spans until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        taken, self._spans = self._spans, []
        return taken


_SYSTEM_SAID = re.compile(r"\[Errno -?[0-9]+\] ([^'\")\]]+)")
_TIMED_OUT = re.compile(r"timed out|TimeoutError|ReadTimeout", re.IGNORECASE)


def _reason(text: str) -> str:
    """What a record of the exporter's says, short: of a connection's failure, wrapped in urllib3's words, only what the system said."""
    if (found := _SYSTEM_SAID.search(text)) is not None:
        return found[1].strip().lower()
    if "HTTPConnectionPool" in text or "HTTPSConnectionPool" in text:
        return "no answer in time" if _TIMED_OUT.search(text) else text[:300]
    return text[:300]


class _Said(logging.Filter):
    """What the exporter logs during a ``send``, kept from the terminal: it says why an export failed, once for each try; the run says it
    once. Other threads' records pass."""

    def __init__(self) -> None:
        super().__init__()
        self.words: str | None = None
        self._thread = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        text = " ".join(record.getMessage().split())
        # these say less than the fault that was retried before them
        if self.words is None or not ("max retries or shutdown" in text or "Shutdown in progress" in text):
            self.words = _reason(text)
        return False

    def __enter__(self) -> None:
        self.words, self._thread = None, threading.get_ident()
        for logger in map(logging.getLogger, _LOGGERS):
            logger.addFilter(self)

    def __exit__(self, *raised: object) -> None:
        for logger in map(logging.getLogger, _LOGGERS):
            logger.removeFilter(self)
