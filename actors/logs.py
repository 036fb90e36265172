"""The logs of one invocation: the driver's notes, what actors log, and the last output of those that died, into ``RUN/logs/attempt_N``.

Seams: ``DriverLogs`` stands before the display and hears every note; ``LoggedHandle`` stands before an actor's handle and hears every
reply. Neither changes what it passes on.
Invariants:
* A record of an actor is written once, whatever replies are sent again.
* Nothing here ends a run or holds it up: writes that fail end the logging, reading Ray's files is a thread's work.
Closing rule: ``settle`` waits a bounded time for outputs still being read, while Ray is there; ``close`` gives the loggers back.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from actors.handles import ActorFaultError, ActorGoneError, ActorHandle
from actors.last_output import last_output
from actors.messages import ActorInfo, ActorSpec, Order, Ping, Reply
from actors.record_box import text_of
from rayeval.display import RunDisplay
from rayeval.models import Scrubber
from rayeval.schemas import JsonObject
from rayeval.store import RunDirectory, RunLogs

_BEAT_S = 60.0
_SETTLE_S = 15.0
_EARLY = 200
"""Notes kept from before the directory is known."""
_BEAT = ("done", "planned", "failed", "in_flight", "queued", "retries", "lost")
_LOGGERS = ("rayeval", "actors")


class _ToLogs(logging.Handler):
    """Hands log records of the driver's process on."""

    def __init__(self, write: Callable[[str, str, float], None]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(record.levelname.lower(), text_of(record), record.created)
        except Exception:
            self.handleError(record)


class DriverLogs:
    """A display that also writes down what it hears; with the log records of the driver's process."""

    def __init__(self, display: RunDisplay, key: str | None) -> None:
        self._display, self._scrubber = display, Scrubber(key)
        self._handler = _ToLogs(self._write)
        self._files: RunLogs | None = None
        self._early: deque[tuple[float, str, str]] = deque(maxlen=_EARLY)
        self._beat_at = 0.0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="last-output")
        self._reading: list[Future[None]] = []

    def open(self, run_dir: RunDirectory, attempt: int) -> None:
        """From now on everything goes to files, also what was said before."""
        self._files = RunLogs(run_dir, attempt, self._scrubber.text)
        while self._early:
            self._files.driver(*self._early.popleft())
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._handler)

    def settle(self) -> None:
        """Wait for the last output of dead actors, while Ray is still there to ask; bounded."""
        wait(self._reading, timeout=_SETTLE_S)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Give the loggers back, and say what is missing. Once."""
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self._handler)
        self._reader.shutdown(wait=False, cancel_futures=True)
        files = self._files
        if files is not None and files.dropped:
            files.driver(time.time(), "warning", f"{files.dropped} texts of actors are not in the logs: these had reached their bound")
        if files is not None and files.failure is not None:
            self._display.note("warning", files.failure)

    def exception(self, error: BaseException) -> None:
        """The traceback of what ended the run."""
        self._write("error", "".join(traceback.format_exception(error)))

    def _write(self, level: str, text: str, created: float | None = None) -> None:
        when = time.time() if created is None else created
        if self._files is None:
            self._early.append((when, level, text))
        else:
            self._files.driver(when, level, text)

    # ---- RunDisplay ---------------------------------------------------------------------------------------------------------------

    def start(self, info: JsonObject) -> None:
        told = ("path", "config", "planned", "reused", "to_run", "failed_before", "quarantined", "fingerprint")
        self._write("info", "start: " + ", ".join(f"{name} {info[name]}" for name in told if name in info))
        self._display.start(info)

    def update(self, status: JsonObject) -> None:
        now = time.monotonic()
        if now - self._beat_at >= _BEAT_S:
            self._beat_at = now
            self._write("info", f"{status.get('state')}: " + ", ".join(f"{name} {status.get(name)}" for name in _BEAT))
        self._display.update(status)

    def note(self, level: str, text: str) -> None:
        self._write(level, text)
        self._display.note(level, text)

    def event(self, kind: str, event: JsonObject) -> None:
        self._display.event(kind, event)  # conversations are the traces' business, and the goal is private

    def end(self, outcome: JsonObject) -> None:
        reason = f": {outcome['reason']}" if outcome.get("reason") else ""
        self._write("info", f"ended with exit code {outcome.get('exit_code')}{reason}")
        self._display.end(outcome)

    # ---- actors -------------------------------------------------------------------------------------------------------------------

    def watch(self, spec: ActorSpec, handle: ActorHandle) -> ActorHandle:
        """-> a handle that also writes down what the actor logs."""
        return LoggedHandle(spec.actor_id, handle, self)

    def heard(self, actor_id: str, reply: Reply) -> None:
        """Records that came with a reply."""
        if self._files is not None:
            for created, level, text in reply.logs:
                self._files.actor(actor_id, created, level, text)

    def died(self, actor_id: str, info: ActorInfo | None, error: BaseException | None) -> None:
        """Fetch its last output, in a thread."""
        with contextlib.suppress(RuntimeError):  # the logs are closing
            self._reading.append(self._reader.submit(self._fetch, actor_id, info, error))

    def _fetch(self, actor_id: str, info: ActorInfo | None, error: BaseException | None) -> None:
        if self._files is None:
            return
        place = f"pid {info.pid} on {info.host} (node {info.node_id})" if info is not None else "before it had said where it is"
        self._files.actor(actor_id, time.time(), "error", f"died: {place}")  # at once: asking for the rest may outlast the run
        try:
            output = last_output(info, error)
        except Exception as failure:  # Ray's files are an extra: whatever keeps them from us is told in a line
            why = f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
            self._files.actor(actor_id, time.time(), "warning", f"its output cannot be read ({why})")
            return
        if output:
            if info is not None and info.key_mark is not None:
                output = info.key_mark.hidden_in(output)
            self._files.actor_output(actor_id, output)
        else:
            self._files.actor(actor_id, time.time(), "info", "nothing of its output is at hand")


class LoggedHandle:
    """A handle whose replies are listened to. Ends and errors pass through as they are."""

    def __init__(self, actor_id: str, inner: ActorHandle, logs: DriverLogs) -> None:
        self._actor_id, self._inner, self._logs = actor_id, inner, logs
        self._info: ActorInfo | None = None
        self._heard: deque[int] = deque(maxlen=256)
        self._over = False
        """Whether it stopped in order, or its end has been told."""

    async def start(self, timeout_s: float) -> ActorInfo:
        try:
            self._info = await self._inner.start(timeout_s)
        except (ActorGoneError, ActorFaultError) as error:
            self._died(error)
            raise
        return self._info

    async def exchange(self, order: Order) -> Reply:
        try:
            reply = await self._inner.exchange(order)
        except (ActorGoneError, ActorFaultError) as error:
            self._died(error)
            raise
        self._hear(reply)
        return reply

    def ping(self, timeout_s: float) -> Ping | None:
        return self._inner.ping(timeout_s)

    async def stop(self, ack: int, timeout_s: float) -> Reply | None:
        reply = await self._inner.stop(ack, timeout_s)
        if reply is not None:
            self._over = True
            self._hear(reply)
        return reply

    async def lost_its_node(self, timeout_s: float) -> bool:
        return await self._inner.lost_its_node(timeout_s)

    def kill(self) -> None:
        self._inner.kill()
        if self._info is not None:
            self._died(None)

    def _hear(self, reply: Reply) -> None:
        for one in (*reply.missed, reply):
            if one.logs and one.number not in self._heard:
                self._heard.append(one.number)
                self._logs.heard(self._actor_id, one)

    def _died(self, error: BaseException | None) -> None:
        if not self._over:
            self._over = True
            self._logs.died(self._actor_id, self._info, error)
