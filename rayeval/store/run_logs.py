"""``RUN/logs/attempt_N``: what driver and actors of one invocation had to say, kept where the traces are.

Invariants:
* Bounded: a file that passes its limit becomes ``NAME.1`` (the one before is dropped) and begins anew; past ``ALL_BYTES`` of an
  attempt the lines of actors are counted and dropped.
* Every text has been through the scrubber: no key that the driver knows, no bearer token. The key of an actor elsewhere is taken out by
  who knows it: of log records in the actor, of the last output of one that died by its mark (``KeyMark``).
* A log never ends a run: the first failed write ends the logging, and is told once.
Closing rule: none is needed; a line is in the kernel's hands when its call returns (no fsync), and no file is held open.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from rayeval.exceptions import InputError
from rayeval.store._files import write_all
from rayeval.store.launch import without_secrets
from rayeval.store.run_directory import RunDirectory

DRIVER = "driver"
LATEST = "latest"
DRIVER_BYTES = 16 << 20
ACTOR_BYTES = 2 << 20
ALL_BYTES = 256 << 20
"""Of one attempt, the driver's log not counted."""
TEXT_CHARS = 8000
"""A longer text is cut in its middle."""

_ATTEMPT = re.compile(r"attempt_([1-9][0-9]*)")
_SAFE = re.compile(r"[^A-Za-z0-9_.-]")


class RunLogs:
    """Writes the logs of one invocation. Safe to call from any thread. ``scrub``: takes the key out of a text."""

    def __init__(self, run_dir: RunDirectory, attempt: int, scrub: Callable[[str], str] = str) -> None:
        self.directory = run_dir.logs / f"attempt_{attempt}"
        self._link = run_dir.logs / LATEST
        self._scrub = scrub
        self._lock = threading.Lock()
        self._actor_bytes = 0
        self.dropped = 0
        """Texts of actors beyond the bound of all."""
        self.failure: str | None = None
        """Why nothing is written any more."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._point_latest()
        except OSError as error:
            self._fail(error)

    def driver(self, created: float, level: str, text: str) -> None:
        """A line of the driver's. ``created``: Unix time."""
        self._append(DRIVER, self._line(created, level, text), DRIVER_BYTES)

    def actor(self, actor_id: str, created: float, level: str, text: str) -> None:
        """A line of an actor's. ``created``: Unix time there."""
        self._append_actor(actor_id, self._line(created, level, text))

    def actor_output(self, actor_id: str, text: str) -> None:
        """What an actor's process printed, as it is."""
        self._append_actor(actor_id, self._clean(text).rstrip("\n") + "\n")

    def _append_actor(self, actor_id: str, text: str) -> None:
        with self._lock:
            if self._actor_bytes > ALL_BYTES:
                self.dropped += 1
                return
            self._actor_bytes += len(text)
        self._append(_SAFE.sub("_", f"actor-{actor_id}"), text, ACTOR_BYTES)

    def _clean(self, text: str) -> str:
        return str(without_secrets(self._scrub(text)))

    def _line(self, created: float, level: str, text: str) -> str:
        stamp = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = self._clean(text.rstrip())
        if len(body) > TEXT_CHARS:
            body = f"{body[: TEXT_CHARS // 2]} [... {len(body) - TEXT_CHARS} characters left out ...] {body[-TEXT_CHARS // 2 :]}"
        return f"{stamp} {level} {body}".replace("\n", "\n    ") + "\n"

    def _append(self, name: str, text: str, limit: int) -> None:
        data = text.encode("utf-8", "backslashreplace")
        path = self.directory / f"{name}.log"
        with self._lock:
            if self.failure is not None:
                return
            try:
                with suppress(FileNotFoundError):
                    size = path.stat().st_size
                    if size and size + len(data) > limit:
                        os.replace(path, f"{path}.1")
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                try:
                    write_all(fd, data)
                finally:
                    os.close(fd)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = f"{self.directory}: logs cannot be written ({error.strerror or error})"

    def _point_latest(self) -> None:
        temporary = self._link.with_name(f".{LATEST}.{os.getpid()}.tmp")
        with suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(self.directory.name, target_is_directory=True)
        os.replace(temporary, self._link)


# ---- reading --------------------------------------------------------------------------------------------------------------------------


def attempts(run_dir: RunDirectory) -> list[int]:
    """Numbers of the attempts that left logs, ascending."""
    try:
        names = os.listdir(run_dir.logs)
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := _ATTEMPT.fullmatch(name)))


def log_files(run_dir: RunDirectory, attempt: int | None = None) -> list[Path]:
    """Logs of an attempt (default: the newest), the driver's first. Raises InputError when there are none."""
    there = attempts(run_dir)
    if not there:
        raise InputError("run", run_dir.name, "has no logs: none of its starts came so far, or another version made it")
    number = there[-1] if attempt is None else attempt
    if number not in there:
        raise InputError("--attempt", number, f"left no logs; there are {_range(there)}")
    found = sorted((run_dir.logs / f"attempt_{number}").glob("*.log"))
    return sorted(found, key=lambda path: path.stem != DRIVER)


def choose_log(files: list[Path], actor: str | None) -> Path:
    """The driver's log, or that of ``actor``: an id or the end of one. Raises InputError."""
    if actor is None:
        found = next((path for path in files if path.stem == DRIVER), None)
        if found is None:
            raise InputError("run", None, "has no log of its driver yet")
        return found
    actors = [path for path in files if path.stem != DRIVER]
    wanted = actor.removeprefix("actor-")
    exact = [path for path in actors if path.stem.removeprefix("actor-") == wanted]
    chosen = exact or [path for path in actors if path.stem.endswith(wanted)]
    if len(chosen) != 1:
        names = ", ".join(path.stem.removeprefix("actor-") for path in (chosen or actors)[:20])
        hint = f"there are {names}" if names else "an actor that had nothing to say has no log, and none had"
        raise InputError("--actor", actor, f"is {'more than one' if chosen else 'not there'}; {hint}")
    return chosen[0]


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


class LogReader:
    """Reads a log from its beginning, over rotations, as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset = 0

    def fresh(self) -> Iterator[str]:
        """What was added since the last call, in pieces of whole characters."""
        older = Path(f"{self._path}.1")
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return
        if self._inode is None:
            if older.exists():
                yield from self._read(older)
        elif now.st_ino != self._inode:  # it was rotated: its end is in the older file, if that is still the one
            with suppress(FileNotFoundError):
                if older.stat().st_ino == self._inode:
                    yield from self._read(older)
        if now.st_ino != self._inode:
            self._inode, self._offset = now.st_ino, 0
        yield from self._read(self._path)

    def _read(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(1 << 20):
                end = data.rfind(b"\n") + 1
                if not end:
                    return  # an unfinished line: it is read when it is whole
                self._offset += end
                file.seek(self._offset)
                yield data[:end].decode("utf-8", "replace")
        if path != self._path:
            self._offset = 0


def last_lines(pieces: Iterator[str], count: int) -> str:
    """The last ``count`` lines; indented lines belong to the one above and are not counted."""
    lines = "".join(pieces).splitlines(keepends=True)
    starts = [k for k, line in enumerate(lines) if not line.startswith("    ")]
    return "".join(lines[starts[-count] :]) if count and len(starts) >= count else "".join(lines) if count else ""
