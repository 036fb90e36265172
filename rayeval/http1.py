"""HTTP/1.1 to plain ``http://`` servers with as little work as a request allows: a third of what a full client costs.

Model and environment servers beside a run are asked a thousand times a second with one small POST each. Reading HTTP is left to httptools
(the parser under uvicorn); what is here is the pool of connections around it. Whatever such a request does not need is left to aiohttp
(``transport.py``): TLS, proxies. Nothing here follows redirects, keeps cookies or sends anything twice.

Invariants:

* A connection serves one request at a time, and its future is resolved once: with a whole answer or with a ``Failure``.
* Only a connection whose answer was whole, framed, and followed by nothing goes back to the pool; any other is closed. One that was lost,
  or has been idle for ``keepalive_s``, is never used again.
* The request's bytes are handed over in one write, after the connection is there: what fails before is ``sent=False``.
* Closing rule: ``close`` ends idle and busy connections; a request that still runs fails.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, cast

import httptools
from multidict import CIMultiDict, CIMultiDictProxy

_MAX_HEAD_BYTES = 64 * 1024
START_BYTES = 4096
"""How much of a body that is too large is shown to the caller."""
_DNS_TTL_S = 60.0
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

_CLOSED_EARLY = "the server closed the connection before it answered"
_BADLY_FRAMED = "the answer's body ended early or is badly framed"
_NOT_HTTP = "the answer is not HTTP"


class Cause(Enum):
    """Why a request got no answer."""

    CONNECT = auto()
    """No connection: nothing was sent."""
    TIMEOUT = auto()
    LOST = auto()
    TOO_LARGE = auto()


class Failure(NamedTuple):
    """In place of an answer."""

    cause: Cause
    text: str
    start: bytes = b""
    """Of a body that is too large: its first bytes as sent."""


class Answer(NamedTuple):
    """A whole answer; the body as it was sent, chunks joined."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class Origin(NamedTuple):
    """Where connections go."""

    host: str
    port: int


def request_head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    """The head up to where ``Content-Length`` goes. Raises ValueError for what no HTTP/1.1 head can hold."""
    lines = [b"%s %s HTTP/1.1\r\nHost: %s\r\n" % (method.encode("ascii"), target.encode("ascii"), host.encode("ascii"))]
    for name, value in headers.items():
        key, text = name.encode("ascii"), value.encode()
        if not _TOKEN.fullmatch(key) or any(c in text for c in (b"\r", b"\n", b"\0")):
            raise ValueError(f"the header {name!r} is malformed")
        lines.append(b"%s: %s\r\n" % (key, text))
    return b"".join(lines)


class Connections:
    """A pool of connections to any number of origins, without a limit. Lives in one event loop."""

    def __init__(self, keepalive_s: float, connect_timeout_s: float) -> None:
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._addresses: dict[Origin, tuple[float, list[tuple[str, int]]]] = {}
        self._closed = False

    async def request(self, origin: Origin, head: bytes, body: bytes | None, timeout_s: float | None, max_bytes: int) -> Answer | Failure:
        """Send one request and read its answer. ``head`` is ``request_head``'s. Only CancelledError is raised."""
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        connection = self._take(origin)
        if connection is None:
            made = await self._connect(origin, timeout_s)
            if isinstance(made, Failure):
                return made
            connection = made
        # written at once and kept nowhere: the answer may be many seconds away
        answered = connection.send(
            head + b"\r\n" if body is None else b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body), deadline, max_bytes
        )
        try:
            answer = await answered
        except asyncio.CancelledError:
            connection.abort()
            raise
        if connection.reusable:
            connection.idle_since = self._loop.time()
            self._idle[origin].append(connection)
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        """End every connection; idempotent."""
        self._closed = True
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def forget(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)

    def _take(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        if idle is None:
            self._idle[origin] = deque()
            return None
        oldest = self._loop.time() - self._keepalive_s
        while idle and (idle[0].idle_since < oldest or not idle[0].reusable):
            idle.popleft().abort()
        while idle:
            connection = idle.pop()
            if connection.reusable:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, timeout_s: float | None) -> _Connection | Failure:
        within = self._connect_timeout_s if timeout_s is None else min(self._connect_timeout_s, timeout_s)
        connection = _Connection(self, self._loop)
        bound = asyncio.timeout(within)
        try:
            async with bound:
                await self._connect_to_any(origin, connection)
        except TimeoutError as error:
            if bound.expired():
                return Failure(Cause.CONNECT, f"no connection within {within:g} s")
            return Failure(Cause.CONNECT, f"no connection: {error.strerror or type(error).__name__}")
        except socket.gaierror:
            return Failure(Cause.CONNECT, "the host name does not resolve")
        except OSError as error:
            return Failure(Cause.CONNECT, f"no connection: {error.strerror or type(error).__name__}")
        except (ValueError, UnicodeError):
            return Failure(Cause.CONNECT, "the host name does not resolve")
        if self._closed:
            connection.abort()
            return Failure(Cause.CONNECT, "the transport was closed")
        self._open.add(connection)
        return connection

    async def _connect_to_any(self, origin: Origin, connection: _Connection) -> None:
        addresses = await self._resolved(origin)
        for address in addresses[:-1]:
            try:
                await self._loop.create_connection(lambda: connection, *address)
            except OSError:
                continue
            return
        try:
            await self._loop.create_connection(lambda: connection, *addresses[-1])
        except OSError:
            self._addresses.pop(origin, None)
            raise

    async def _resolved(self, origin: Origin) -> list[tuple[str, int]]:
        """Addresses of a host, remembered for a minute. Raises OSError, socket.gaierror among them."""
        known = self._addresses.get(origin)
        now = time.monotonic()
        if known is not None and known[0] > now:
            return known[1]
        found = await self._loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys((str(entry[4][0]), origin.port) for entry in found))
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        self._addresses[origin] = (now + _DNS_TTL_S, addresses)
        return addresses


