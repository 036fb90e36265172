"""One driver for a run directory.

Two things together: a kernel lock on ``run.lock``, freed by the kernel whenever its holder dies, and the record
``run.lock.json``, which says who holds it and is renewed every ``renew_s``. The record is a file of its own because
the lock file may be replaced.

Invariants:

* Epochs only grow. Every acquisition claims the next one by making ``run.lock.epoch-N``, which only one process can
  do; so two takers never share an epoch, also where the kernel lock does not reach across hosts.
* A holder whose epoch is not the newest writes nothing: ``check`` looks at the record and at the next claim, and the
  renewing thread ends as soon as either is newer. A record that an outrun holder still managed to write is replaced at
  the newer one's next renewal.
* On the same boot the kernel lock decides: held means that its holder lives (a stopped process too), free means that
  it is dead. Only for another boot does time decide: the record must stand unchanged for ``takeover_s`` on the taker's
  own monotonic clock.

Closing: ``release`` ends the thread, marks the record released when it is still ours, and frees the kernel lock last.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import filelock
import orjson
import psutil

from rayeval.exceptions import InputError, RunLockedError, RunTakenOverError, StoreWriteError
from rayeval.store._files import replace_file, write_error
from rayeval.store.run_directory import RunDirectory

log = logging.getLogger(__name__)

_START_TIME_SLACK_S = 2.0
"""Start times are wall-clock figures derived from the boot time; a stepped clock moves them a little."""
_RECORD_WAIT_S = 2.0
"""How long a kernel lock may be held before its record must be there."""


@dataclass(frozen=True, slots=True)
class LockRecord:
    """Who holds, or last held, a run directory; the content of ``run.lock.json``."""

    host: str
    boot_id: str
    pid: int
    start_time: float
    """Unix time at which the process began."""
    epoch: int
    token: str
    """Random; tells two holders apart whatever their epochs."""
    job_id: str | None
    acquired_at: str
    counter: int = 0
    """Grows with each renewal; the only thing a taker on another host looks at."""
    renewed_at: str = ""
    released: bool = False

    def describe(self) -> str:
        """In words, for messages."""
        began = datetime.fromtimestamp(self.start_time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        job = f", job {self.job_id}" if self.job_id else ""
        return f"pid {self.pid} on host {self.host} (started {began}{job})"

    @property
    def same_boot(self) -> bool:
        """Whether it was written under this kernel; containers of one machine share it, whatever they call their
        host.
        """
        return self.boot_id == boot_id()


class RunLock:
    """The right to write to a run directory; made by ``acquire`` only."""

    def __init__(self, run_dir: RunDirectory, kernel: filelock.BaseFileLock, record: LockRecord, renew_s: float) -> None:
        self._run_dir, self._kernel, self._record, self._renew_s = run_dir, kernel, record, renew_s
        self._stop = threading.Event()
        self._released = False
        self._thread = threading.Thread(target=self._renew, name="run-lock", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls,
        run_dir: RunDirectory,
        *,
        job_id: str | None = None,
        takeover_s: float = 60.0,
        renew_s: float = 5.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> RunLock:
        """Take the directory, or say who has it.

        Returns at once when it is free, was released, or its holder on this boot is dead. For a holder of another boot
        it blocks up to ``takeover_s`` and tells ``on_wait`` why.

        Raises RunLockedError naming the holder, InputError (unwritable directory), StoreWriteError.
        """
        if not run_dir.path.is_dir():
            raise InputError("run directory", str(run_dir.path), "is not a directory; make it first")
        kernel = filelock.FileLock(str(run_dir.lock), timeout=0, thread_local=False)
        try:
            holding, previous = _settle(kernel, run_dir)
            if holding and previous and previous.same_boot and not previous.released and _lives_elsewhere(previous):
                # the lock file was removed by hand under a living holder
                raise _locked(run_dir, previous)
            if previous is not None and not previous.same_boot and not previous.released:
                _wait_unchanged(run_dir, previous, takeover_s, on_wait)
            epoch = _claim(run_dir, previous)
            if not holding:
                # a file server may keep a dead host's lock for long; the claim says that the file is ours to replace
                run_dir.lock.unlink(missing_ok=True)
                holding = _try_kernel(kernel, run_dir)
            record = _own_record(epoch, job_id)
            _write_record(run_dir, record, durable=True)
            if _claim_path(run_dir, epoch + 1).exists() or not holding:
                raise _outrun(run_dir)
            _forget_claims(run_dir, epoch)
            return cls(run_dir, kernel, record, renew_s)
        except BaseException:
            kernel.release(force=True)
            raise

    @property
    def epoch(self) -> int:
        """1 for the first driver of the run, one more for each later one."""
        return self._record.epoch

    @property
    def record(self) -> LockRecord:
        return self._record

    def check(self) -> None:
        """Call right before each append. Raises RunTakenOverError when the directory is another driver's (or this lock
        was released).
        """
        if self._released:
            raise RunTakenOverError(f"{self._run_dir.path}: this driver has released the run; nothing more may be written")
        if (other := self._newer()) is not None:
            raise RunTakenOverError(f"{self._run_dir.path} was taken over by {other}; this driver writes nothing more")

    def release(self) -> None:
        """Give the directory back; idempotent. Never raises: the work is done, and the kernel frees the lock at the
        latest with the process.
        """
        if self._released:
            return
        self._stop.set()
        self._thread.join(timeout=max(5.0, self._renew_s))
        if self._newer() is None:
            try:
                _write_record(self._run_dir, replace(self._record, released=True, renewed_at=_now()), durable=False)
            except StoreWriteError as cause:
                log.warning("the lock record could not be marked as released: %s", cause)
        self._released = True
        self._kernel.release(force=True)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _newer(self) -> str | None:
        """-> the driver that took the run over, in words; None while it is ours."""
        found = read_lock_record(self._run_dir)
        if found is not None and found.epoch > self.epoch:
            return found.describe()
        if found is not None and found.epoch == self.epoch and found.token != self._record.token:
            return found.describe()
        if _claim_path(self._run_dir, self.epoch + 1).exists():
            return "a driver that has claimed the next epoch"
        return None

    def _renew(self) -> None:
        while not self._stop.wait(self._renew_s):
            if self._newer() is not None:
                return
            renewed = replace(self._record, counter=self._record.counter + 1, renewed_at=_now())
            try:
                _write_record(self._run_dir, renewed, durable=False)
            except StoreWriteError as cause:
                # a record that stands still may be taken over: that is the rule
                log.warning("the lock record could not be renewed: %s", cause)
            else:
                self._record = renewed


def read_lock_record(run_dir: RunDirectory) -> LockRecord | None:
    """-> the record, or None when there is none that can be read."""
    try:
        value = orjson.loads(run_dir.lock_record.read_bytes())
        return LockRecord(**{name: value[name] for name in LockRecord.__slots__})
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def living_holder(run_dir: RunDirectory, silent_s: float = 60.0) -> LockRecord | None:
    """-> who works on the run now, as far as can be told without touching the lock: by pid and start time on this
    boot, by a record renewed within ``silent_s`` (wall clock) elsewhere."""
    record = read_lock_record(run_dir)
    if record is None or record.released:
        return None
    if record.same_boot and record.host == socket.gethostname():
        return record if _process_lives(record.pid, record.start_time) else None
    renewed = datetime.fromisoformat(record.renewed_at or record.acquired_at)
    return record if abs((datetime.now(UTC) - renewed).total_seconds()) < silent_s else None


@cache
def boot_id() -> str:
    """One value for each boot of this kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{psutil.boot_time():.0f}"


