"""HTTP/1.1 to plain ``http://`` servers with as little work as a request allows: a third of what a full client costs.

Model and environment servers beside a run are asked a thousand times a second with one small POST each. Everything that such a request
does not need is left to aiohttp (``transport.py``): TLS, proxies. Nothing here follows redirects, keeps cookies or sends anything twice.

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
from functools import lru_cache
from typing import NamedTuple, cast

from multidict import CIMultiDict, CIMultiDictProxy

_MAX_HEAD_BYTES = 64 * 1024
_MAX_FIELD_CHARS = 8190
_MAX_CHUNK_LINE = 4096
_DNS_TTL_S = 60.0
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\x00]*)?")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")

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


class Answer(NamedTuple):
    """A whole answer; the body as it was sent, chunks joined."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class Origin(NamedTuple):
    """Where connections go."""

    host: str
    port: int


class _Framing(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class _BadAnswerError(ValueError):
    """The peer does not speak HTTP/1.1."""


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
    """One TCP connection and the answer that is being read from it."""

    def __init__(self, pool: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.reusable = False
        """Alive, and clean for another request."""
        self._answer: asyncio.Future[Answer | Failure] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._max_bytes = 0
        self._framing = _Framing.HEAD
        self._keep = False
        self._status = 0
        self._headers: CIMultiDictProxy[str] = _NO_HEADERS
        self._expected = 0
        self._buffer = bytearray()
        """Head or chunk bytes that are not complete yet; with a known length, the body so far."""
        self._body = bytearray()
        """Chunks joined, or everything until the close."""
        self._in_trailer = False

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
        self._framing = _Framing.HEAD
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
        try:
            if self._framing is _Framing.HEAD:
                self._read_head(data)
            else:
                self._read_body(data)
        except _BadAnswerError as error:
            self._fail(Cause.LOST, str(error))

    def eof_received(self) -> bool:
        self.reusable = False
        if self._answer is not None and self._framing is _Framing.UNTIL_CLOSE:
            self._finish(bytes(self._body), clean=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._transport = None
        self._stop_timer()
        self._pool.forget(self)
        if exc is None and self._framing is _Framing.UNTIL_CLOSE and self._answer is not None and not self._answer.done():
            self._finish(bytes(self._body), clean=False)
        elif self._framing is not _Framing.HEAD:
            self._fail(Cause.LOST, _BADLY_FRAMED)
        elif isinstance(exc, OSError):
            self._fail(Cause.LOST, f"connection lost: {exc.strerror or type(exc).__name__}")
        else:
            self._fail(Cause.LOST, _NOT_HTTP if self._buffer else _CLOSED_EARLY)

    # ---- reading ------------------------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
            self._buffer.clear()
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _MAX_HEAD_BYTES or not data.startswith(b"HTTP/1."[: len(data)]):
                raise _BadAnswerError(_NOT_HTTP)
            self._buffer += data
            return
        if end > _MAX_HEAD_BYTES:
            raise _BadAnswerError(_NOT_HTTP)
        self._take_head(data[:end])
        rest = data[end + 4 :]
        if 100 <= self._status < 200:
            if self._status == 101:
                raise _BadAnswerError(_NOT_HTTP)
            self._framing = _Framing.HEAD  # an interim answer: the real one follows
            if rest:
                self._read_head(rest)
            return
        if self._framing is _Framing.LENGTH and len(rest) == self._expected:
            if self._expected > self._max_bytes:
                self._fail(Cause.TOO_LARGE, "")
            else:
                self._finish(rest, clean=True)
            return
        self._body.clear()
        self._in_trailer = False
        self._read_body(rest)

    def _take_head(self, head: bytes) -> None:
        """Status, headers and framing. Raises _BadAnswerError."""
        line, _, block = head.partition(b"\r\n")
        status_line = _STATUS_LINE.fullmatch(line)
        if status_line is None:
            raise _BadAnswerError(_NOT_HTTP)
        headers: CIMultiDict[str] = CIMultiDict()
        if block:
            for field in block.decode("utf-8", "surrogateescape").split("\r\n"):
                name, colon, value = field.partition(":")
                if not colon or not _is_name(name) or len(field) > _MAX_FIELD_CHARS or "\n" in value or "\r" in value or "\0" in value:
                    raise _BadAnswerError(_NOT_HTTP)
                headers.add(name, value.strip(" \t"))
        self._status = status = int(status_line[2])
        self._headers = CIMultiDictProxy(headers)
        connection = headers.get("Connection")
        if connection is None:
            self._keep = status_line[1] == b"1"
        else:
            words = connection.lower()
            self._keep = "close" not in words and (status_line[1] == b"1" or "keep-alive" in words)
        if (coding := headers.get("Transfer-Encoding")) is not None:
            if coding.strip().lower() != "chunked":
                raise _BadAnswerError(_BADLY_FRAMED)
            self._framing = _Framing.CHUNKED
            self._keep = self._keep and "Content-Length" not in headers
        elif status in (204, 304):
            self._framing, self._expected = _Framing.LENGTH, 0
        elif (length := headers.get("Content-Length")) is not None:
            if not (length.isascii() and length.isdigit()) or len(set(headers.getall("Content-Length"))) > 1:
                raise _BadAnswerError(_BADLY_FRAMED)
            self._framing, self._expected = _Framing.LENGTH, int(length)
        else:
            self._framing = _Framing.UNTIL_CLOSE
            self._keep = False

    def _read_body(self, data: bytes) -> None:
        if self._framing is _Framing.CHUNKED:
            self._buffer += data
            self._read_chunks()
            return
        self._body += data
        size = len(self._body)
        if self._framing is _Framing.LENGTH:
            if self._expected > self._max_bytes:
                self._fail(Cause.TOO_LARGE, "")
            elif size >= self._expected:
                self._finish(bytes(self._body[: self._expected]), clean=size == self._expected)
        elif size > self._max_bytes:
            self._fail(Cause.TOO_LARGE, "")

    def _read_chunks(self) -> None:
        """Take whole chunks from the buffer. Raises _BadAnswerError."""
        buffer, at = self._buffer, 0
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if len(buffer) - at > _MAX_CHUNK_LINE:
                    raise _BadAnswerError(_BADLY_FRAMED)
                break
            if self._in_trailer:
                blank, at = end == at, end + 2
                if blank:
                    clean = at == len(buffer)
                    buffer.clear()
                    self._finish(bytes(self._body), clean=clean)
                    return
                continue
            size_text = bytes(buffer[at:end]).partition(b";")[0].strip(b" \t")
            if not _SIZE.fullmatch(size_text):
                raise _BadAnswerError(_BADLY_FRAMED)
            size = int(size_text, 16)
            if len(self._body) + size > self._max_bytes:
                self._fail(Cause.TOO_LARGE, "")
                return
            if size == 0:
                self._in_trailer, at = True, end + 2
                continue
            begin = end + 2
            if len(buffer) < begin + size + 2:
                break
            if buffer[begin + size : begin + size + 2] != b"\r\n":
                raise _BadAnswerError(_BADLY_FRAMED)
            self._body += buffer[begin : begin + size]
            at = begin + size + 2
        del buffer[:at]

    # ---- ends ---------------------------------------------------------------------------------------------------------------------

    def _finish(self, body: bytes, *, clean: bool) -> None:
        answer = self._answer
        if answer is None or answer.done():
            return
        self._answer = None
        if self._body:
            self._body = bytearray()  # the room of a large answer is not kept
        transport = self._transport
        # bytes of the request that are still unsent would run into the next one
        self.reusable = clean and self._keep and transport is not None and transport.get_write_buffer_size() == 0
        answer.set_result(Answer(self._status, self._headers, body))

    def _fail(self, cause: Cause, text: str) -> None:
        answer = self._answer
        if answer is None or answer.done():
            return
        self._answer = None
        self.reusable = False
        answer.set_result(Failure(cause, text))

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


@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    return name.isascii() and _TOKEN.fullmatch(name.encode()) is not None


_NO_HEADERS: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())