class _Connection(asyncio.Protocol):
    """One TCP connection and the answer that is being read from it. The ``on_*`` methods are httptools' callbacks."""

    def __init__(self, pool: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        self.reusable = False
        """Alive, and clean for another request."""
        self._answer: asyncio.Future[Answer | Failure] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._max_bytes = 0
        self._head_bytes = 0
        self._in_body = self._ended = self._spare = False
        self._until_close = False
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._body: list[bytes] = []
        self._size = 0

    def send(self, data: bytes, deadline: float | None, max_bytes: int) -> asyncio.Future[Answer | Failure]:
        """Write a request; -> its answer to be."""
        answer: asyncio.Future[Answer | Failure] = self._loop.create_future()
        transport = self._transport
        if transport is None or transport.is_closing():
            self.reusable = False
            answer.set_result(Failure(Cause.LOST, _CLOSED_EARLY))
            return answer
        self._answer = answer
        self.reusable = False
        self._max_bytes = max_bytes
        self._begin()
        self._deadline = deadline
        if deadline is not None and (self._timer is None or self._timer.when() > deadline):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._on_timer)
        transport.write(data)
        return answer

    def abort(self) -> None:
        """Close without ceremony; a request that still runs fails."""
        self.reusable = False
        self._stop_timer()
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()
        self._fail(Cause.LOST, "the transport was closed")

    # ---- asyncio.Protocol ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.reusable = False  # nobody asked: whatever comes next could not be told apart from an answer
            if self._transport is not None:
                self._transport.abort()
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Cause.LOST, _NOT_HTTP)
        except httptools.HttpParserError:
            if not self._ended:  # else the answer is whole, and what came after it only spoils the connection
                self._fail(Cause.LOST, _BADLY_FRAMED if self._in_body else _NOT_HTTP)
            self._spare = True
        if self._ended:
            self._finish()
        elif not self._in_body and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(Cause.LOST, _NOT_HTTP)

    def eof_received(self) -> bool:
        self.reusable = False
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._transport = None
        self._stop_timer()
        self._pool.forget(self)
        if exc is None and self._in_body and self._until_close:
            self._finish()
        elif self._in_body:
            self._fail(Cause.LOST, _BADLY_FRAMED)
        elif isinstance(exc, OSError):
            self._fail(Cause.LOST, f"connection lost: {exc.strerror or type(exc).__name__}")
        else:
            self._fail(Cause.LOST, _NOT_HTTP if self._head_bytes else _CLOSED_EARLY)

    # ---- httptools ----------------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._ended:
            self._spare = True  # a second answer to one request
        elif self._headers:
            self._headers = CIMultiDict()  # after an interim answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._ended:
            self._headers.add(name.decode("ascii", "replace"), value.decode("utf-8", "surrogateescape").strip(" \t"))

    def on_headers_complete(self) -> None:
        if self._ended or self._interim():
            return
        self._in_body = True
        self._status = self._parser.get_status_code()
        length = self._headers.get("Content-Length")
        self._until_close = length is None and "Transfer-Encoding" not in self._headers and self._status not in (204, 304)
        if length is not None and length.isdigit() and int(length) > self._max_bytes:
            self._max_bytes = min(self._max_bytes, START_BYTES)  # its start is waited for, not its end

    def on_body(self, body: bytes) -> None:
        if self._ended:
            return
        self._size += len(body)
        if self._size > self._max_bytes:
            start = b"".join((*self._body, body))[:START_BYTES]
            self._body.clear()
            self._fail(Cause.TOO_LARGE, "", start)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._ended:
            self._spare = True
        elif self._in_body:
            self._ended = True
            self._keep = self._parser.should_keep_alive() and not self._until_close

    def _interim(self) -> bool:
        return 100 <= self._parser.get_status_code() < 200

    # ---- ends ---------------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._head_bytes = self._size = self._status = 0
        self._in_body = self._ended = self._spare = self._until_close = self._keep = False
        self._headers = CIMultiDict()
        self._body = []

    def _finish(self) -> None:
        answer = self._answer
        if answer is None or answer.done():
            return
        self._answer = None
        transport = self._transport
        # bytes of the request that are still unsent would run into the next one
        clean = self._ended and self._keep and not self._spare
        self.reusable = clean and transport is not None and transport.get_write_buffer_size() == 0
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        answer.set_result(Answer(self._status, CIMultiDictProxy(self._headers), body))

    def _fail(self, cause: Cause, text: str, start: bytes = b"") -> None:
        answer = self._answer
        if answer is None or answer.done():
            return
        self._answer = None
        self.reusable = False
        answer.set_result(Failure(cause, text, start))

    def _on_timer(self) -> None:
        """One timer serves many requests: it fires at a moment some request named, and looks what the present one wants."""
        self._timer = None
        if self._answer is None or self._deadline is None:
            return
        if self._loop.time() >= self._deadline:
            self._fail(Cause.TIMEOUT, "")
        else:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
