import io
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rayeval.exceptions import ConfigurationError
from rayeval.otel.records import run_span
from rayeval.otel.sink import SdkSink, endpoint_of_environment, otlp_sink, traces_url
from rayeval.otel.spans import episode_spans
from tests.otel.collector import attributes, collector
from tests.otel.lines import START_NS, completed, context, failed


@pytest.fixture
def made_sink() -> Iterator[Callable[..., SdkSink]]:
    """A factory of sinks, closed after the test."""
    with ExitStack() as stack:

        def make(exporter: SpanExporter, **more: Any) -> SdkSink:
            sink = SdkSink(exporter, version="1.2.3", **more)
            stack.callback(sink.close)
            return sink

        yield make


def test_records_become_spans_with_their_ids_times_links_and_status(made_sink: Callable[..., SdkSink]) -> None:
    memory = InMemorySpanExporter()
    sink = made_sink(memory, service_name="evals")
    made = context()
    records = [*episode_spans(failed(), made, START_NS), run_span(made, START_NS, START_NS + 5, {"exit_code": 1, "reason": "2 failed"})]
    assert sink.send(records) is None
    spans = {s.context.span_id: s for s in memory.get_finished_spans()}
    assert len(spans) == len(records)
    for record in records:
        span = spans[record.span_id]
        assert (span.name, span.context.trace_id, span.start_time, span.end_time) == (
            record.name, record.trace_id, record.start_ns, record.end_ns,
        )  # fmt: skip
        assert dict(span.attributes or {}) == dict(record.attributes)
        assert span.kind is (SpanKind.CLIENT if record.kind == "client" else SpanKind.INTERNAL)
        assert (span.parent.span_id if span.parent else None) == record.parent_id
        assert span.status.status_code is (StatusCode.UNSET if record.error is None else StatusCode.ERROR)
        assert [(e.name, e.timestamp) for e in span.events] == [(e.name, e.at_ns) for e in record.events]
        assert span.context.trace_flags.sampled
    root, run = spans[records[0].span_id], spans[records[-1].span_id]
    (link,) = root.links
    assert (link.context.trace_id, link.context.span_id) == (run.context.trace_id, run.context.span_id)
    assert root.context.trace_id != run.context.trace_id and run.name == "invoke_workflow small" and run.status.description == "2 failed"
    assert root.resource.attributes["service.name"] == "evals" and root.resource.attributes["service.version"] == "1.2.3"
    assert root.instrumentation_scope is not None and root.instrumentation_scope.name == "rayeval"


def test_a_span_that_is_current_in_the_thread_becomes_no_parent(made_sink: Callable[..., SdkSink]) -> None:
    memory = InMemorySpanExporter()
    with trace.use_span(TracerProvider().get_tracer("app").start_span("outer")):
        made_sink(memory).send(episode_spans(completed(), context(), START_NS))
    root = memory.get_finished_spans()[0]
    assert root.parent is None and root.context.trace_id == episode_spans(completed(), context(), START_NS)[0].trace_id


def test_the_service_name_falls_back_to_the_variable_and_then_to_ours(
    made_sink: Callable[..., SdkSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    def named() -> object:
        memory = InMemorySpanExporter()
        made_sink(memory).send(episode_spans(completed(), context(), START_NS))
        return memory.get_finished_spans()[0].resource.attributes["service.name"]

    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert named() == "rayeval"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert named() == "mine"


def test_the_console_exporter_takes_them(made_sink: Callable[..., SdkSink]) -> None:
    out = io.StringIO()
    assert made_sink(ConsoleSpanExporter(out=out)).send(episode_spans(completed(), context(), START_NS)) is None
    assert '"name": "execute_tool search"' in out.getvalue()


def test_spans_arrive_as_otlp_with_the_headers_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as taken:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        sink = otlp_sink(endpoint=taken.url, service_name=None, version="1")
        assert sink.target == taken.url + "/v1/traces"
        assert sink.send(episode_spans(completed(), context(), START_NS)) is None
        sink.close()
        ((path, headers),) = taken.requests
        assert path == "/v1/traces" and headers["authorization"] == "Basic abc" and headers["content-encoding"] == "gzip"
        assert attributes(taken.named("chat")[0].attributes)["gen_ai.request.stop_sequences"] == ["\n\n"]


class Heard(logging.Handler):
    """What reaches the root logger, and so the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.names.append(record.name)


def test_a_refusal_is_told_in_words_and_kept_from_the_terminal() -> None:
    root, heard = logging.getLogger(), Heard()
    root.addHandler(heard)
    try:
        with collector(status=401) as taken:
            sink = otlp_sink(endpoint=taken.url + "/v1/traces", service_name=None, version="1")
            said = sink.send(episode_spans(completed(), context(), START_NS))
            sink.close()
        assert said is not None and "401" in said and sink.heard() == said
        assert not [name for name in heard.names if name.startswith("opentelemetry")]
        logging.getLogger(OTLPSpanExporter.__module__).warning("of another's exporter, afterwards")
        assert heard.names[-1] == OTLPSpanExporter.__module__
    finally:
        root.removeHandler(heard)


def test_of_a_collector_that_is_not_there_only_what_the_system_says_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sink = otlp_sink(endpoint=f"http://127.0.0.1:{port}", service_name=None, version="1")
    enough = threading.Timer(0.3, sink.close)  # it would try again for ten seconds
    enough.start()
    assert sink.send([*episode_spans(failed(), context(), START_NS)]) == "connection refused" == sink.heard()
    enough.join()


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("https://cloud.example/api/public/otel", "https://cloud.example/api/public/otel/v1/traces"),
    ],
)
def test_the_path_is_added_once(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


def test_without_an_endpoint_the_variables_say_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint_of_environment() == "http://localhost:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:pw@c:1")
    sink = otlp_sink(endpoint=None, service_name=None, version="1")
    assert sink.target == "http://c:1/v1/traces"
    sink.close()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:2/own")
    assert endpoint_of_environment() == "http://c:2/own"


@pytest.mark.parametrize(("name", "value"), [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")])
def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"{name} = '{value}': give http/protobuf"):
        otlp_sink(endpoint="http://c:4318", service_name=None, version="1")


def test_variables_that_cannot_be_used_are_input_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nosuch")
    with pytest.raises(ConfigurationError, match=r"variables cannot be used: .*nosuch"):
        otlp_sink(endpoint="http://c:4318", service_name=None, version="1")
