"""A Ray cluster's job server, read over its REST interface. No Ray here: looking at a job must not wait for its import.

Every call has a deadline. What went wrong is said by three errors: ``ServerSilentError`` (try again), ``InputError`` (the address, the
token, an id nobody knows), and whatever is a defect of ours.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from rayeval.exceptions import InputError, StoppedError
from rayeval.schemas import JsonObject
from rayeval.submission import JobRow

CALL_S = 20.0
HEARTBEAT_S = 20.0
"""A log stream whose other end has gone is noticed after so long."""
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"

_CLOSE_S = 1.0
"""How long a closed stream waits for the other end's good-bye."""


class ServerSilentError(StoppedError, ConnectionError):
    """The job server did not answer, or said that it cannot now."""


class UnknownJobError(InputError):
    """The job server knows no such job."""


class JobInfo(NamedTuple):
    """One job as the server tells of it."""

    submission_id: str
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str
    driver_exit_code: int | None
    """None for a job that was stopped, and for one whose driver never ran."""
    metadata: Mapping[str, str]


def job_address(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """``--address``, else RAY_API_SERVER_ADDRESS. -> a URL without a trailing slash. Raises InputError."""
    text = given or environ.get(ADDRESS_VARIABLE) or ""
    hint = f"give the URL of the cluster's job server (its dashboard), such as http://HEAD:8265, or set {ADDRESS_VARIABLE}"
    try:
        parts = urlsplit(text)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        right = False
    if not right:
        raise InputError("--address", text or None, hint)
    if "@" in parts.netloc:
        raise InputError("--address", None, "holds a user or a password; give it without, and a token by RAY_AUTH_TOKEN")
    return text.rstrip("/")


def known_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """The cluster's token, where Ray's own clients look for it: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ``~/.ray/auth_token``."""
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    path = environ.get("RAY_AUTH_TOKEN_PATH") or os.path.join(environ.get("HOME", ""), ".ray", "auth_token")
    try:
        return Path(path).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class JobServer:
    """Client of one job server. An async context manager; use it in one loop."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address
        self._token = token
        self._headers: dict[str, str] = {}
        self.auth_mode = "disabled"
        """``disabled`` or ``token``: what the server asked for in ``greet``."""

    async def __aenter__(self) -> JobServer:
        self._session = aiohttp.ClientSession(trust_env=True, timeout=aiohttp.ClientTimeout(total=CALL_S))
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._session.close()

    async def greet(self) -> str:
        """Find out whether the server wants a token. -> its Ray version. Raises ServerSilentError, InputError."""
        status, body = await self._ask("/api/version")
        if status in (401, 403) and self._token is not None:
            self.auth_mode, self._headers = "token", {"Authorization": f"Bearer {self._token}"}
            status, body = await self._ask("/api/version")
        answer = self._answer(status, body)
        if not isinstance(answer, dict) or not isinstance(answer.get("ray_version"), str):
            raise InputError("--address", self.address, "is no Ray job server; give the URL of the cluster's dashboard")
        return str(answer["ray_version"])

    async def jobs(self) -> list[JobRow]:
        """All submitted jobs that the cluster remembers."""
        answer = self._answer(*await self._ask("/api/jobs/"))
        if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
            raise self._stranger("/api/jobs/")
        named = [(row["submission_id"], row.get("status")) for row in answer if row.get("submission_id")]  # others: drivers without a job
        if not all(isinstance(word, str) for row in named for word in row):
            raise self._stranger("/api/jobs/")
        return [JobRow(*row) for row in named]

    async def job(self, submission_id: str) -> JobInfo:
        """One job. Raises UnknownJobError, ServerSilentError."""
        found = await self._of_job(submission_id)
        status, code, metadata = found.get("status"), found.get("driver_exit_code"), found.get("metadata") or {}
        if not isinstance(status, str) or (code is not None and type(code) is not int) or not isinstance(metadata, dict):
            raise self._stranger(f"/api/jobs/{submission_id}")
        return JobInfo(submission_id, status, str(found.get("message") or ""), code, metadata)

    async def log(self, submission_id: str) -> str:
        """Everything a job has printed."""
        return str((await self._of_job(submission_id, "/logs")).get("logs") or "")

    async def _of_job(self, submission_id: str, what: str = "") -> JsonObject:
        status, body = await self._ask(f"/api/jobs/{quote(submission_id, safe='')}{what}")
        if status == 404:
            raise UnknownJobError("submission id", submission_id, f"is not known at {self.address}; see `ray job list`")
        found = self._answer(status, body)
        if not isinstance(found, dict):
            raise self._stranger(f"/api/jobs/{submission_id}{what}")
        return found

    @asynccontextmanager
    async def stream(self, submission_id: str) -> AsyncIterator[AsyncIterator[str]]:
        """What a job prints, from its first character on, as it comes; ends when the job ends or the stream is cut. Raises
        ServerSilentError when it cannot be opened."""
        url = f"{self.address}/api/jobs/{quote(submission_id, safe='')}/logs/tail"
        try:
            socket = await self._session.ws_connect(
                url, headers=self._headers, heartbeat=HEARTBEAT_S, max_msg_size=0, timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._silent(error) from error
        try:
            yield self._texts(socket)
        finally:
            await socket.close()

    async def _texts(self, socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[str]:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    yield message.data
        except (aiohttp.ClientError, OSError) as error:
            raise self._silent(error) from error

    async def _ask(self, path: str) -> tuple[int, bytes]:
        try:
            async with self._session.get(self.address + path, headers=self._headers) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> ServerSilentError:
        return ServerSilentError(f"the job server at {self.address} does not answer ({str(error) or type(error).__name__})")

    def _stranger(self, path: str) -> InputError:
        hint = f"is no Ray job server: what it answers at {path} is no such answer; give the URL of the cluster's dashboard"
        return InputError("--address", self.address, hint)

    def _answer(self, status: int, body: bytes) -> Any:
        """The JSON of an answer."""
        import orjson

        if status in (401, 403):
            hint = "does not accept the token" if self._token else "wants a token"
            raise InputError("--address", self.address, f"{hint}; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to its file")
        if status >= 500:
            raise ServerSilentError(f"the job server at {self.address} answers with status {status}")
        try:
            if status == 200:
                return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass
        raise InputError("--address", self.address, f"is no Ray job server (status {status}); give the URL of the cluster's dashboard")
