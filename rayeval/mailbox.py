"""The mailbox in a run's directory, through which requests reach a live run (``control.py`` says which).

The sender writes ``control/ID.request.json`` beside it under another name and renames it, so the driver sees a whole request or none.
The driver takes a request by removing its file, acts, and writes ``control/ID.reply.json`` the same way; the sender reads that and
removes it. So a request is acted on once or not at all: a sender that gives up removes its own request, and only if that fails was it
taken. Whoever can write into the directory can steer the run; nothing here listens on a port.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import orjson

from rayeval.control import ControlRequest, read_reply, refusal, request_of
from rayeval.exceptions import InputError, RayevalError, RefusedError
from rayeval.schemas import JsonObject
from rayeval.store._files import replace_file, write_all
from rayeval.store.lock import living_holder
from rayeval.store.run_directory import RunDirectory
from rayeval.store.status import read_status

MAX_BYTES = 1 << 20
"""Of a request."""
REPLY_S = 10.0
"""How long a sender waits, unless told otherwise."""
TAKEN_S = 5.0
"""How much longer it waits when the driver has taken the request."""
_LOOK_S = 0.05
_ALIVE_S = 0.5
"""How often a sender looks whether the run still lives."""
_ORPHAN_S = 300.0
"""A reply that nobody has fetched after this long is removed."""
_REQUEST, _REPLY = ".request.json", ".reply.json"


class Mailbox(Protocol):
    """Where a driver finds requests. Neither method blocks or raises."""

    def poll(self) -> list[ControlRequest]:
        """Requests that came since the last look, each given once."""
        ...

    def answer(self, reply: JsonObject) -> None:
        """Answer one of them."""
        ...


class DirectoryMailbox:
    """The driver's side of ``RUN/control/``. Used by one thread, while the run's lock is held."""

    _EVERY = 20
    """Looks between two that read the directory whatever its time says: over NFS that time may be old."""
    _AFTER = 8
    """Looks after a change that read it too: two changes may fall into one tick of the file system's clock."""

    def __init__(self, run_dir: RunDirectory) -> None:
        self._path = run_dir.control
        self._seen_ns = 0
        self._looks = 0
        self._hot = 0
        self._stuck: set[str] = set()

    def open(self) -> None:
        """Make the directory and remove what was left for an earlier driver. A directory that cannot be made means no mailbox."""
        with suppress(OSError):
            self._path.mkdir(exist_ok=True)
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)

    def poll(self) -> list[ControlRequest]:
        try:
            modified = os.stat(self._path).st_mtime_ns
        except OSError:
            return []
        self._looks += 1
        if modified != self._seen_ns:
            self._seen_ns, self._hot = modified, self._AFTER
        elif self._hot:
            self._hot -= 1
        elif self._looks % self._EVERY:
            return []
        found = []
        for name in self._names(_REQUEST):
            request = self._take(name)
            if request is not None:
                found.append(request)
        if self._looks % self._EVERY == 0:
            self._sweep_replies()
        return sorted(found, key=lambda request: request.sent_at)

    def answer(self, reply: JsonObject) -> None:
        # the sender waits in vain then, and says so
        with suppress(RayevalError):
            replace_file(self._path / f"{reply['id']}{_REPLY}", orjson.dumps(reply) + b"\n", durable=False)

    def close(self) -> None:
        """Refuse what nobody will look at any more, and take the box away once all replies are fetched. May be called again."""
        for name in self._names(_REQUEST):
            request = self._take(name)
            if request is not None:
                self.answer(refusal(request, RefusedError("the run has ended")))
        with suppress(OSError):
            self._path.rmdir()

    def _names(self, suffix: str) -> list[str]:
        try:
            with os.scandir(self._path) as entries:
                return [e.name for e in entries if e.name.endswith(suffix) and not e.name.startswith(".")]
        except OSError:
            return []

    def _take(self, name: str) -> ControlRequest | None:
        """Read a request and remove it: from then on it is ours to do. None for what is no request."""
        if name in self._stuck:
            return None
        path = self._path / name
        try:
            data = _read_regular(path)
            path.unlink()
        except FileNotFoundError:
            return None  # its sender gave up
        except OSError:
            self._stuck.add(name)  # it stays, and would be done again at every look
            return None
        request_id = name.removesuffix(_REQUEST)
        try:
            request = request_of(orjson.loads(data))
            if request.id != request_id:
                raise InputError("request", request.id, "has another id than its file")
        except (InputError, orjson.JSONDecodeError) as error:
            if request_id.isalnum():
                told = error if isinstance(error, InputError) else InputError("request", None, "is not JSON")
                self.answer(refusal(ControlRequest("", id=request_id), told))
            return None
        return request

    def _sweep_replies(self) -> None:
        now = time.time()
        for name in self._names(_REPLY):
            with suppress(OSError):
                path = self._path / name
                if now - path.stat(follow_symlinks=False).st_mtime > _ORPHAN_S:
                    path.unlink()


