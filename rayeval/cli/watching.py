"""``status``: the page once, or again and again until the run ends.

Invariants: a watch ends when nobody works on the run any more, and with the run's exit code; whatever ends it, the terminal is given back
as it was; the sources (``rayeval.cli.sources``) pace the reading, each read under a deadline.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from rayeval.cli.display import status_sentence
from rayeval.cli.lines import Line, plain
from rayeval.cli.output import use_color, write_json_line, write_out
from rayeval.cli.signals import ended_by_sigterm
from rayeval.cli.sources import Source
from rayeval.cli.status_page import FREE_WIDTH, OVER, Sight, page
from rayeval.cli.stuck import troubles
from rayeval.cli.words import duration, number, objects, shown
from rayeval.schemas import STATUS_SCHEMA, ExitCode, JsonObject

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

LINE_EVERY_S = 30.0
PAGE_EVERY_S = 1.0
_READ_EVERY_S = 1.0


def status_object(sight: Sight) -> JsonObject:
    """What ``--json`` prints: the status, with what is true of the run in place of what its driver wrote last."""
    told: JsonObject = {**sight.status, "schema": STATUS_SCHEMA, "state": sight.state, "stale": sight.stale}
    told["status_age_s"] = None if sight.age_s is None else round(sight.age_s, 1)
    if not sight.status:
        told["run"] = sight.name
    if sight.state == "interrupted":
        told |= {"in_flight": 0, "eta_s": None}
    return told


def print_page(sight: Sight) -> None:
    """The page, all of it, on stdout."""
    terminal = sys.stdout.isatty()
    width = get_terminal_size((FREE_WIDTH, 24)).columns
    write_out(plain(page(sight, width=max(10, width) if terminal else width, height=None, now=datetime.now().astimezone())))


def watch(source: Source, every_s: float | None, as_json: bool) -> int:
    """Follow a run to its end. -> the run's exit code; STOPPED when its driver is gone, REFUSED when it never began."""
    if as_json:
        last = _watch_json(source, every_s or PAGE_EVERY_S)
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        last = _watch_page(source, every_s or PAGE_EVERY_S)
        print_page(last)
    else:
        last = _watch_lines(source, every_s or LINE_EVERY_S)
    if last.state == "ended":
        return int(number(last.status.get("exit_code")) or 0)
    return ExitCode.REFUSED if last.state == "not begun" else ExitCode.STOPPED


def _sights(source: Source, every_s: float) -> Iterator[Sight]:
    """One after the other, the last one as soon as it is seen."""
    while True:
        sight = source.read(every_s)
        yield sight
        if sight.state in OVER:
            return


def _watch_json(source: Source, every_s: float) -> Sight:
    """One object a line, for each status that is another than the one before."""
    told: tuple[Any, ...] | None = None
    due = 0.0
    for sight in _sights(source, every_s):
        now, what = time.monotonic(), (sight.status.get("updated_at"), sight.state, sight.stale)
        if what != told and (now >= due or sight.state in OVER or sight.stale):
            told, due = what, now + every_s
            write_json_line(status_object(sight))
    return sight


def _watch_lines(source: Source, every_s: float) -> Sight:
    """For logs: a line each ``every_s``, new warnings as they come, and what changes at once."""
    seen: list[Any] = []
    told: tuple[str, bool] | None = None
    due = 0.0
    for sight in _sights(source, min(every_s, _READ_EVERY_S)):
        for note in objects(sight.status.get("notes")):
            if (what := (note.get("at"), note.get("text"))) not in seen:
                seen = [*seen[-32:], what]
                _line(f"{shown(note.get('level'), 20)}: {shown(note.get('text'), 600)}")
        now = time.monotonic()
        if now >= due or told != (sight.state, sight.stale):
            due, told = now + every_s, (sight.state, sight.stale)
            for text in _sentences(sight):
                _line(text)
    return sight


def _sentences(sight: Sight) -> list[str]:
    status, state = sight.status, sight.state
    name = shown(status.get("run") or sight.name, 80)
    if state in OVER:
        code, reason = number(status.get("exit_code")), shown(status.get("reason"), 500)
        words = (
            state + (f" with exit code {code:.0f}" if state == "ended" and code is not None else "") + (f" ({reason})" if reason else "")
        )
    else:
        words = state + (f", but its status is {duration(sight.age_s or 0.0)} old" if sight.stale else "")
    told = [f"{name}: {words}"]
    if status:
        known = {key: number(status.get(key)) for key in ("done", "planned", "failed", "in_flight", "reward_n")}
        clean = {key: int(n or 0) for key, n in known.items()} | {
            key: number(status.get(key)) for key in ("rate_per_min", "eta_s", "reward_mean")
        }
        sentence = status_sentence(clean)
        told[0] += "; " + (sentence if state not in OVER else sentence.rpartition(", ")[0])
    if sight.advice:
        told.append(sight.advice)
    stuck = troubles(status) if state not in OVER else []
    return told + ([f"stuck: {'; '.join(stuck)}"] if stuck else [])


def _line(text: str) -> None:
    write_out(f"{datetime.now():%H:%M:%S} {text}", following=True)


class _Screen:
    """The newest sight, drawn for whatever size the terminal has at that moment."""

    def __init__(self) -> None:
        self._sight: tuple[Sight, float] | None = None

    def show(self, sight: Sight) -> None:
        self._sight = (sight, time.monotonic())

    def lines(self, width: int, height: int) -> list[Line]:
        if self._sight is None:
            return []
        sight, at = self._sight
        if sight.age_s is not None:
            sight = replace(sight, age_s=sight.age_s + time.monotonic() - at)
        return page(sight, width=width, height=height, now=datetime.now().astimezone())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.style import Style

        width, height = console.size
        for i, line in enumerate(self.lines(width, height)):
            if i:
                yield Segment.line()
            for span in line:
                yield Segment(span.text, Style.parse(span.style) if span.style else None)


def _watch_page(source: Source, every_s: float) -> Sight:
    """The page on the terminal's other screen, drawn anew twice a second: its clock goes on, and it follows the terminal's size."""
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not use_color(os.environ, True), highlight=False, markup=False, emoji=False)
    screen = _Screen()
    with (
        ended_by_sigterm(),
        Live(screen, console=console, screen=True, refresh_per_second=2, redirect_stdout=False, redirect_stderr=False),
    ):
        for sight in _sights(source, every_s):
            screen.show(sight)
    return sight
