"""The seam to the network: one HTTP request in, one whole answer out.

Invariants of ``AiohttpTransport``:

* ``http://`` without a proxy goes over connections of our own (``http1.py``), where most of the work of a run is spent;
  TLS and proxies go over aiohttp. Both keep the rules below.
* One session a transport, made inside the loop that first uses it; a second living loop is refused.
* A POST is written at most once. aiohttp sends a GET again, once, when a kept-alive connection turns out to be dead.
* Until a connection is in hand nothing has been sent: what fails before is ConnectFailedError. What fails after may
  have been executed: ReplyTimeoutError or ReplyLostError. Every failure is a TransportError; CancelledError passes.
* A request that does not end in a whole answer closes its connection; none goes back to the pool half read.
* Errors name method, URL (without userinfo and query) and cause in our own words: no header value and no byte of the
  server's gets into a message, and no error of aiohttp's, which hold request headers, hangs on as cause or context.

Nothing follows redirects, keeps cookies or reads ``.netrc``. ``aclose`` ends the session; a later request opens one.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import zlib
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from functools import lru_cache
from threading import get_ident
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from rayeval import http1
from rayeval.exceptions import (
    ConnectFailedError,
    ReplyLostError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    TransportError,
)

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Default bound on an answer's body, after decompression."""

_REMEMBERED_URLS = 1024
_USUAL_HEADERS = {"User-Agent": "rayeval", "Accept": "application/json", "Accept-Encoding": "gzip, deflate"}

Method = Literal["GET", "POST"]


class HttpResponse(NamedTuple):
    """A whole answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Case-insensitive."""
    body: bytes
    """Decompressed."""


