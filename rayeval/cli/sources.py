"""Where a status comes from, and what is true of its run: the run's directory, or the run itself over its cluster.

Invariants: a read waits at most as long as it is told, and a little for an answer; the reader's clock and the driver's are compared only on
one machine. (Elsewhere the status is held against the lock record, which the same driver renews each 5 s by the same clock.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rayeval.cli.status_page import Sight
from rayeval.cli.words import duration, shown
from rayeval.schemas import JsonObject

if TYPE_CHECKING:
    from rayeval.store import LockRecord, RunDirectory

STALE_S = 10.0
"""A driver writes each second; one that has not for so long is in trouble."""
_STALE_IN = {"starting": 180.0, "closing": 3600.0}
"""States in which it writes nothing for a while: Ray starts; shards and the summary are written."""
_READ_EVERY_S = 1.0
_SAME_S = 0.2
AskStatus = Callable[[int, float], JsonObject]


class Source(Protocol):
    """Where statuses come from."""

    def read(self, wait_s: float) -> Sight:
        """The newest one; it may wait up to ``wait_s`` for it."""
        ...


class LocalSource:
    """A run whose directory this machine sees."""

    def __init__(self, run_dir: RunDirectory) -> None:
        self._run_dir = run_dir
        self._read = False

    def read(self, wait_s: float) -> Sight:
        if self._read:
            time.sleep(min(wait_s, _READ_EVERY_S))
        self._read = True
        return look(self._run_dir)


def look(run_dir: RunDirectory, now: datetime | None = None) -> Sight:
    """What a run's directory says of it at this moment."""
    from rayeval.store import living_holder, read_lock_record, read_status

    # The holder first: one that ends between the two reads has written its last status by then.
    holder = living_holder(run_dir)
    status, name = read_status(run_dir), run_dir.name
    now = now or datetime.now(UTC)
    if status is None:
        if holder is not None:
            return Sight({}, "starting", advice=f"{holder.describe()} has just taken it", name=name)
        if run_dir.traces.exists() and run_dir.traces.stat().st_size > 0:
            return Sight({}, "interrupted", advice="no status was written; `rayeval summarize` reads its traces", name=name)
        return Sight({}, "not begun", advice="no status was written: no episode was ever started", name=name)
    written = _time_of(status.get("updated_at"))
    age = None if written is None else max(0.0, (now - written).total_seconds())
    if holder is not None and _after(holder.acquired_at, written):
        return Sight(status, "starting", advice=f"{holder.describe()} goes on with it", name=name)
    if status.get("state") == "ended":
        return Sight(status, "ended", age, name=name)
    if holder is None:
        return Sight(status, "interrupted", age, advice=_abandoned(read_lock_record(run_dir)), name=name)
    state = shown(status.get("state"), 40) or "running"
    if written is not None and not _is_here(holder):
        renewed = _time_of(holder.renewed_at or holder.acquired_at)
        age = None if renewed is None else max(0.0, (renewed - written).total_seconds())
    if age is None or age <= _STALE_IN.get(state, STALE_S):
        return Sight(status, state, age, name=name)
    return Sight(status, state, age, True, _stalled(holder, age), name)


def _is_here(holder: LockRecord) -> bool:
    import socket

    return holder.same_boot and holder.host == socket.gethostname()


def _abandoned(last: LockRecord | None) -> str:
    go_on = "run the same command again to go on"
    if last is None or last.released:
        return f"nobody works on it; {go_on}"
    gone = "is gone" if _is_here(last) else "has said nothing for a minute"
    return f"nobody works on it: its driver, {last.describe()}, {gone}; {go_on}"


def _stalled(holder: LockRecord, age_s: float) -> str:
    what = f"its driver, {holder.describe()}, lives and has written no status for {duration(age_s)}"
    if _is_here(holder) and _is_stopped(holder.pid):
        return f"{what}: the process is stopped; `kill -CONT {holder.pid}` lets it go on"
    return f"{what}: it hangs, its disk does not answer, or its machine is overloaded; look there"


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _time_of(value: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _after(acquired_at: object, written: datetime | None) -> bool:
    acquired = _time_of(acquired_at)
    return acquired is not None and written is not None and acquired > written


class FarSource:
    """A run over its cluster. Its statuses carry their age by one clock, that of its mailbox."""

    def __init__(self, ask: AskStatus, name: str, gone: type[Exception]) -> None:
        """``ask``: of ``actors.far_status``, and ``gone`` what it raises once the run is gone."""
        self._ask, self._name, self._gone = ask, name, gone
        self._number = 0
        self._last: Mapping[str, Any] = {}
        self._last_at = 0.0

    def read(self, wait_s: float) -> Sight:
        try:
            answer = self._ask(self._number, wait_s)
        except self._gone:
            if not self._last:
                raise
            advice = "it has ended, or its driver has, and nobody was told how; its directory and its job's log say it"
            return Sight(self._last, "interrupted", None, advice=advice, name=self._name)
        if answer["number"] == self._number:
            time.sleep(_SAME_S)
        self._number = answer["number"]
        status, age = answer["status"], answer["age_s"]
        if isinstance(status, dict):
            self._last, self._last_at = status, time.monotonic() - (age or 0.0)
        elif self._last:  # a new mailbox, which has heard nothing yet: the old one was lost
            status, age = self._last, time.monotonic() - self._last_at
        else:
            return Sight({}, "starting", advice="it has told nothing of itself yet", name=self._name)
        state = shown(status.get("state"), 40) or "running"
        if state == "ended" or age is None or age <= _STALE_IN.get(state, STALE_S):
            return Sight(status, state, age, name=self._name)
        advice = f"its driver has told nothing for {duration(age)}: it is stopped or hangs, or its machine is overloaded; look there"
        return Sight(status, state, age, True, advice, self._name)
