"""The tables of the status page, and how many rows of each there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rayeval.cli.lines import Line, Span, cut, width_of
from rayeval.cli.words import counts, duration, number, objects, short_url, shown

STAGE_WORDS = {
    "queued": "waiting in its actor",
    "pacing": "waiting to reset",
    "resetting": "resetting",
    "model": "model call",
    "environment": "environment step",
    "releasing": "releasing",
}
_LEAST_ROWS = {"slowest": 3, "model": 1, "environment": 1, "failures": 1, "notes": 2}
"""Sections in the order in which they get room, with the rows they get first."""
_MOST_ROWS = 40


class Section(NamedTuple):
    """A table with the most useful rows first."""

    name: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    styles: list[str]
    """Of each row."""
    total: int


def live_sections(status: Mapping[str, Any], now: datetime) -> list[Section]:
    """Of a run that goes on."""
    return [s for s in (_failures(status), _models(status), _servers(status), _slowest(status), _notes(status, now)) if s.rows]


def last_sections(status: Mapping[str, Any], now: datetime) -> list[Section]:
    """Of a run that nobody works on."""
    return [s for s in (_failures(status), _notes(status, now)) if s.rows]


def _failures(status: Mapping[str, Any]) -> Section:
    final, again, samples = counts(status.get("failures")), counts(status.get("failures_retried")), status.get("failure_samples")
    samples = samples if isinstance(samples, Mapping) else {}
    kinds = sorted({*final, *again}, key=lambda kind: (-final.get(kind, 0), -again.get(kind, 0), kind))
    rows = [(shown(k, 40), str(final.get(k, 0)), str(again.get(k, 0)), shown(samples.get(k), 400)) for k in kinds]
    return Section(
        "failures", ("failures", "final", "retried", "the first one"), rows, ["red" if final.get(k) else "" for k in kinds], len(rows)
    )


def _models(status: Mapping[str, Any]) -> Section:
    rows, styles = [], []
    for row in objects(status.get("model")):
        out, pause, limit = (number(row.get(key)) for key in ("out_s", "pause_s", "limit"))
        state, style = "answers", ""
        if out is not None:
            state, style = f"no answer for {duration(out)}", "red"
        elif pause:
            state, style = f"pauses {duration(pause)}", "yellow"
        elif limit is not None:
            state = f"window {limit:.0f}, {number(row.get('calls')) or 0:.0f} calls, {number(row.get('calls_waiting')) or 0:.0f} wait"
        retries = ", ".join(f"{shown(cause, 30)} {n}" for cause, n in sorted(counts(row.get("retries")).items(), key=lambda kv: -kv[1]))
        rows.append((f"{number(row.get('episodes')) or 0:.0f}", state, short_url(row.get("endpoint")), retries or "none"))
        styles.append(style)
    return Section("model", ("episodes", "state", "model endpoint", "retries"), rows, styles, len(rows))


def _servers(status: Mapping[str, Any]) -> Section:
    rows, styles = [], []
    for row in objects(status.get("environment")):
        out = number(row.get("out_s"))
        state, style = "answers", ""
        if row.get("refused") is True:
            state, style = "of another version", "red"
        elif out is not None:
            state, style = f"no answer for {duration(out)}", "red"
        figures = [number(row.get(key)) for key in ("held", "resetting", "admission", "slots")]
        held, resetting, admission, slots = ("?" if n is None else f"{n:.0f}" for n in figures)
        rows.append((held, resetting, f"{admission} of {slots}", state, short_url(row.get("server"))))
        styles.append(style)
    return Section("environment", ("held", "resetting", "open slots", "state", "environment server"), rows, styles, len(rows))


def _slowest(status: Mapping[str, Any]) -> Section:
    rows, styles = [], []
    for row in objects(status.get("slowest")):
        age, inside, step = (number(row.get(key)) or 0.0 for key in ("age_s", "stage_s", "step"))
        stage = STAGE_WORDS.get(shown(row.get("stage"), 20), shown(row.get("stage"), 20))
        rows.append(
            (
                duration(age),
                f"{step:.0f}" if step else "",
                duration(inside),
                stage,
                shown(row.get("episode_id"), 80),
                shown(row.get("actor"), 40),
            )
        )
        styles.append("yellow" if inside >= 60 else "")
    return Section("slowest", ("age", "step", "for", "doing", "slowest episodes", "actor"), rows, styles, len(rows))


def _notes(status: Mapping[str, Any], now: datetime) -> Section:
    rows, styles = [], []
    for row in reversed(objects(status.get("notes"))):
        rows.append((_time(row.get("at"), now), shown(row.get("text"), 600)))
        styles.append("red" if row.get("level") == "error" else "")
    return Section("notes", ("last", "warnings"), rows, styles, len(rows))


def _time(value: object, now: datetime) -> str:
    try:
        at = datetime.fromisoformat(str(value)).astimezone(now.tzinfo)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{at:%H:%M:%S}"


def placed(sections: Sequence[Section], width: int, height: int | None) -> list[Line]:
    """As many rows of each section as there is room for, the most useful sections first."""
    rows = _dealt({s.name: min(len(s.rows), _MOST_ROWS) for s in sections}, height)
    airy = height is None or height >= sum(n + 2 for n in rows.values() if n)
    lines: list[Line] = []
    for section in sections:
        if not (n := rows[section.name]):
            continue
        if airy:
            lines.append(())
        lines += _table(section, n, width)
    return lines


def _dealt(wanted: dict[str, int], height: int | None) -> dict[str, int]:
    """Rows for each section; a section that gets any takes one line more for its head."""
    if height is None:
        return wanted
    given, left = dict.fromkeys(wanted, 0), height
    for name in sorted(wanted, key=list(_LEAST_ROWS).index):
        least = min(wanted[name], _LEAST_ROWS[name])
        if left >= 2:
            given[name] = min(least, left - 1)
            left -= given[name] + 1
    while left > 0 and (short := [n for n in _LEAST_ROWS if 0 < given.get(n, 0) < wanted.get(n, 0)]):
        for name in short[:left]:
            given[name] += 1
            left -= 1
    return given


def _table(section: Section, n: int, width: int) -> list[Line]:
    """Head and ``n`` rows; the last columns are cut when the line is too long, by ``fit``."""
    rows = section.rows[:n]
    head = list(section.head)
    if n < section.total:
        head[-1] = f"{head[-1]} ({n} of {section.total})".strip()
    columns = list(zip(head, *rows, strict=True))
    widths = [max(width_of(cell) for cell in column) for column in columns]
    widest = max(12, width // 2)
    widths = [min(w, widest) for w in widths[:-1]] + [width]
    lines: list[Line] = [(Span(_row(head, widths), "dim"),)]
    lines += [(Span(_row(row, widths), style),) for row, style in zip(rows, section.styles, strict=False)]
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for cell, w in zip(cells, widths, strict=True):
        short = cut(cell, w)
        padded.append(short + " " * (w - width_of(short)))
    return "  ".join(padded).rstrip()
