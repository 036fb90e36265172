"""One screen for one status: is the run going on, how fast, what is stuck, when is it done; then where the episodes are and what failed.

Pure: from a status object to lines of styled text. Invariants:

* The first three lines answer the question; what follows is cut first.
* No line is wider than ``width`` columns of a terminal, and there are no more than ``height`` of them.
* Any object renders: what is absent, of another version or no figure at all is left out. Texts of servers and files lose every character
  that could drive a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rayeval.cli.lines import Line, Span, fit, wrapped
from rayeval.cli.status_tables import STAGE_WORDS, last_sections, live_sections, placed
from rayeval.cli.stuck import troubles
from rayeval.cli.words import counts, duration, number, objects, short_url, shown
from rayeval.stages import STAGES

FREE_WIDTH = 120
"""Columns where nobody says how many there are."""
OVER = ("ended", "interrupted", "not begun")
"""States in which nobody works on the run."""
_MOST_TROUBLES = 3


@dataclass(frozen=True, slots=True)
class Sight:
    """A status as its reader found it."""

    status: Mapping[str, Any]
    state: str
    """What is true of the run: the status of a driver that was killed goes on saying ``running``."""
    age_s: float | None = None
    """Since the status was written; None: not known."""
    stale: bool = False
    """Whether it is older than a living driver lets it become."""
    advice: str | None = None
    """What is wrong with whoever should write it, and what to do."""
    name: str = ""


def page(sight: Sight, *, width: int, height: int | None, now: datetime) -> list[Line]:
    """The screen. ``height`` None: all of it. ``now``: aware, in the reader's time zone."""
    top = _top(sight, width, now)
    sections = (last_sections if sight.state in OVER else live_sections)(sight.status, now)
    lines = top + placed(sections, width, None if height is None else height - len(top))
    return [fit(line, width) for line in lines[:height]]


# ---- the first lines --------------------------------------------------------------------------------------------------------------------


def _top(sight: Sight, width: int, now: datetime) -> list[Line]:
    status, live = sight.status, sight.state not in OVER
    lines: list[Line] = [_state_line(sight)]
    if sight.advice:
        lines += [(Span(text, "bold red" if live else "bold"),) for text in wrapped(shown(sight.advice, 1000), width)]
    if not status:
        return lines
    lines.append(_progress_line(status, live and not sight.stale, now))
    if live and not sight.stale:  # of a driver that tells nothing the advice says what is stuck
        lines += _stuck_lines(sight)
    if live:
        lines.append(_stages_line(status))
    return lines + [line for line in (_figures_line(status), _broker_line(status) if live else ()) if line]


def _state_line(sight: Sight) -> Line:
    status, state = sight.status, sight.state
    style = {"running": "bold green", "paused": "bold yellow", "draining": "bold yellow", "interrupted": "bold red"}.get(state, "bold")
    name = Span(f"{shown(status.get('run') or sight.name, 60)}: ", "bold")
    reason, code = shown(status.get("reason"), 500), number(status.get("exit_code"))
    if state == "ended":
        style = "bold green" if not code else "bold red"
        words = "ended" + ("" if code is None else f" with exit code {code:.0f}") + (f" ({reason})" if reason else "")
        return (name, Span(words, style))
    if state in ("interrupted", "not begun"):
        since = "" if sight.age_s is None or not status else f" {duration(sight.age_s)} ago"
        return (name, Span(state + since, style))
    elapsed = number(status.get("elapsed_s"))
    words = shown(state, 40) + (f" for {duration(elapsed)}" if elapsed is not None and state == "running" else "")
    spans = [name, Span(words, style)]
    if reason and state == "draining":
        spans.append(Span(f" ({reason})"))
    if sight.stale:
        spans.append(Span(f", but its status is {duration(sight.age_s or 0.0)} old", "bold red"))
    elif sight.age_s is not None and status:
        spans.append(Span(f", status {duration(sight.age_s)} old", "dim"))
    return tuple(spans)


def _progress_line(status: Mapping[str, Any], live: bool, now: datetime) -> Line:
    planned, done, failed = (number(status.get(key)) or 0.0 for key in ("planned", "done", "failed"))
    share = f" ({math.floor(100.0 * done / planned)} %)" if planned > 0 else ""
    spans = [Span(f"{done:.0f} of {planned:.0f} done{share}", "bold"), Span(f", {failed:.0f} failed", "red" if failed else "")]
    reused, cancelled = number(status.get("reused")) or 0.0, number(status.get("cancelled")) or 0.0
    if not live:
        more = number(status.get("not_run")) or 0.0
        return (*spans, Span(f", {more:.0f} not run" if more else ""))
    rate, left = number(status.get("rate_per_min")), number(status.get("eta_s"))
    if left is not None:
        spans.append(Span(f", about {duration(left)} left{_clock(now, left)}", "bold"))
    else:
        spans.append(Span(", time left not known yet" if status.get("state") != "closing" else ""))
    if rate is not None:
        spans.append(Span(f", {rate:.1f} a minute"))
    spans += [Span(f", {n:.0f} {word}", "dim") for n, word in ((reused, "reused"), (cancelled, "cancelled")) if n]
    return tuple(spans)