def process_space() -> str:
    """Where a pid means something: this boot of this kernel, and this pid namespace (containers on one machine share the first only)."""
    try:
        return f"{boot_id()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot_id()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _own_record(epoch: int, job_id: str | None) -> LockRecord:
    return LockRecord(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        start_time=psutil.Process().create_time(),
        epoch=epoch,
        token=uuid.uuid4().hex,
        job_id=job_id,
        acquired_at=_now(),
        renewed_at=_now(),
    )


def _write_record(run_dir: RunDirectory, record: LockRecord, *, durable: bool) -> None:
    replace_file(run_dir.lock_record, orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2) + b"\n", durable=durable)


def _try_kernel(kernel: filelock.BaseFileLock, run_dir: RunDirectory) -> bool:
    try:
        kernel.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except PermissionError as cause:
        raise InputError("run directory", str(run_dir.path), f"cannot be written ({cause.strerror})") from None
    except OSError as cause:
        raise write_error(run_dir.lock, "locking", cause) from cause
    return True


def _settle(kernel: filelock.BaseFileLock, run_dir: RunDirectory) -> tuple[bool, LockRecord | None]:
    """-> (whether the kernel lock is ours, the last record). Not ours only when the record is of another boot.

    A held lock whose record is missing, released or of a dead process belongs to somebody who begins or ends: looked
    at again for a moment, so that the message names the right one. Raises RunLockedError.
    """
    deadline = time.monotonic() + _RECORD_WAIT_S
    while True:
        if _try_kernel(kernel, run_dir):
            return True, read_lock_record(run_dir)
        record = read_lock_record(run_dir)
        if record is not None and not record.released:
            if not record.same_boot:
                return False, record
            if record.host != socket.gethostname() or _process_lives(record.pid, record.start_time):
                raise _locked(run_dir, record)
        if time.monotonic() > deadline:
            raise RunLockedError(f"{run_dir.path} is held by a process that wrote no record; wait for it to end")
        time.sleep(0.05)


