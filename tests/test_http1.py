"""What ``http1`` makes of bytes; how the transport reports it is in ``test_transport.py``."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.http1 import START_BYTES, Answer, Cause, Connections, Failure, Origin, request_head

HEAD = request_head("POST", "/x", "shop", {"Content-Type": "application/json"})
HANG_S = 20.0

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(talk: Talk) -> AsyncIterator[Origin]:
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield Origin("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


def replying(*pieces: bytes, keep: bool = False, seen: list[int] | None = None) -> Talk:
    """Answers every request with ``pieces``, each in a segment of its own; closes after the first unless ``keep``."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen is not None:
            seen.append(1)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
                if not keep:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    return talk


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    made = Connections(keepalive_s=4.0, connect_timeout_s=5.0)
    yield made
    made.close()


async def ask(connections: Connections, origin: Origin, max_bytes: int = 1 << 20) -> Answer | Failure:
    return await connections.request(origin, HEAD, b"{}", HANG_S, max_bytes)


def split(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


WHOLE = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello", b"hello"),
    "empty": (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", b""),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", b"hello"),
    "trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", b"hello"),
    "until close": (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
}


@pytest.mark.parametrize("size", [1000, 7, 1])
@pytest.mark.parametrize("name", WHOLE)
async def test_reads_whole_answers_however_they_are_cut(connections: Connections, name: str, size: int) -> None:
    sent, body = WHOLE[name]
    async with serving(replying(*split(sent, size))) as origin:
        answer = await ask(connections, origin)
    assert isinstance(answer, Answer) and answer.body == body


@pytest.mark.parametrize("name", ["length", "chunked", "trailer", "empty", "no content", "interim"])
async def test_a_framed_answer_leaves_the_connection_for_the_next(connections: Connections, name: str) -> None:
    seen: list[int] = []
    async with serving(replying(WHOLE[name][0], keep=True, seen=seen)) as origin:
        for _ in range(5):
            assert isinstance(await ask(connections, origin), Answer)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi and more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
    ],
)
async def test_a_connection_in_doubt_is_not_used_again(connections: Connections, sent: bytes) -> None:
    seen: list[int] = []
    async with serving(replying(sent, keep=True, seen=seen)) as origin:
        for _ in range(3):
            answer = await ask(connections, origin)
            assert isinstance(answer, Answer) and answer.body == b"hi"
    assert len(seen) == 3


async def test_an_answer_of_two_lengths_is_none(connections: Connections) -> None:
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    async with serving(replying(sent)) as origin:
        answer = await ask(connections, origin)
    assert isinstance(answer, Failure) and answer.cause is Cause.LOST


async def test_an_answer_that_nobody_asked_for_is_never_given_to_the_next(connections: Connections) -> None:
    late = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
        await writer.drain()
        if not late.is_set():
            late.set()
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond")
            await writer.drain()
            await reader.read()
        writer.close()

    async with serving(talk) as origin:
        for _ in range(2):
            answer = await ask(connections, origin)
            assert isinstance(answer, Answer) and answer.body == b"first"
            await asyncio.sleep(0.2)


async def test_an_old_idle_connection_is_dropped() -> None:
    connections = Connections(keepalive_s=0.0, connect_timeout_s=5.0)
    seen: list[int] = []
    async with serving(replying(WHOLE["length"][0], keep=True, seen=seen)) as origin:
        for _ in range(3):
            assert isinstance(await ask(connections, origin), Answer)
            await asyncio.sleep(0.01)
    connections.close()
    assert len(seen) == 3


async def test_one_timer_keeps_the_deadline_of_each_request(connections: Connections) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"{}")
            writer.write(WHOLE["length"][0])
        await reader.readuntil(b"{}")
        await reader.read()
        writer.close()

    async with serving(talk) as origin:
        for limit in (0.3, HANG_S):
            assert isinstance(await connections.request(origin, HEAD, b"{}", limit, 100), Answer)
        failure = await asyncio.wait_for(connections.request(origin, HEAD, b"{}", 0.1, 100), HANG_S)
    assert isinstance(failure, Failure) and failure.cause is Cause.TIMEOUT


async def test_headers_are_read_in_any_case_and_repeats_are_kept(connections: Connections) -> None:
    sent = b"HTTP/1.1 200 OK\r\nX-A: 1 \r\nx-a:\t2\r\ncontent-LENGTH: 0\r\nX-\xc3\xa4: y\r\n\r\n"
    async with serving(replying(sent)) as origin:
        assert isinstance(await ask(connections, origin), Failure), "a name beyond ASCII is none"
    async with serving(replying(sent.replace(b"X-\xc3\xa4: y\r\n", b"Y: \xe4\r\n"))) as origin:
        answer = await ask(connections, origin)
    assert isinstance(answer, Answer)
    assert answer.headers.getall("X-a") == ["1", "2"] and answer.headers["y"] == "\udce4"


@pytest.mark.parametrize("name", ["length", "chunked", "until close"])
async def test_a_body_beyond_the_bound_ends_the_request(connections: Connections, name: str) -> None:
    async with serving(replying(WHOLE[name][0])) as origin:
        failure = await ask(connections, origin, max_bytes=4)
    assert isinstance(failure, Failure) and failure.cause is Cause.TOO_LARGE
    assert WHOLE[name][1][:5] == failure.start[:5] and len(failure.start) >= 5


async def test_of_a_large_body_only_the_start_is_waited_for(connections: Connections) -> None:
    body = bytes(range(256)) * 32
    never = replying(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", body[:100], body[100:])
    async with serving(never) as origin:
        failure = await ask(connections, origin)
    assert failure == Failure(Cause.TOO_LARGE, "", body[:START_BYTES])


async def test_a_host_that_is_none() -> None:
    connections = Connections(keepalive_s=4.0, connect_timeout_s=5.0)
    failure = await ask(connections, Origin("no-such-host.invalid", 80))
    assert isinstance(failure, Failure) and failure.cause is Cause.CONNECT
    connections.close()
    connections.close()


@pytest.mark.parametrize("headers", [{"A b": "c"}, {"A": "b\r\nC: d"}, {"A": "b\0"}, {"": "x"}, {"Ä": "x"}])
def test_a_head_that_none_can_hold_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        request_head("GET", "/", "shop", headers)


@settings(max_examples=40, deadline=None)
@given(
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8),
)
def test_chunks_come_together_however_they_are_cut(body: bytes, cuts: list[int], sizes: list[int]) -> None:
    sent, rest = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", body
    while rest:
        for size in sizes:
            piece, rest = rest[:size], rest[size:]
            if piece:
                sent += b"%x\r\n%s\r\n" % (len(piece), piece)
    sent += b"0\r\n\r\n"
    pieces, at = [], 0
    while at < len(sent):
        for cut in cuts:
            pieces.append(sent[at : at + cut])
            at += cut

    async def run() -> Answer | Failure:
        connections = Connections(keepalive_s=4.0, connect_timeout_s=5.0)

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            writer.close()

        async with serving(talk) as origin:
            answer = await ask(connections, origin)
        connections.close()
        return answer

    answer = asyncio.run(run())
    assert isinstance(answer, Answer) and answer.body == body
