"""A collector on a real socket that takes OTLP protobuf over HTTP, and lines to send to it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What came in, decoded. ``status``: what it answers. ``gate``: while cleared, no answer at all."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[tuple[str, dict[str, str]]] = []
        """(path, headers) of each request."""
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.url = ""

    def named(self, start: str) -> list[Span]:
        return [s for s in self.spans if s.name.startswith(start)]


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    """A collector on a port of its own."""
    made = Collector(status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not made.gate.wait(30):
                return
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            made.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            made.bodies.append(body)
            if made.status == 200:
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    made.resources.append(attributes(group.resource.attributes))
                    for scope in group.scope_spans:
                        made.spans.extend(scope.spans)
            try:
                self.send_response(made.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                pass  # the other side has gone

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def attributes(pairs: Any) -> dict[str, Any]:
    """OTLP key-values as plain values."""
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(v) for v in value.array_value.values]
    return getattr(value, kind) if kind else None