def _locked(run_dir: RunDirectory, holder: LockRecord) -> RunLockedError:
    return RunLockedError(f"{run_dir.path} is held by {holder.describe()}; wait for it or end it")


def _outrun(run_dir: RunDirectory) -> RunLockedError:
    return RunLockedError(f"{run_dir.path} was taken by another driver at the same moment; look there first")


def _process_lives(pid: int, start_time: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - start_time) < _START_TIME_SLACK_S
    except psutil.Error:
        return False


def _lives_elsewhere(record: LockRecord) -> bool:
    """Whether another process than this one, which we can see, matches the record."""
    return record.host == socket.gethostname() and record.pid != os.getpid() and _process_lives(record.pid, record.start_time)


def _wait_unchanged(run_dir: RunDirectory, seen: LockRecord, takeover_s: float, on_wait: Callable[[str], None] | None) -> None:
    began = time.monotonic()
    if on_wait is not None:
        on_wait(
            f"{run_dir.path} was last held by {seen.describe()}, which this host cannot see; "
            f"taking over if it stays silent for {takeover_s:.0f} s"
        )
    while (left := began + takeover_s - time.monotonic()) > 0:
        time.sleep(min(left, 1.0, max(0.01, takeover_s / 20)))
        now = read_lock_record(run_dir)
        if now is not None and now.released:
            return
        if now is not None and (now.counter, now.token) != (seen.counter, seen.token):
            raise _locked(run_dir, now)


def _claim_path(run_dir: RunDirectory, epoch: int) -> Path:
    return run_dir.path / f"run.lock.epoch-{epoch}"


def _claimed(run_dir: RunDirectory) -> list[int]:
    prefix = "run.lock.epoch-"
    names = (p.name.removeprefix(prefix) for p in run_dir.path.glob(prefix + "*"))
    return sorted(int(n) for n in names if n.isdecimal())


def _claim(run_dir: RunDirectory, previous: LockRecord | None) -> int:
    """Make the next epoch ours. Raises RunLockedError when another taker was faster."""
    # a claim without a record is of a taker that died in between
    epoch = max([previous.epoch if previous else 0, *_claimed(run_dir)]) + 1
    path = _claim_path(run_dir, epoch)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        raise _outrun(run_dir) from None
    except OSError as cause:
        raise write_error(path, "claiming the run", cause) from cause
    return epoch


def _forget_claims(run_dir: RunDirectory, epoch: int) -> None:
    # the newest two stay: a holder that was outrun and wakes up looks for the claim after its own
    for old in _claimed(run_dir):
        if old < epoch - 1:
            with suppress(OSError):
                _claim_path(run_dir, old).unlink()
