"""Follow a job to its end: its log as it comes, and its own exit code.

Invariants:
* Each character of the log is handed on once: ``offset`` says how many have been, and every source (stream or whole log) begins at 0. It
  does not go back for a log that is shorter: Ray gives an empty one while it cannot read the file. A log that begins otherwise is another
  one (a new head counts its jobs from 1 again, so a resume may get the same id): that one is handed on from its first character.
* A stream is only the fast way. After it ends, for whatever reason, the state is asked for and the log is read from ``offset`` on, so a
  stream that is cut, silent or not to be had (a proxy without websockets) costs time and no line.
* The server may be away for ``patience_s`` at a stretch; then the follower gives up, and the job goes on.
Closing rule: ``follow`` returns with the job's end, or raises; it changes nothing about the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from rayeval.exceptions import StoppedError
from rayeval.job_server import JobInfo, JobServer, ServerSilentError, UnknownJobError
from rayeval.schemas import ExitCode
from rayeval.submission import ENDED, end_in

PATIENCE_S = 300.0
_POLL_S = 2.0
_BACK_OFF_S = 10.0
_LAST_LOG_S = 30.0
"""How long the log of an ended job is asked for: the node that has it may be gone."""
_PENDING_S = 15.0
"""A job that has not begun after so long is told to be waiting, and for what."""
_QUIET_POLLS = 10
"""A stream that gives nothing for so many looks is compared with the log itself."""

_HEAD_CHARS = 200
_KEPT_CHARS = 8000
"""Enough to find a job's last line in."""

_T = TypeVar("_T")


class JobEnd(NamedTuple):
    """How a job ended."""

    status: str
    exit_code: int
    reason: str | None
    """In words, where the exit code is not the driver's own."""


