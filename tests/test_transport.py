import asyncio
import gzip
import ssl
import subprocess
import tracemalloc
import zlib

import pytest
from aiohttp import web

from rayeval.exceptions import (
    ConnectFailedError,
    ReplyLostError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    TransportError,
)
from rayeval.transport import AiohttpTransport, FakeTransport, HttpResponse, HttpTransport, public_url
from tests.helpers.ports import free_port
from tests.helpers.transports import HEADERS, SECRET, failure_of, raw_serving, read_request, serving


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
        ("gzip", gzip.compress(b"x" * 1000, mtime=0)[:-9]),
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
