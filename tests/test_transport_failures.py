"""What becomes of a request that gets no whole answer: nothing sent, timed out, lost, or noise."""

import asyncio
import socket

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayeval.exceptions import (
    ConnectFailedError,
    ReplyLostError,
    ReplyTimeoutError,
    TransportError,
)
from rayeval.transport import AiohttpTransport, HttpResponse
from tests.helpers.ports import free_port
from tests.helpers.transports import HEADERS, SECRET, failure_of, raw_serving, read_request, replying


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://no-such-host.invalid/v1",
        "ftp://127.0.0.1/x",
        "v1/chat",
        "http://",
        "http://[::1",
        "http://127.0.0.1:99999/",
    ],
)
async def test_nothing_was_sent(transport: AiohttpTransport, url: str) -> None:
    assert type(await failure_of(transport, url.format(port=free_port()))) is ConnectFailedError


async def test_time_out_before_a_connection_is_a_connect_failure() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):  # fills the accept queue: further connects get no answer
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        for connect_timeout_s, timeout_s in ((30.0, 0.2), (0.2, 30.0)):
            transport = AiohttpTransport(connect_timeout_s=connect_timeout_s)
            error = await failure_of(transport, f"http://127.0.0.1:{port}/", timeout_s)
            assert type(error) is ConnectFailedError and "within 0.2 s" in str(error)
            await transport.aclose()
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("part", ["nothing", "head", "half a body"])
async def test_time_out_after_sending(transport: AiohttpTransport, part: str) -> None:
    sent = {
        "nothing": b"",
        "head": b"HTTP/1.1 200 OK\r\nContent-",
        "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
    }

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(sent[part])
        assert await reader.read(1) == b"", "the client closes a connection that it gave up"
        closed.set()

    closed = asyncio.Event()
    async with raw_serving(talk) as base:
        error = await failure_of(transport, base, 0.3)
        assert type(error) is ReplyTimeoutError and isinstance(error, TimeoutError)
        await asyncio.wait_for(closed.wait(), 20)


LOST = {
    "closed at once": b"",
    "cut head": b"HTTP/1.1 200 OK\r\nConte",
    "cut body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "cut chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "not HTTP": b"SSH-2.0-OpenSSH_9.6 " + SECRET.encode() + b"\r\n\r\n",
    "bad status": b"HTTP/1.1 abc OK\r\n\r\n",
    "bad header": b"HTTP/1.1 200 OK\r\n" + SECRET.encode() + b"\r\n\r\n",
    "huge header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", LOST)
async def test_broken_answers_are_lost_replies(transport: AiohttpTransport, name: str) -> None:
    async with raw_serving(replying(LOST[name])) as base:
        assert type(await failure_of(transport, base)) is ReplyLostError


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def test_reset_connection_is_a_lost_reply(transport: AiohttpTransport) -> None:
    async with raw_serving(resetting) as base:
        assert type(await failure_of(transport, base)) is ReplyLostError


def test_uvloop_whose_errors_are_its_own_ends_the_same() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def all_of_them() -> None:
        assert type(asyncio.get_running_loop()) is uvloop.Loop
        transport = AiohttpTransport()
        for talk in (*map(replying, LOST.values()), resetting):
            async with raw_serving(talk) as base:
                assert type(await failure_of(transport, base)) is ReplyLostError
        async with raw_serving(silent) as base:
            assert type(await failure_of(transport, base, 0.1)) is ReplyTimeoutError
            assert type(await failure_of(transport, base.replace("http:", "https:"), 0.1)) is ConnectFailedError
        for url in (f"http://127.0.0.1:{free_port()}/", "http://no-such-host.invalid/"):
            assert type(await failure_of(transport, url)) is ConnectFailedError
        await transport.aclose()

    uvloop.run(all_of_them())


async def test_a_kept_connection_closed_under_a_post_is_a_lost_reply_sent_once(transport: AiohttpTransport) -> None:
    received = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        received.append(await read_request(reader))

    async with raw_serving(talk) as base:
        assert (await transport.request("POST", base, b"1", {}, 20)).body == b"ok"
        assert type(await failure_of(transport, base)) is ReplyLostError
        await asyncio.sleep(0.05)
    assert len(received) == 2


async def test_the_answer_may_end_with_the_connection(transport: AiohttpTransport) -> None:
    async with raw_serving(replying(b"HTTP/1.1 200 OK\r\n\r\nto the end")) as base:
        assert (await transport.request("POST", base, b"", {}, 20)).body == b"to the end"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"]),
)
def test_whatever_bytes_come_the_end_is_an_answer_or_one_of_our_errors(noise: bytes, prefix: bytes) -> None:
    async def once() -> None:
        transport = AiohttpTransport()
        async with raw_serving(replying(prefix + noise)) as base:
            try:
                assert isinstance(await transport.request("POST", base, b"{}", HEADERS, 5), HttpResponse)
            except TransportError as error:
                assert SECRET not in str(error)
            finally:
                await transport.aclose()

    asyncio.run(once())
