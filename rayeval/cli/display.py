"""How a run is shown on stderr.

auto    rich on a terminal, else plain
rich    a progress bar with live figures
plain   one record, one line: a heartbeat each 30 s and at each tenth of the plan
json    the same records as JSON lines
none    nothing but errors
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any

from rayeval.cli.output import one_line, use_color, visible
from rayeval.cli.words import duration
from rayeval.costs import money
from rayeval.display import RunDisplay
from rayeval.exceptions import InputError
from rayeval.schemas import JsonObject

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

HEARTBEAT_S = 30.0
_COLORS = {"warning": "33", "error": "31"}
_FIGURES = ("planned", "done", "failed", "not_run", "in_flight", "rate_per_min", "eta_s", "reward_mean", "reward_n")
"""What a JSON heartbeat carries of the status."""
_SHOWN = {
    "reset": ("task_instruction", "observation"),
    "model": ("reasoning", "content", "tool_calls", "policy_failure"),
    "action": ("action",),
    "environment": ("action_feedback", "reward", "observation"),
    "protocol_error": ("code", "message"),
    "end": ("status", "final", "error"),
}
"""What ``--show`` prints of each event; of an unknown kind all."""
_END = ("termination_reason", "reward", "reward_detail", "message")
"""What it prints of the last result: not the private goal, which no display may name."""


class DisplayMode(StrEnum):
    """Values of ``--display`` and of RAYEVAL_DISPLAY."""

    AUTO = "auto"
    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"
    NONE = "none"


def choose_mode(requested: str | None, environ: Mapping[str, str], is_terminal: bool) -> DisplayMode:
    """The option, else RAYEVAL_DISPLAY, else auto. Off a terminal, and on a dumb one, rich becomes plain.

    Raises InputError for a word that is no mode.
    """
    field, word = ("--display", requested) if requested else ("RAYEVAL_DISPLAY", environ.get("RAYEVAL_DISPLAY") or "auto")
    try:
        mode = DisplayMode(word)
    except ValueError:
        raise InputError(field, word, f"give one of {', '.join(DisplayMode)}") from None
    able = is_terminal and environ.get("TERM") != "dumb"
    if mode is DisplayMode.AUTO:
        return DisplayMode.RICH if able and not environ.get("CI") else DisplayMode.PLAIN
    return DisplayMode.PLAIN if mode is DisplayMode.RICH and not able else mode


def make_display(mode: DisplayMode, environ: Mapping[str, str], stream: IO[str] | None = None) -> RunDisplay:
    """A display on ``stream`` (stderr)."""
    stream = stream or sys.stderr
    color = use_color(environ, stream.isatty())
    if mode is DisplayMode.RICH:
        return RichDisplay(stream, color)
    if mode is DisplayMode.JSON:
        return JsonDisplay(stream)
    if mode is DisplayMode.NONE:
        return QuietDisplay(stream, color)
    return PlainDisplay(stream, color)


class Heartbeat:
    """Says when a line is due: ``period_s`` after the last one, and when a tenth of the plan is passed."""

    def __init__(self, period_s: float = HEARTBEAT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s, self._clock = period_s, clock
        self._last = clock()
        self._tenth: int | None = None

    def due(self, status: Mapping[str, Any]) -> bool:
        planned = status.get("planned") or 0
        over = planned - (status.get("not_run") or 0)
        tenth = over * 10 // planned if planned else 0
        # The first status only says where a resumed run starts.
        passed = self._tenth is not None and tenth > self._tenth
        self._tenth = tenth
        now = self._clock()
        if not passed and now - self._last < self._period_s:
            return False
        self._last = now
        return True


def start_sentence(info: Mapping[str, Any]) -> str:
    """What a run begins with, in words."""
    to_run = info.get("to_run", 0)
    failed, quarantined, reused = info.get("failed_before") or 0, info.get("quarantined") or 0, info.get("reused") or 0
    sentence = f"{to_run} to run" + (f" ({failed} of them failed before)" if failed else "")
    if reused or failed or quarantined:
        sentence = f"reusing {reused} completed, {sentence}"
    if quarantined:
        sentence += f", {quarantined} quarantined"
    return f"{info.get('run', 'run')}: {sentence}"


def status_sentence(status: Mapping[str, Any]) -> str:
    """A whole sentence: done, failed, in flight, rate, what is left."""
    parts = [
        f"{status.get('done', 0)} of {status.get('planned', 0)} done",
        f"{status.get('failed', 0)} failed",
        f"{status.get('in_flight', 0)} in flight",
    ]
    if status.get("rate_per_min") is not None:
        parts.append(f"{status['rate_per_min']:.1f} a minute")
    if status.get("reward_mean") is not None:
        parts.append(f"reward {status['reward_mean']:.3f} over {status.get('reward_n', 0)}")
    cost = status.get("cost")
    if cost:
        parts.append(f"{money(cost['amount'], cost['currency'])} spent")
    eta = status.get("eta_s")
    over = bool(status.get("planned")) and status.get("done", 0) + status.get("failed", 0) >= status["planned"]
    parts.append("nothing left" if over else f"about {duration(eta)} left" if eta is not None else "time left not known yet")
    return ", ".join(parts)


class _StreamDisplay:
    """Common ground: a stream that may go away, records of one line."""

    def __init__(self, stream: IO[str], color: bool = False, heartbeat: Heartbeat | None = None) -> None:
        self._stream, self._color = stream, color
        self._heartbeat = heartbeat or Heartbeat()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # whoever watched is gone; the run goes on

    def start(self, info: JsonObject) -> None:
        self.note("info", start_sentence(info))

    def update(self, status: JsonObject) -> None:
        if self._heartbeat.due(status):
            self.note("info", status_sentence(status))

    def note(self, level: str, text: str) -> None:
        if level == "debug":
            return
        stamp = datetime.now(UTC).strftime("%H:%M:%S")
        word = f"\x1b[{_COLORS[level]}m{level}\x1b[0m" if self._color and level in _COLORS else level
        self._write(f"{stamp} {word} {one_line(text)}")

    def event(self, kind: str, event: JsonObject) -> None:
        for line in event_lines(kind, event):
            self._write(line)

    def end(self, outcome: JsonObject) -> None:
        if outcome.get("status"):
            self.note("info", status_sentence({**outcome["status"], "eta_s": 0}).rpartition(", ")[0])
        if outcome.get("reason"):
            self.note("warning" if outcome.get("exit_code") else "info", f"ended: {outcome['reason']}")


class PlainDisplay(_StreamDisplay):
    """Lines for logs: no carriage return, no cursor."""


class QuietDisplay(_StreamDisplay):
    """Errors only."""

    def start(self, info: JsonObject) -> None: ...

    def update(self, status: JsonObject) -> None: ...

    def note(self, level: str, text: str) -> None:
        if level == "error":
            super().note(level, text)

    def end(self, outcome: JsonObject) -> None: ...


class JsonDisplay(_StreamDisplay):
    """JSON lines: ``ts, level, run, msg`` and figures."""

    _run: str | None = None

    def start(self, info: JsonObject) -> None:
        self._run = info.get("run")
        self._record("info", start_sentence(info), info)

    def update(self, status: JsonObject) -> None:
        if self._heartbeat.due(status):
            self._record("info", status_sentence(status), {k: status.get(k) for k in _FIGURES})

    def note(self, level: str, text: str) -> None:
        self._record(level, text, {})

    def event(self, kind: str, event: JsonObject) -> None:
        final = event.get("final")
        if isinstance(final, Mapping):
            event = {**event, "final": {key: final[key] for key in _END if key in final}}
        self._record("info", kind, {"event": event})

    def end(self, outcome: JsonObject) -> None:
        self._record("info", "ended", {k: outcome.get(k) for k in ("exit_code", "reason")})

    def _record(self, level: str, text: str, more: Mapping[str, Any]) -> None:
        self._write(json_record(level, self._run, text, more))


class RichDisplay(_StreamDisplay):
    """A progress bar. Only on a terminal: rich elsewhere wraps records at 80 columns."""

    _progress: Progress | None = None
    _task: TaskID

    def start(self, info: JsonObject) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().start(info)
        console = Console(file=self._stream, no_color=not self._color, highlight=False, markup=False)
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, refresh_per_second=4)
        self._task = self._progress.add_task("starting", total=info.get("planned") or None)
        self._progress.start()

    def update(self, status: JsonObject) -> None:
        if self._progress is None:
            return
        planned = status.get("planned") or 0
        over = planned - (status.get("not_run") or 0)
        self._progress.update(self._task, completed=over, total=planned or None, description=_live_figures(status))

    def _write(self, text: str) -> None:
        if self._progress is None:
            super()._write(text)
        else:
            from rich.text import Text

            self._progress.console.print(Text.from_ansi(text) if self._color else Text(text), soft_wrap=True)

    def end(self, outcome: JsonObject) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        super().end(outcome)


def _live_figures(status: Mapping[str, Any]) -> str:
    reward = status.get("reward_mean")
    eta = status.get("eta_s")
    figures = [f"{status.get('failed', 0)} failed", f"{status.get('in_flight', 0)} in flight"]
    figures.append(f"{status.get('rate_per_min') or 0:.0f}/min")
    if reward is not None:
        figures.append(f"reward {reward:.3f}")
    if eta is not None:
        figures.append(f"{duration(eta)} left")
    return " · ".join(figures)


def event_lines(kind: str, event: Mapping[str, Any]) -> list[str]:
    """One moment of an episode for people: a heading, then its texts, made visible and indented."""
    step = f" {event['step_index']}" if "step_index" in event else ""
    lines = [f"── {one_line(kind)}{step}"]
    for name in _SHOWN.get(kind, tuple(event)):
        value = event.get(name)
        if name == "step_index" or value in (None, "", [], {}):
            continue
        if name == "final" and isinstance(value, Mapping):
            value = {key: value[key] for key in _END if key in value}
        if name == "tool_calls" and isinstance(value, list):
            value = [{key: call.get(key) for key in ("name", "arguments")} for call in value]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        rows = visible(text).splitlines() or [""]
        lines.append(f"   {one_line(name)}: {rows[0]}" if len(rows) == 1 else f"   {one_line(name)}:")
        if len(rows) > 1:
            lines.extend(f"      {row}" for row in rows)
    return lines


def json_record(level: str, run: str | None, text: str, more: Mapping[str, Any]) -> str:
    """One log record as one JSON line; what ``more`` names never hides the four fixed keys."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({**more, "ts": stamp, "level": level, "run": run, "msg": text}, default=str)


class _LogLines(logging.Formatter):
    """Log records through the same forms as notes; a traceback stays in its record's line."""

    def __init__(self, mode: DisplayMode) -> None:
        super().__init__()
        self._mode = mode

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        level = record.levelname.lower()
        if self._mode is DisplayMode.JSON:
            return json_record(level, None, text, {"logger": record.name})
        return f"{datetime.fromtimestamp(record.created, UTC):%H:%M:%S} {level} {one_line(f'{record.name}: {text}')}"


def configure_logging(mode: DisplayMode, stream: IO[str] | None = None) -> None:
    """Send rayeval's and the actors' log records to stderr, one line each; warnings and up (errors only under ``none``)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LogLines(mode))
    for name in ("rayeval", "actors"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.ERROR if mode is DisplayMode.NONE else logging.WARNING)
        logger.propagate = False
