import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from benchmarks.raw_client import RawClient

_GUARD_S = 20.0


@contextlib.asynccontextmanager
async def echo(status: str = "200 OK") -> AsyncIterator[tuple[str, list[int]]]:
    """A server that sends each body back in two pieces. -> its URL, and a list with a 1 for each connection it took."""
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(1)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                answer = f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode() + await reader.readexactly(length)
                writer.write(answer[:20])
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.write(answer[20:])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/path", taken
    finally:
        server.close()


async def test_an_answer_in_pieces_is_read_whole_over_one_connection() -> None:
    client = RawClient()
    async with asyncio.timeout(_GUARD_S), echo() as (url, taken):
        assert [await client.post(url, body) for body in (b"one", b"", b"x" * 100_000)] == [b"one", b"", b"x" * 100_000]
        assert len(taken) == 1
        await client.aclose()


async def test_as_many_connections_as_requests_at_once() -> None:
    client = RawClient()
    async with asyncio.timeout(_GUARD_S), echo() as (url, taken):
        bodies = [b"%d" % n for n in range(5)]
        assert await asyncio.gather(*(client.post(url, body) for body in bodies)) == bodies
        assert len(taken) == 5
        await client.aclose()


async def test_another_status_is_raised() -> None:
    client = RawClient()
    async with asyncio.timeout(_GUARD_S), echo("503 Busy") as (url, _):
        with pytest.raises(RuntimeError, match="503 b'body'"):
            await client.post(url, b"body")
        await client.aclose()