@runtime_checkable
class HttpTransport(Protocol):
    """Sends one request at a time for each caller; many callers share one."""

    async def request(
        self,
        method: Method,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> HttpResponse:
        """Send and read the whole answer.

        ``timeout_s`` covers everything from the connection to the last byte; None: no bound but the caller's own
        (resets, which are never abandoned). ``max_bytes`` bounds the body after decompression.

        Raises ConnectFailedError, ReplyLostError, ReplyTimeoutError, ReplyTooLargeError.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; idempotent."""
        ...


@lru_cache(maxsize=1024)
def public_url(url: str) -> str:
    """``scheme://host:port/path``: what of a URL may be shown. Userinfo, query and fragment can hold secrets."""
    try:
        parsed = URL(url)
        return str(parsed.with_user(None).with_query(None).with_fragment(None)) if parsed.absolute else "<relative URL>"
    except ValueError:
        return "<invalid URL>"


class _Target(NamedTuple):
    """A URL, parsed once."""

    url: URL
    shown: str
    authorization: str | None
    proxy: URL | None
    origin: http1.Origin | None
    """Where the connections of ``http1`` go; None: aiohttp's."""


_connected: ContextVar[list[bool]] = ContextVar("_connected")


class _Connector(aiohttp.TCPConnector):
    """Notes for the calling request that it holds a connection: from then on bytes may have left."""

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        connection = await super().connect(req, traces, timeout)
        _connected.get()[0] = True
        return connection


class AiohttpTransport:
    """``HttpTransport`` for any number of requests in flight: plain HTTP on connections of our own, the rest over aiohttp.

    ``trust_env``: use the proxies of the environment (``HTTPS_PROXY``, ``NO_PROXY`` ...), read once for each URL.
    ``keepalive_s``: idle connections are dropped after it; keep it below the server's own (5 s for most).
    ``connect_timeout_s``: bound on the TCP connect alone, so that a black hole does not use up a whole ``timeout_s``.
    ``ssl_context``: for servers with a certificate of their own; None: the system's authorities.
    """

    def __init__(
        self,
        trust_env: bool = False,
        keepalive_s: float = 4.0,
        connect_timeout_s: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._trust_env = trust_env
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._ssl: ssl.SSLContext | bool = ssl_context if ssl_context is not None else True
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """That runs the loop."""
        self._targets: dict[str, _Target] = {}
        self._plain: http1.Connections | None = None
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    def request(
        self,
        method: Method,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> Coroutine[Any, Any, HttpResponse]:
        target = self._targets.get(url) or self._remember(url)
        if target.origin is not None:
            return self._request_plainly(target.origin, target, method, url, body, headers, timeout_s, max_bytes)
        return self._request_over_aiohttp(target, method, body, headers, timeout_s, max_bytes)

    async def _request_over_aiohttp(
        self,
        target: _Target,
        method: Method,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_bytes: int,
    ) -> HttpResponse:
        session = self._open_session()
        if target.authorization is not None and not any(name.lower() == "authorization" for name in headers):
            headers = {**headers, "Authorization": target.authorization}
        connected = [False]
        token = _connected.set(connected)
        failure: TransportError
        try:
            async with asyncio.timeout(timeout_s):
                response = await session.request(
                    method,
                    target.url,
                    data=body,
                    headers=headers,
                    proxy=target.proxy,
                    allow_redirects=False,
                    ssl=self._ssl,
                )
                try:
                    data = await _read(response, max_bytes)
                except BaseException:
                    response.close()
                    raise
            if isinstance(data, _Start):
                failure = _too_large(f"{method} {target.shown}", max_bytes, data.bytes)
            else:
                decoded = _decoded(response.status, response.headers, data, max_bytes, f"{method} {target.shown}")
                if isinstance(decoded, HttpResponse):
                    return decoded
                failure = decoded
        except TimeoutError as error:
            if not connected[0]:
                within = self._connect_timeout_s if isinstance(error, aiohttp.ServerTimeoutError) else timeout_s
                failure = ConnectFailedError(f"{method} {target.shown}: no connection within {_seconds(within)}")
            else:
                failure = ReplyTimeoutError(f"{method} {target.shown}: no whole answer within {_seconds(timeout_s)}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind = ReplyLostError if connected[0] else ConnectFailedError
            failure = kind(f"{method} {target.shown}: {_cause(error)}")
        finally:
            _connected.reset(token)
        # Raised out here, where no error of aiohttp's becomes its context.
        raise failure

    async def _request_plainly(
        self,
        origin: http1.Origin,
        target: _Target,
        method: Method,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_bytes: int,
    ) -> HttpResponse:
        head = self._heads.get((method, url, tuple(headers.items())))
        answer: http1.Answer | http1.Failure
        if head is None:
            made = self._make_head(target, method, url, headers)
            if made is None:
                raise ConnectFailedError(f"{method} {target.shown}: the URL or a header of the request is malformed")
            head = made
        answer = await self._open_connections().request(origin, head, body, timeout_s, max_bytes)
        if isinstance(answer, http1.Answer):
            if "Content-Encoding" not in answer.headers:
                return HttpResponse(answer.status, answer.headers, answer.body)
            decoded = _decoded(answer.status, answer.headers, answer.body, max_bytes, f"{method} {target.shown}")
            if isinstance(decoded, HttpResponse):
                return decoded
            raise decoded
        where = f"{method} {target.shown}"
        match answer.cause:
            case http1.Cause.CONNECT:
                raise ConnectFailedError(f"{where}: {answer.text}")
            case http1.Cause.TIMEOUT:
                raise ReplyTimeoutError(f"{where}: no whole answer within {_seconds(timeout_s)}")
            case http1.Cause.TOO_LARGE:
                raise _too_large(where, max_bytes, answer.start)
        raise ReplyLostError(f"{where}: {answer.text}")

    def _make_head(self, target: _Target, method: Method, url: str, headers: Mapping[str, str]) -> bytes | None:
        """The head of such requests, remembered; None for headers that none can hold."""
        given = {name.lower() for name in headers}
        sent = {name: value for name, value in _USUAL_HEADERS.items() if name.lower() not in given} | dict(headers)
        if target.authorization is not None and "authorization" not in given:
            sent["Authorization"] = target.authorization
        host = target.url.host_port_subcomponent
        try:
            head = http1.request_head(method, target.url.raw_path_qs, host or "", sent)
        except ValueError:
            return None
        if len(self._heads) >= _REMEMBERED_URLS:
            self._heads.clear()
        self._heads[method, url, tuple(headers.items())] = head
        return head

    async def aclose(self) -> None:
        session, self._session, self._loop = self._session, None, None
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.close()
        if session is not None:
            await session.close()

    def _open_connections(self) -> http1.Connections:
        # a thread runs one loop at a time; asking which one is a call of the kernel
        if self._plain is not None and self._loop is not None and self._thread == get_ident() and self._loop.is_running():
            return self._plain
        self._belong_to(asyncio.get_running_loop())
        self._plain = http1.Connections(self._keepalive_s, self._connect_timeout_s)
        return self._plain

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._loop is not loop:
            if not self._loop.is_closed():
                raise RuntimeError("this AiohttpTransport belongs to another event loop: make one for each loop")
            self._session = self._plain = None
        self._loop, self._thread = loop, get_ident()

    def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is loop and not self._session.closed:
            return self._session
        self._belong_to(loop)
        self._session = aiohttp.ClientSession(
            # The defaults cap at 100 connections and keep idle ones for 15 s, longer than servers do.
            connector=_Connector(limit=0, limit_per_host=0, keepalive_timeout=self._keepalive_s, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            # Decompressing here, after reading, lets the plain size be bounded whatever aiohttp's version does.
            auto_decompress=False,
            headers=_USUAL_HEADERS,
        )
        return self._session

    def _remember(self, url: str) -> _Target:
        shown = public_url(url)
        try:
            parsed = URL(url)
        except ValueError:
            parsed = None
        if parsed is None or parsed.scheme not in ("http", "https") or not parsed.raw_host:
            raise ConnectFailedError(f"{shown}: not a URL that can be called; give http://host:port/path or https://...")
        authorization = None
        if parsed.raw_user is not None or parsed.raw_password is not None:
            pair = f"{parsed.user or ''}:{parsed.password or ''}"
            authorization = "Basic " + b64encode(pair.encode()).decode()
            parsed = parsed.with_user(None)
        proxy = _environment_proxy(parsed) if self._trust_env else None
        origin = None
        if parsed.scheme == "http" and proxy is None and parsed.host is not None and parsed.port is not None:
            origin = http1.Origin(parsed.host, parsed.port)
        target = _Target(parsed, shown, authorization, proxy, origin)
        if len(self._targets) >= _REMEMBERED_URLS:
            self._targets.clear()
        self._targets[url] = target
        return target


class _Start(NamedTuple):
    """The first bytes of a body that is too large."""

    bytes: bytes


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | _Start:
    """The body as sent, or its start once it passes ``max_bytes``."""
    content = response.content
    first = await content.readany()
    size = len(first)
    chunks = [first]
    while size <= max_bytes:
        chunk = await content.readany()
        if not chunk:
            return first if len(chunks) == 1 else b"".join(chunks)
        size += len(chunk)
        chunks.append(chunk)
    response.close()
    return _Start(b"".join(chunks))


def _decoded(status: int, headers: Mapping[str, str], data: bytes, max_bytes: int, where: str) -> HttpResponse | TransportError:
    coding = headers.get("Content-Encoding")
    if coding is None:
        return HttpResponse(status, headers, data)
    plain = _decompressed(data, coding, max_bytes, where)
    return HttpResponse(status, headers, plain) if isinstance(plain, bytes) else plain


def _decompressed(data: bytes, coding: str, max_bytes: int, where: str) -> bytes | TransportError:
    """The plain body, or what is wrong with it. Never holds more than ``max_bytes`` + 1 of it."""
    coding = coding.strip().lower()
    if coding in ("", "identity") or not data:
        return data
    if coding in ("gzip", "x-gzip"):
        wbits = 16 + zlib.MAX_WBITS
    elif coding == "deflate":
        # The name means the zlib format; some servers send the bare stream. A zlib header says 8 in its low nibble.
        wbits = zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS
    else:
        return ReplyLostError(f"{where}: the answer has a Content-Encoding that was not asked for")
    plain = bytearray()
    try:
        while data:
            stream = zlib.decompressobj(wbits)
            plain += stream.decompress(data, max_bytes + 1 - len(plain))
            if len(plain) > max_bytes:
                return _too_large(where, max_bytes, bytes(plain[: http1.START_BYTES]))
            if not stream.eof:
                return ReplyLostError(f"{where}: the compressed answer is cut short")
            data = stream.unused_data
    except zlib.error:
        return ReplyLostError(f"{where}: the compressed answer is corrupt")
    return bytes(plain)


def _too_large(where: str, max_bytes: int, body: bytes) -> ReplyTooLargeError:
    return ReplyTooLargeError(f"{where}: the answer is larger than {max_bytes} bytes", body[: http1.START_BYTES])


def _environment_proxy(url: URL) -> URL | None:
    if url.host is None or proxy_bypass(url.host):
        return None
    proxies = getproxies()
    given = proxies.get(url.scheme) or proxies.get("all")
    if not given:
        return None
    proxy = URL(given if "://" in given else f"http://{given}")
    return proxy if proxy.scheme in ("http", "https") and proxy.raw_host else None


def _cause(error: Exception) -> str:
    """In our own words; texts of the operating system are the only foreign ones let in."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "the host name does not resolve"
        case aiohttp.ClientConnectorCertificateError():
            return "the server's TLS certificate is not trusted"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "the TLS handshake failed"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered {error.status}"
        case aiohttp.ClientProxyConnectionError():
            return "no connection to the proxy"
        case aiohttp.ClientConnectorError():
            return f"no connection: {_os_text(error.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection before it answered"
        case aiohttp.ClientPayloadError():
            return "the answer's body ended early or is badly framed"
        case aiohttp.ClientResponseError():
            return "the answer is not HTTP"
        case OSError():
            return f"connection lost: {_os_text(error)}"
        case ValueError():
            return "the URL or a header of the request is malformed"
    return f"connection lost ({type(error).__name__})"


def _os_text(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _seconds(value: float | None) -> str:
    return "its time" if value is None else f"{value:g} s"


class SentRequest(NamedTuple):
    """What ``FakeTransport`` was asked for."""

    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]
    timeout_s: float | None


Handler = Callable[[SentRequest], HttpResponse | Awaitable[HttpResponse]]


class FakeTransport:
    """An ``HttpTransport`` without a network: ``handler`` answers or raises a TransportError.

    It keeps the contract: an asynchronous handler is held to ``timeout_s``, an answer to ``max_bytes``, headers are
    case-insensitive. ``requests`` lists what was sent.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[SentRequest] = []
        self.closed = False

    async def request(
        self,
        method: Method,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> HttpResponse:
        sent = SentRequest(method, url, body, CIMultiDictProxy(CIMultiDict(headers)), timeout_s)
        self.requests.append(sent)
        try:
            async with asyncio.timeout(timeout_s):
                answer = self._handler(sent)
                response = await answer if inspect.isawaitable(answer) else answer
        except TransportError:
            raise
        except TimeoutError:
            raise ReplyTimeoutError(f"{method} {public_url(url)}: no whole answer within {_seconds(timeout_s)}") from None
        if len(response.body) > max_bytes:
            raise _too_large(f"{method} {public_url(url)}", max_bytes, response.body)
        return response._replace(headers=CIMultiDictProxy(CIMultiDict(response.headers)))

    async def aclose(self) -> None:
        self.closed = True