def _read_regular(path: Path) -> bytes:
    """The file's bytes. Raises OSError, also for a link, a pipe and one that is too large: anyone may have put it there."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise OSError("not a small regular file")
        return os.read(fd, MAX_BYTES)
    finally:
        os.close(fd)


def append_record(run_dir: RunDirectory, request: ControlRequest, reply: JsonObject, via: str) -> None:
    """Add what was asked, by whom and what came of it to ``control.jsonl``. Raises OSError."""
    record = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "via": via, **request.to_json(), "ok": reply["ok"]}
    record["outcome"] = reply.get("done") or reply.get("error")
    fd = os.open(run_dir.control_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, orjson.dumps(record) + b"\n")
    finally:
        os.close(fd)


def send(run_dir: RunDirectory, request: ControlRequest, timeout_s: float = REPLY_S, taken_s: float = TAKEN_S) -> JsonObject:
    """Put a request into a live run's mailbox and wait for what its driver says. -> its reply.

    Raises InputError (the request is wrong), RefusedError (nobody works on the run, no answer in time, or the driver refused).
    """
    request = request.checked().signed()
    name = run_dir.name
    if living_holder(run_dir) is None:
        raise RefusedError(f"{name} is not running: nobody works on it" + _ended_words(run_dir))
    box = run_dir.control
    mine, theirs = box / f"{request.id}{_REQUEST}", box / f"{request.id}{_REPLY}"
    try:
        replace_file(mine, orjson.dumps(request.to_json()) + b"\n", durable=False)
    except RayevalError:
        why = "it is just starting, or ending" if not box.is_dir() else f"{box} cannot be written; steer it as the user who started it"
        raise RefusedError(f"{name} takes no requests: {why}") from None
    deadline, taken_at = time.monotonic() + timeout_s, None
    look_at = time.monotonic() + _ALIVE_S
    try:
        while True:
            reply = _fetch(theirs)
            if reply is not None:
                return read_reply(reply)
            now = time.monotonic()
            if taken_at is None and not mine.exists():
                taken_at, deadline = now, max(deadline, now + taken_s)
            if now >= deadline:
                break
            if now >= look_at:
                look_at = now + _ALIVE_S
                if living_holder(run_dir) is None:
                    deadline = min(deadline, now + _LOOK_S)  # its last words may be there
            time.sleep(_LOOK_S)
        try:
            mine.unlink()
        except FileNotFoundError:
            reply = _fetch(theirs)
            if reply is not None:
                return read_reply(reply)
            raise RefusedError(f"{name} took the request and did not say what came of it; see rayeval status {name}") from None
        raise RefusedError(f"{name} {_silence(run_dir, timeout_s)}; the request was withdrawn, nothing was done")
    except BaseException:
        with suppress(OSError):
            mine.unlink(missing_ok=True)
        raise


def _fetch(path: Path) -> JsonObject | None:
    try:
        reply = orjson.loads(_read_regular(path))
    except (OSError, orjson.JSONDecodeError):
        return None
    with suppress(OSError):
        path.unlink()
    return reply if isinstance(reply, dict) else None


def _silence(run_dir: RunDirectory, timeout_s: float) -> str:
    if living_holder(run_dir) is None:
        return "has ended meanwhile"
    state = (read_status(run_dir) or {}).get("state")
    return f"did not answer within {timeout_s:g} s" + (f" (it is {state})" if state in ("starting", "ended") else "")


def _ended_words(run_dir: RunDirectory) -> str:
    status = read_status(run_dir) or {}
    return f" (it ended with exit code {status.get('exit_code')})" if status.get("state") == "ended" else ""
