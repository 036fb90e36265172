"""Against real servers on loopback; what no server framework would send comes from raw asyncio ones."""

import asyncio
import gzip
import pickle
import socket
import ssl
import subprocess
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayeval.exceptions import (
    ConnectFailedError,
    ReplyLostError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    TransportError,
)
from rayeval.transport import AiohttpTransport, FakeTransport, HttpResponse, HttpTransport, public_url

SECRET = "sk-do-not-show-0123456789"
HEADERS = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl_context)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if ssl_context else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_serving(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0)
    return head + await reader.readexactly(length)


def replying(answer: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()

    return talk


@pytest.fixture
async def transport() -> AsyncIterator[AiohttpTransport]:
    made = AiohttpTransport()
    yield made
    await made.aclose()


async def failure_of(transport: HttpTransport, url: str, timeout_s: float | None = 20, **more: int) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await transport.request("POST", url, b'{"a":1}', HEADERS, timeout_s, **more)
    error = caught.value
    assert SECRET not in repr(error) + str(error)
    assert error.__cause__ is None and error.__context__ is None
    assert type(pickle.loads(pickle.dumps(error))) is type(error)
    return error


async def test_posts_and_reads(transport: AiohttpTransport) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, await request.read(), request.headers["Authorization"]))
        return web.Response(status=207, body=b"answer", headers={"X-Request-Id": "r1", "Set-Cookie": "a=b"})

    async with serving(handler) as base:
        response = await transport.request("POST", f"{base}/v1/x", b"body", HEADERS, 20)
        again = await transport.request("GET", f"{base}/v1/x", None, HEADERS, 20)
    assert response.status == again.status == 207 and response.body == b"answer"
    assert response.headers.get("x-request-id") == "r1"
    assert seen[0] == ("POST", "/v1/x", b"body", f"Bearer {SECRET}") and seen[1][0] == "GET"


async def test_is_a_transport(transport: AiohttpTransport) -> None:
    assert isinstance(transport, HttpTransport)
    assert isinstance(FakeTransport(lambda r: HttpResponse(200, {}, b"")), HttpTransport)


async def test_keeps_a_connection_and_no_cookies(transport: AiohttpTransport) -> None:
    peers, cookies = set(), []

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        cookies.append(request.headers.get("Cookie"))
        return web.Response(body=b"x", headers={"Set-Cookie": "session=1"})

    async with serving(handler) as base:
        # aiohttp's own jar takes no cookies from a bare address.
        base = base.replace("127.0.0.1", "localhost")
        for _ in range(5):
            await transport.request("POST", base, b"{}", {}, 20)
    assert len(peers) == 1 and cookies == [None] * 5


async def test_more_in_flight_than_any_default_limit(transport: AiohttpTransport) -> None:
    arrived, gate = [], asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        arrived.append(1)
        if len(arrived) == 150:
            gate.set()
        await gate.wait()
        return web.Response(body=b"x")

    async with serving(handler) as base:
        answers = await asyncio.gather(*(transport.request("POST", base, b"", {}, 60) for _ in range(150)))
    assert [a.status for a in answers] == [200] * 150


async def test_redirects_are_answers(transport: AiohttpTransport) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with serving(handler) as base:
        assert (await transport.request("POST", base, b"{}", {}, 20)).status == 307


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate", "two gzip members"])
async def test_decompresses(transport: AiohttpTransport, coding: str) -> None:
    plain = "答案 answer".encode() * 500
    bare = zlib.compressobj(wbits=-15)
    name, packed = {
        "gzip": ("gzip", gzip.compress(plain)),
        "deflate": ("deflate", zlib.compress(plain)),
        "raw deflate": ("deflate", bare.compress(plain) + bare.flush()),
        "two gzip members": ("GZIP", gzip.compress(plain[:1000]) + gzip.compress(plain[1000:])),
    }[coding]

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": name})

    async with serving(handler) as base:
        assert (await transport.request("POST", base, b"{}", {}, 20)).body == plain


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(b"x" * 1000)[:-9]),
        ("gzip", b"not gzip at all"),
        ("deflate", b"\x78\x9cnonsense"),
        ("br", b"\x0b\x02\x80hello\x03"),
    ],
)
async def test_broken_compression_is_a_lost_reply(transport: AiohttpTransport, coding: str, body: bytes) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Encoding": coding})

    async with serving(handler) as base:
        assert type(await failure_of(transport, base)) is ReplyLostError


@pytest.mark.parametrize("how", ["length", "chunked", "gzip bomb"])
async def test_an_answer_is_bounded(transport: AiohttpTransport, how: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if how == "gzip bomb":
            return web.Response(body=gzip.compress(b"\0" * 30_000_000), headers={"Content-Encoding": "gzip"})
        if how == "length":
            return web.Response(body=b"x" * 200_000)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for _ in range(100_000):
            await response.write(b"x" * 10_000)
        return response

    async with serving(handler) as base:
        error = await failure_of(transport, base, max_bytes=100_000)
        assert type(error) is ReplyTooLargeError and "100000 bytes" in str(error)
        assert error.start == (b"\0" if how == "gzip bomb" else b"x") * 4096 and "xxx" not in repr(error)


async def test_a_bomb_is_never_unpacked(transport: AiohttpTransport) -> None:
    bomb = gzip.compress(b"\0" * 40_000_000, compresslevel=1)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    async with serving(handler) as base:
        tracemalloc.start()
        try:
            assert type(await failure_of(transport, base, max_bytes=500_000)) is ReplyTooLargeError
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


async def test_exactly_the_bound_passes(transport: AiohttpTransport) -> None:
    async def handler(request: web.Request) -> web.Response:
        body = b"x" * 1000
        if request.path == "/gzip":
            return web.Response(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})
        return web.Response(body=body)

    async with serving(handler) as base:
        for path in ("/", "/gzip"):
            assert len((await transport.request("POST", base + path, b"", {}, 20, max_bytes=1000)).body) == 1000


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


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


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    where = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", where / "key", "-out", where / "cert"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(where / "cert", where / "key")
    context.authority = str(where / "cert")  # type: ignore[attr-defined]
    return context


