"""The least code that can speak HTTP/1.1 to a server that keeps connections open and says how long its answers are. No check, no retry."""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import urlsplit

_MARK = b"content-length:"


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._read = b""
        self._need = 0
        self._body_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError(f"closed while an answer was due: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._read = self._read + data if self._read else data
        if not self._need:
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._read[:end].lower()
            at = head.index(_MARK) + len(_MARK)
            self._body_at = end + 4
            self._need = self._body_at + int(head[at:].split(b"\r\n", 1)[0])
        if len(self._read) >= self._need and self.answer is not None:
            status, body = int(self._read[9:12]), self._read[self._body_at : self._need]
            self._read, self._need = b"", 0
            self.answer.set_result((status, body))


class RawClient:
    """Connections are opened as they are needed, and kept."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}
        self._heads: dict[str, tuple[str, bytes]] = {}

    async def post(self, url: str, body: bytes) -> bytes:
        """-> the body of a 200. Raises RuntimeError for another status, ConnectionError."""
        if url not in self._heads:
            parts = urlsplit(url)
            head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nContent-Length: "
            self._heads[url] = parts.netloc, head.encode()
        netloc, start = self._heads[url]
        idle = self._idle.setdefault(netloc, [])
        connection = idle.pop() if idle else None
        loop = asyncio.get_running_loop()
        if connection is None or connection.transport is None:
            host, _, port = netloc.rpartition(":")
            _, connection = await loop.create_connection(_Connection, host, int(port))
        assert connection.transport is not None
        connection.answer = loop.create_future()
        connection.transport.write(start + b"%d\r\n\r\n" % len(body) + body)
        status, answer = await connection.answer
        idle.append(connection)
        if status != 200:
            raise RuntimeError(f"{url}: {status} {answer[:200]!r}")
        return answer

    async def aclose(self) -> None:
        for connection in [c for kept in self._idle.values() for c in kept]:
            if connection.transport is not None:
                connection.transport.close()
