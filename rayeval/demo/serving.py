"""What both servers share: a listening aiohttp server without routing or access log, counters, JSON answers."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from rayeval.schemas import JsonObject

MAX_BODY_BYTES = 64 << 20
SHUTDOWN_S = 0.5

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_FLASK_JSON = json.JSONEncoder(ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def flask_json(payload: JsonObject, status: int = 200) -> web.Response:
    """JSON as Flask writes it: keys sorted, non-ASCII escaped, a newline at the end."""
    body = (_FLASK_JSON.encode(payload) + "\n").encode("ascii")
    return web.Response(status=status, body=body, content_type="application/json")


def plain_json(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """JSON as UTF-8."""
    return web.Response(status=status, body=orjson.dumps(payload), content_type="application/json", headers=headers)


def html_page(status: int, title: str, text: str) -> web.Response:
    """An HTML error page, as a web framework gives it outside its JSON routes."""
    page = f"<!doctype html>\n<html lang=en>\n<title>{status} {title}</title>\n<h1>{title}</h1>\n<p>{text}</p>\n"
    return web.Response(status=status, text=page, content_type="text/html", charset="utf-8")


def client_gone(request: web.BaseRequest) -> bool:
    """Whether nobody is left to read the answer."""
    transport = request.transport
    return transport is None or transport.is_closing()


class Tally:
    """Counters with fixed names (a misspelt one is a KeyError) and the highest value that each gauge had."""

    def __init__(self, counters: Sequence[str], gauges: Sequence[str]) -> None:
        self._counters, self._gauges = tuple(counters), tuple(gauges)
        self.now = dict.fromkeys(self._gauges, 0)
        self.reset()

    def reset(self) -> None:
        """Counters to 0 and peaks to the present values; gauges stay, for what they count is still there."""
        self.counts: dict[str, float] = dict.fromkeys(self._counters, 0)
        self.peaks = dict(self.now)

    def add(self, name: str, amount: float = 1) -> None:
        self.counts[name] += amount

    def move(self, gauge: str, delta: int) -> None:
        value = self.now[gauge] = self.now[gauge] + delta
        if value > self.peaks[gauge]:
            self.peaks[gauge] = value

    def to_json(self) -> JsonObject:
        return {**self.counts, **self.now, **{f"peak_{name}": peak for name, peak in self.peaks.items()}}


class ProcessClock:
    """Wall and CPU seconds of this process since the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def to_json(self) -> JsonObject:
        return {
            "wall_s": time.monotonic() - self._wall,
            "cpu_s": time.process_time() - self._cpu,
            "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
    # aiohttp's own factory stops at 1 MB, which a long conversation passes
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)


class HttpServer:
    """One listening port in front of a handler."""

    def __init__(self, handler: Handler, *, cancel_when_client_goes: bool) -> None:
        self._server = web.Server(handler, request_factory=_make_request, handler_cancellation=cancel_when_client_goes, access_log=None)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=SHUTDOWN_S)

    async def start(self, host: str, port: int) -> str:
        """Listen; -> the base URL. Raises OSError when the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=4096).start()
        address = self._runner.addresses[0]
        return f"http://{host}:{address[1]}"

    @property
    def connections(self) -> int:
        return len(self._server.connections)

    async def close(self) -> None:
        """Stop listening; requests still running have half a second, then are cancelled."""
        await self._runner.cleanup()