async def test_tls_faults_come_before_sending(transport: AiohttpTransport, certificate: ssl.SSLContext) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"secure")

    async with serving(handler, certificate) as base:
        error = await failure_of(transport, base)
        assert type(error) is ConnectFailedError and "not trusted" in str(error)
        trusting = AiohttpTransport(ssl_context=ssl.create_default_context(cafile=certificate.authority))  # type: ignore[attr-defined]
        assert (await trusting.request("POST", base, b"{}", {}, 20)).body == b"secure"
        await trusting.aclose()
    async with serving(handler) as base:
        assert type(await failure_of(transport, base.replace("http:", "https:"))) is ConnectFailedError


async def test_userinfo_becomes_a_header_and_is_never_shown(transport: AiohttpTransport) -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(body=b"x" * 10)

    async with serving(handler) as base:
        url = base.replace("http://", "http://user:hidden@") + "/v1?key=hidden#hidden"
        await transport.request("POST", url, b"", {}, 20)
        await transport.request("POST", url, b"", HEADERS, 20)
        assert "hidden" not in str(await failure_of(transport, url, max_bytes=2))
    assert seen[:2] == ["Basic dXNlcjpoaWRkZW4=", f"Bearer {SECRET}"]
    assert "hidden" not in str(await failure_of(transport, f"http://user:hidden@127.0.0.1:{free_port()}/?hidden"))


def test_public_url() -> None:
    assert public_url("https://u:p@host:81/v1/chat?key=1#f") == "https://host:81/v1/chat"
    assert public_url("u:p@host/x") == "<relative URL>" and public_url("http://[::1") == "<invalid URL>"


async def test_a_malformed_header_is_named_without_its_value(transport: AiohttpTransport) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    async with serving(handler) as base:
        with pytest.raises(TransportError) as caught:
            await transport.request("POST", base, b"", {"Authorization": f"Bearer {SECRET}\r\nX: 1"}, 20)
    assert SECRET not in str(caught.value)


async def test_environment_proxy_only_with_trust_env(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nproxy")

    async def direct(request: web.Request) -> web.Response:
        return web.Response(body=b"direct")

    async with raw_serving(talk) as proxy, serving(direct) as base:
        for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy.replace("http://", "http://me:pass@"))
        bodies = []
        for trust_env in (False, True):
            transport = AiohttpTransport(trust_env=trust_env)
            bodies.append((await transport.request("POST", base, b"{}", HEADERS, 20)).body)
            await transport.aclose()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        transport = AiohttpTransport(trust_env=True)
        bodies.append((await transport.request("POST", base, b"{}", HEADERS, 20)).body)
        await transport.aclose()
    assert bodies == [b"direct", b"proxy", b"direct"]
    assert b"Proxy-Authorization: Basic bWU6cGFzcw==" in seen[0] and f"Bearer {SECRET}".encode() in seen[0]


async def test_cancelling_closes_the_connection(transport: AiohttpTransport) -> None:
    sent, closed = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        sent.set()
        await reader.read(1)
        closed.set()

    async with raw_serving(talk) as base:
        task = asyncio.create_task(transport.request("POST", base, b"{}", {}, None))
        await asyncio.wait_for(sent.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 20)


async def test_closing_ends_what_is_in_flight_and_may_be_repeated(transport: AiohttpTransport) -> None:
    sent = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        sent.set()
        await reader.read(1)

    async with raw_serving(talk) as base:
        task = asyncio.create_task(failure_of(transport, base))
        await asyncio.wait_for(sent.wait(), 20)
        await transport.aclose()
        await transport.aclose()
        assert type(await asyncio.wait_for(task, 20)) is ReplyLostError


def test_a_second_living_loop_is_refused_and_a_dead_one_forgotten() -> None:
    async def get(transport: AiohttpTransport) -> None:
        with pytest.raises(ConnectFailedError):
            await transport.request("GET", f"http://127.0.0.1:{free_port()}/", None, {}, 20)

    async def close(transport: AiohttpTransport) -> None:
        await get(transport)
        await transport.aclose()

    transport = AiohttpTransport()
    first = asyncio.new_event_loop()
    first.run_until_complete(get(transport))
    second = asyncio.new_event_loop()
    with pytest.raises(RuntimeError, match="another event loop"):
        second.run_until_complete(get(transport))
    first.run_until_complete(transport.aclose())
    first.close()
    second.run_until_complete(close(transport))
    second.close()


async def test_fake_keeps_the_contract() -> None:
    async def slow(_: object) -> HttpResponse:
        await asyncio.sleep(60)
        raise AssertionError

    fake = FakeTransport(lambda sent: HttpResponse(200, {"Retry-After": "1"}, sent.body or b""))
    response = await fake.request("POST", "http://x/", b"abc", HEADERS, 1)
    assert response.headers.get("retry-after") == "1" and response.body == b"abc"
    assert fake.requests[0].headers["authorization"] == f"Bearer {SECRET}" and fake.requests[0].timeout_s == 1
    assert type(await failure_of(fake, "http://x/", max_bytes=2)) is ReplyTooLargeError
    with pytest.raises(ReplyTimeoutError):
        await FakeTransport(slow).request("POST", "http://x/", b"", {}, 0.05)
    await fake.aclose()
    assert fake.closed