class Follower:
    """Follows one job. ``write`` gets the log, ``note`` what happens to the connection."""

    def __init__(
        self,
        server: JobServer,
        submission_id: str,
        write: Callable[[str], None],
        note: Callable[[str], None],
        *,
        patience_s: float = PATIENCE_S,
        poll_s: float = _POLL_S,
        tail: int | None = None,
    ) -> None:
        self._server, self._id, self._write, self._note = server, submission_id, write, note
        self._patience_s, self._poll_s, self._tail = patience_s, poll_s, tail
        self._offset = 0
        self._head = ""
        """How the log begins."""
        self._last = ""
        """The end of what was handed on."""
        self._heard = time.monotonic()
        self._known = self._away = self._told_pending = False
        self._began = time.monotonic()

    async def follow(self) -> JobEnd:
        """To the end. Raises UnknownJobError, StoppedError (silent for too long; the job is gone), InputError (token)."""
        if self._tail is not None:
            self._begin_at_tail(await self._insist(lambda: self._server.log(self._id)), self._tail)
        pause = self._poll_s
        while True:
            info = await self._insist(lambda: self._server.job(self._id))
            self._known = True
            if info.status in ENDED:
                return await self._ended(info)
            self._tell_pending(info)
            before = self._offset
            with contextlib.suppress(ServerSilentError, UnknownJobError):  # both are met again at once, and dealt with there
                await self._stream()
            if self._offset == before:  # no stream to be had, or nothing in it: what there is as a whole
                with contextlib.suppress(ServerSilentError, UnknownJobError):
                    self._hand_on(await self._server.log(self._id))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _BACK_OFF_S)
            else:
                pause = self._poll_s

    async def so_far(self) -> tuple[JobInfo, str]:
        """Hand on what the job has printed, or its tail, without waiting for more. -> its state and the whole log."""
        info = await self._server.job(self._id)
        log = await self._server.log(self._id)
        if self._tail is not None:
            self._begin_at_tail(log, self._tail)
        self._hand_on(log)
        return info, log

    async def _ended(self, info: JobInfo) -> JobEnd:
        log = ""
        try:
            log = await self._insist(lambda: self._server.log(self._id), _LAST_LOG_S)
            self._hand_on(log)
        except StoppedError:
            self._note("the job has ended; the rest of its log cannot be read any more")
        return job_end(info, log if len(log) >= self._offset else self._last)

    async def _stream(self) -> None:
        """Hand on what the stream gives until it ends, or the job has ended and the stream says nothing more."""
        async with self._server.stream(self._id) as texts:

            async def pump() -> None:
                skip = self._offset
                async for text in texts:
                    self._head = self._head or text[:_HEAD_CHARS]
                    fresh = text[skip:]
                    skip = max(0, skip - len(text))
                    if fresh:
                        self._give(fresh)
                        self._heard = time.monotonic()

            pumping = asyncio.create_task(pump())
            try:
                said, quiet = self._offset, 0
                while not (await asyncio.wait({pumping}, timeout=self._poll_s))[0]:
                    info = await self._server.job(self._id)
                    self._heard = time.monotonic()
                    self._tell_pending(info)
                    if info.status in ENDED:
                        await asyncio.wait({pumping}, timeout=2 * self._poll_s)
                        break
                    said, quiet = self._offset, quiet + 1 if self._offset == said else 0
                    if quiet >= _QUIET_POLLS:
                        quiet, log = 0, await self._server.log(self._id)
                        if len(log) > self._offset:
                            break  # the stream has gone deaf: the log is read without it
                if pumping.done():
                    pumping.result()  # what writing raised
            finally:
                pumping.cancel()

    def _tell_pending(self, info: JobInfo) -> None:
        if info.status == "PENDING" and not self._told_pending and time.monotonic() - self._began > _PENDING_S:
            self._told_pending = True
            self._note(f"{self._id} has not begun: {_first_line(info.message) or 'it is pending'}")

    def _hand_on(self, log: str) -> None:
        self._head = self._head or log[:_HEAD_CHARS]
        if not log.startswith(self._head[: len(log)]):
            self._note("this is another job of the same id: its log begins here")
            self._offset, self._last, self._head = 0, "", log[:_HEAD_CHARS]
        if len(log) > self._offset:
            self._give(log[self._offset :])

    def _give(self, fresh: str) -> None:
        self._write(fresh)
        self._offset += len(fresh)
        self._last = (self._last + fresh)[-_KEPT_CHARS:]

    def _begin_at_tail(self, log: str, lines: int) -> None:
        kept = log.splitlines(keepends=True)[-lines:] if lines else []
        self._offset = len(log) - sum(map(len, kept))

    async def _insist(self, call: Callable[[], Awaitable[_T]], patience_s: float | None = None) -> _T:
        """``call`` until it answers. Raises StoppedError after ``patience_s``."""
        limit = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
        began, wait = time.monotonic(), min(1.0, self._poll_s)
        while True:
            try:
                answer = await call()
            except ServerSilentError as error:
                if time.monotonic() - max(self._heard, began if patience_s is not None else 0.0) > limit:
                    raise StoppedError(f"{error}, since {limit:.0f} s; {self._id} may go on without us") from error
                if not self._away:
                    self._note(f"{error}; trying again for {limit:.0f} s")
                self._away = True
                await asyncio.sleep(wait)
                wait = min(2 * wait, _BACK_OFF_S)
            except UnknownJobError as error:
                if not self._known:
                    raise
                text = f"the cluster does not know {self._id} any more: its head was replaced; submit again to go on"
                raise StoppedError(text) from error
            else:
                if self._away:
                    self._note("the job server answers again")
                self._away, self._heard = False, time.monotonic()
                return answer


def job_end(info: JobInfo, log: str) -> JobEnd:
    """The exit code of an ended job.

    The driver's own where Ray keeps it; what the last line of the log says of a stopped job; 128 + the signal of a killed driver;
    5 for a job whose driver never ran or was lost.
    """
    code = info.driver_exit_code
    if code is not None:
        return JobEnd(info.status, code if code >= 0 else 128 - code, None if code >= 0 else f"the driver was killed by signal {-code}")
    if info.status == "STOPPED":
        told = end_in(log, info.submission_id)
        if told is not None:
            return JobEnd(info.status, told, None)
        reason = "stopped, and the driver was killed before it had said its end: leases may be held until the next run releases them"
        return JobEnd(info.status, int(ExitCode.SIGTERM), reason)
    if info.status == "SUCCEEDED":
        return JobEnd(info.status, 0, None)
    return JobEnd(info.status, int(ExitCode.STOPPED), _first_line(info.message) or "no reason was given")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
