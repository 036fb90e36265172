"""A stand-in for a Ray job server: the routes that rayeval uses, with faults on demand. Runs in the loop of its test, or in a
thread (``serving``) for what has a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_PIECE = 25
"""Characters in a message of a stream: Ray sends a log in pieces too, also to one who comes back."""


@dataclass
class FakeJob:
    """One job: append to ``log``, then ``end`` it."""

    status: str = "RUNNING"
    log: str = ""
    message: str = ""
    driver_exit_code: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def end(self, status: str, driver_exit_code: int | None = None, message: str = "") -> None:
        self.status, self.driver_exit_code, self.message = status, driver_exit_code, message


class FakeJobServer:
    """Serves ``jobs``. An async context manager."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, FakeJob] = {}
        self.down = False
        """Every request gets 503, and streams are cut."""
        self.cut_after: int | None = None
        """A stream is cut after so many characters."""
        self.refuse_streams = False
        self.hang_streams = False
        """A stream opens, says nothing and does not end."""
        self.log_fails = False
        self.hide_from_list = False
        """A job is not in the list: it was submitted a moment ago."""
        self.refuse_with: str | None = None
        """A submitted job gets 500 with this text."""
        self.lose_reply = False
        """A submitted job is taken, and the connection ends without an answer."""
        self.on_submit: Callable[[str, FakeJob], None] = lambda name, job: None
        self.requests: list[str] = []
        self.submitted: list[dict[str, Any]] = []
        self.packages: dict[str, bytes] = {}

    async def __aenter__(self) -> FakeJobServer:
        app = web.Application(middlewares=[self._gate], client_max_size=64 << 20)
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_get("/api/jobs/{id}", self._job)
        app.router.add_get("/api/jobs/{id}/logs", self._log)
        app.router.add_get("/api/jobs/{id}/logs/tail", self._tail)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/packages/{protocol}/{name}", self._package)
        app.router.add_put("/api/packages/{protocol}/{name}", self._upload)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request.path)
        if self.down:
            return web.Response(status=503)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0"})

    def _details(self, name: str, job: FakeJob) -> dict[str, Any]:
        shown = {"type": "SUBMISSION", "submission_id": name, "status": job.status, "message": job.message}
        return {**shown, "driver_exit_code": job.driver_exit_code, "metadata": job.metadata}

    async def _list(self, request: web.Request) -> web.Response:
        # drivers that nobody submitted stand in the list too, without an id
        driver = {"type": "DRIVER", "submission_id": None, "job_id": "01000000", "status": "RUNNING"}
        shown = {} if self.hide_from_list else self.jobs
        return web.json_response([driver, *(self._details(name, job) for name, job in shown.items())])

    def _found(self, request: web.Request) -> tuple[str, FakeJob]:
        name = request.match_info["id"]
        if name not in self.jobs:
            raise web.HTTPNotFound(text=f"Job {name} does not exist")
        return name, self.jobs[name]

    async def _job(self, request: web.Request) -> web.Response:
        return web.json_response(self._details(*self._found(request)))

    async def _log(self, request: web.Request) -> web.Response:
        _, job = self._found(request)
        return web.Response(status=500) if self.log_fails else web.json_response({"logs": job.log})

    async def _submit(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.submitted.append(asked)
        name = asked["submission_id"]
        if self.refuse_with is not None:
            return web.Response(status=500, text=self.refuse_with)
        if name in self.jobs:
            text = f"Traceback (most recent call last):\nValueError: Job with submission_id {name} already exists. Please use another one."
            return web.Response(status=500, text=text)
        job = self.jobs[name] = FakeJob("PENDING", metadata=asked["metadata"])
        self.on_submit(name, job)
        if self.lose_reply:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"job_id": name, "submission_id": name})

    async def _package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.packages else 404)

    async def _upload(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        _, job = self._found(request)
        if self.refuse_streams:
            return web.Response(status=400)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not self.down:
                fresh = job.log[sent : sent + _PIECE]
                if self.cut_after is not None and sent + len(fresh) > self.cut_after:
                    await socket.send_str(fresh[: self.cut_after - sent])
                    assert request.transport is not None
                    request.transport.abort()
                    return socket
                if fresh and not self.hang_streams:
                    await socket.send_str(fresh)
                    sent += len(fresh)
                    continue
                if job.status not in ("PENDING", "RUNNING") and not self.hang_streams:
                    break
                await asyncio.sleep(0.01)
        return socket


@contextlib.contextmanager
def serving(fake: FakeJobServer) -> Iterator[FakeJobServer]:
    """``fake`` in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(fake.__aenter__(), loop).result(10.0)
        yield fake
        asyncio.run_coroutine_threadsafe(fake.__aexit__(), loop).result(10.0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10.0)
