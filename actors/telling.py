"""What a run says of itself: notes, its status, logs, metrics, spans. The engine says each thing once, here; who hears is known here.

Invariants:
* Nothing here ends a run: a status that cannot be told is noted once as a defect, and each listener bears its own failures.
* A note goes to the terminal, to the logs, and among the last ones in the status.
* The last status, with its exit code, is told exactly once, by ``end`` or by ``end_by_error``.
Closing rule: ``logs.settle`` and ``leave_ray`` before Ray is left, ``logs.close`` after the last word.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from actors.ledger import Ledger, described
from actors.logs import DriverLogs
from actors.metric_exporters import RayExporter
from actors.metrics import RunMetrics
from actors.progress import Progress, RecentNotes
from actors.tracing import start_tracing
from rayeval.display import RunDisplay
from rayeval.exceptions import RayevalError
from rayeval.schemas import ExitCode, JsonObject
from rayeval.store import RunDirectory, TraceLog, launch_number, write_status

if TYPE_CHECKING:
    from rayeval.config import Config
    from rayeval.otel.sender import TraceSender
    from rayeval.plan import Plan

_STATUS_EVERY_S = 1.0


class Telling:
    """The voice of one invocation. Used from the driver's thread."""

    def __init__(self, run_dir: RunDirectory, config: Config, display: RunDisplay) -> None:
        variable = config.model.api_key_env
        key = os.environ.get(variable) if variable else None
        self._run_dir, self._config = run_dir, config
        self.display = self.logs = DriverLogs(display, key)
        self.notes = RecentNotes(key)
        self._progress: Progress | None = None
        self._publish: Callable[[JsonObject], None] = lambda status: None
        self._metrics: RunMetrics | None = None
        """While the run is on Ray."""
        self._tracing: TraceSender | None = None
        self._failed = False

    def note(self, level: str, text: str) -> None:
        """One line: ``debug``, ``info``, ``warning`` or ``error``."""
        self.notes.heard(level, text)
        self.display.note(level, text)

    # ---- who hears ----------------------------------------------------------------------------------------------------------------

    def open_files(self, launch: Path) -> None:
        """From now on notes are also written down, under the number of this invocation's launch file."""
        self.logs.open(self._run_dir, launch_number(launch))

    def begin(self, progress: Progress, publish: Callable[[JsonObject], None]) -> None:
        """There is a status to tell; ``publish`` also hears it (whoever watches from another machine)."""
        self._progress, self._publish = progress, publish

    def start_tracing(self, plan: Plan, epoch: int) -> None:
        """Export spans where asked for. Raises ConfigurationError for OTEL_* variables that cannot be used."""
        self._tracing = start_tracing(self._config, plan, self._run_dir, epoch, self.note)

    def on_ray(self) -> None:
        """Ray is there: metrics go through it."""
        self._metrics = RunMetrics(self._run_dir.name, RayExporter(self.note))

    def attach(self, ledger: Ledger, log: TraceLog, servers: Iterable[str], endpoints: Iterable[str]) -> None:
        """There are episodes to count."""
        if self._metrics is not None:
            self._metrics.attach(ledger, log, servers, endpoints)
        if self._tracing is not None:
            ledger.on_counted.append(self._tracing.offer)

    # ---- the status ---------------------------------------------------------------------------------------------------------------

    async def report(self) -> None:
        """Tell the status each second, until cancelled."""
        while True:
            await asyncio.sleep(_STATUS_EVERY_S)
            self.tell("running")

    def tell(self, state: str) -> None:
        """Tell the status now. One that cannot be told is a defect, and yet no reason to end the run."""
        try:
            status = self._status(state)
        except Exception as error:
            self._defect(error)
            return
        for hears in (partial(write_status, self._run_dir), self._publish, self.display.update, self._metrics and self._metrics.tell):
            if hears:
                self._guarded(hears, status)

    def _guarded(self, hears: Callable[..., object], *what: object) -> None:
        """One listener's failure is noted, the first one, and keeps it from nobody else."""
        try:
            hears(*what)
        except Exception as error:
            self._defect(error)

    def _defect(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            with contextlib.suppress(Exception):  # it may be the display itself
                self.note("error", f"the status could not be told: {described(error)}")

    def _status(self, state: str) -> JsonObject:
        """The content of ``status.json``. What the tracing's own thread has to tell is told on the way."""
        assert self._progress is not None
        status = self._progress.status(state)
        if self._tracing is not None:
            status["tracing"] = self._tracing.counts()
            for level, text in self._tracing.take_notes():
                self.note(level, text)
        return status

    # ---- the end ------------------------------------------------------------------------------------------------------------------

    def flush_tracing(self) -> JsonObject | None:
        """Send the spans that wait, bounded. -> their counts for the summary; None without tracing."""
        return None if self._tracing is None else self._tracing.flush()

    def end(self, exit_code: ExitCode, reason: str | None, unaccounted: Mapping[str, int]) -> JsonObject:
        """-> the last status, told to everybody but the display."""
        status = self._last(exit_code, reason)
        self._guarded(write_status, self._run_dir, status)
        if self._metrics is not None:
            self._guarded(self._metrics.end, status, unaccounted)
        return status

    def end_by_error(self, error: BaseException) -> None:
        """An error leaves the run: no status goes on saying that it lives, and the display lets go of the terminal."""
        self.logs.exception(error)
        code, reason = ExitCode.INTERNAL, f"an internal error ({type(error).__name__})"
        if isinstance(error, RayevalError):
            code, reason = error.exit_code, str(error)
        self.flush_tracing()
        status = self._last(code, reason)
        self._guarded(write_status, self._run_dir, status)
        self._guarded(self.display.end, {"exit_code": int(code), "reason": reason, "summary": None, "status": status})

    def _last(self, exit_code: ExitCode, reason: str | None) -> JsonObject:
        status = self._status("ended") | {"exit_code": int(exit_code), "reason": reason}
        if self._tracing is not None:
            self._guarded(self._tracing.end, status)
        return status

    def leave_ray(self) -> None:
        """Gauges that would be untrue of a run that is over; Ray flushes as it is left."""
        if self._metrics is not None:
            self._metrics.close()