def _clock(now: datetime, left_s: float) -> str:
    """The time of day at which it is done, with the weekday when that is not within 20 hours."""
    if not 0 <= left_s < 30 * 86_400:
        return ""
    done = now + timedelta(seconds=left_s)
    return f" ({done:%H:%M})" if left_s < 20 * 3600 else f" ({done:%a %H:%M})"


def _stuck_lines(sight: Sight) -> list[Line]:
    found = troubles(sight.status)
    if len(found) > _MOST_TROUBLES:
        found = [*found[: _MOST_TROUBLES - 1], f"and {len(found) - _MOST_TROUBLES + 1} more; the tables have them"]
    if found:
        return [(Span("       " if i else "stuck: ", "bold yellow"), Span(text, "yellow")) for i, text in enumerate(found)]
    oldest = next(iter(objects(sight.status.get("slowest"))), None)
    if oldest is None:
        return [(Span("nothing stuck"),)]
    stage = STAGE_WORDS.get(shown(oldest.get("stage"), 20), "?")
    age, inside = number(oldest.get("age_s")) or 0.0, number(oldest.get("stage_s")) or 0.0
    return [(Span(f"nothing stuck; the oldest episode is {duration(age)} old, {stage} for {duration(inside)}"),)]


def _stages_line(status: Mapping[str, Any]) -> Line:
    stages = counts(status.get("stages"))
    flying, waiting = number(status.get("in_flight")) or 0.0, number(status.get("queued")) or 0.0
    words = {"model": "in model calls", "environment": "in environment steps"}
    parts = [f"{stages[name]} {words.get(name, STAGE_WORDS[name])}" for name in reversed(STAGES) if name != "queued" and stages.get(name)]
    tail = f"; {waiting:.0f} wait" if waiting else ""
    return (Span(f"{flying:.0f} in flight", "bold"), Span((": " + ", ".join(parts) if parts else "") + tail))


def _figures_line(status: Mapping[str, Any]) -> Line:
    from rayeval.costs import money

    parts: list[str] = []
    reward, scored = number(status.get("reward_mean")), number(status.get("reward_n")) or 0.0
    if reward is not None:
        parts.append(f"reward {reward:.3f} over {scored:.0f}")
    steps, tokens = number(status.get("steps")), number(status.get("tokens"))
    if steps:
        parts.append(f"{steps:.0f} steps")
    if tokens:
        parts.append(f"{_large(tokens)} tokens")
    cost = status.get("cost")
    if isinstance(cost, Mapping) and (amount := number(cost.get("amount"))) is not None:
        currency, expected = shown(cost.get("currency"), 10), number(cost.get("expected"))
        parts.append(f"{money(amount, currency)} spent" + (f", about {money(expected, currency)} at the end" if expected else ""))
    for word in ("lost", "late"):
        if n := number(status.get(word)):
            parts.append(f"{n:.0f} {word}")
    actors = objects(status.get("actors"))
    if actors:
        odd = [f"{shown(a.get('id'), 40)} {shown(a.get('state'), 20)}" for a in actors if a.get("state") != "working"]
        parts.append(f"{len(actors)} actor{'s' * (len(actors) > 1)}" + (f" ({', '.join(odd[:3])})" if odd else ""))
    return (Span(", ".join(parts)),) if parts else ()


def _broker_line(status: Mapping[str, Any]) -> Line:
    broker = status.get("broker")
    if not isinstance(broker, Mapping):
        return ()
    others = counts(broker.get("others"))
    quotas = [f"{quota} at {short_url(name)} (others hold {others.get(name, 0)})" for name, quota in _quotas(broker.get("quota"))]
    return (Span("slot broker: " + (", ".join(quotas) or "no quota yet")),)


def _quotas(value: object) -> list[tuple[str, int]]:
    if not isinstance(value, Mapping):
        return []
    found = [(str(name), number(n)) for name, n in value.items()]
    return [(name, int(n)) for name, n in found if n is not None]


def _large(n: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if n >= size:
            return f"{n / (1e3 if unit == 'k' else size):.1f} {unit}"
    return f"{n:.0f}"
