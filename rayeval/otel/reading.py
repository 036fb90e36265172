"""Values out of a trace that may hold anything in their place: what is odd counts as absent, and nothing here raises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from rayeval.latencies import CALL_EDGES_S

NAME_CHARS = 256
"""What a name is cut to."""
_MIDDLES_S = [0.75 * edge for edge in CALL_EDGES_S] + [1.5 * CALL_EDGES_S[-1]]
TEXT_CHARS = 4_000
"""What of a text is looked at."""
LATEST_NS = 1 << 62
"""The year 2116. What lies beyond is no clock."""


def times_of(trace: Mapping[str, Any], now_ns: int) -> tuple[int, int, bool]:
    """-> (start, duration, whether the trace told both), in nanoseconds."""
    start, end = moment_of(trace.get("started_at")), moment_of(trace.get("ended_at"))
    total = nanoseconds_of(trace.get("duration_ms"))
    timed = start is not None and total is not None
    if total is None:
        total = max(0, end - start) if start is not None and end is not None else 0
    if start is None:
        start = max(0, (end if end is not None else now_ns) - total)
    return start, min(total, LATEST_NS - min(start, LATEST_NS)), timed


def moment_of(value: Any) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    at = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
    return at if 0 <= at <= LATEST_NS else None


def nanoseconds_of(milliseconds: Any) -> int | None:
    value = number_of(milliseconds)
    return int(value * 1e6) if value is not None and 0 <= value < LATEST_NS / 1e6 else None


def spread_ns(packed: Any) -> list[int]:
    """``latencies.Packed`` -> nanoseconds of each call: the sum as measured, shared out by the middles of the calls' buckets, so each is
    right to about a factor of two. Empty for anything else."""
    try:
        total, buckets = packed
        weights = [_MIDDLES_S[bucket] for bucket in buckets]
        scale = float(total) / sum(weights)
        return [int(weight * scale * 1e9) for weight in weights] if 0 <= scale * sum(weights) < LATEST_NS / 1e9 else []
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        return []


def object_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def objects_of(value: Any) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list | tuple) else []


def text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def word_of(value: Any) -> str | None:
    """A name or a code: text of bounded length."""
    return value[:TEXT_CHARS] if isinstance(value, str) and value else None


def words_of(value: Any) -> tuple[str, ...] | None:
    found = tuple(v[:TEXT_CHARS] for v in ([value] if isinstance(value, str) else value if isinstance(value, list) else []) if text_of(v))
    return found[:16] or None


def whole_of(value: Any) -> int | None:
    """A whole number that OTLP can carry."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63 else None


def number_of(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def flag_of(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def reasoning_tokens(usage: Mapping[str, Any]) -> int | None:
    direct = whole_of(usage.get("reasoning_tokens"))
    return direct if direct is not None else whole_of(object_of(usage.get("completion_tokens_details")).get("reasoning_tokens"))


def server_of(url: Any) -> tuple[str | None, int | None]:
    if not isinstance(url, str):
        return None, None
    try:
        parts = urlsplit(url)
        return word_of(parts.hostname), parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None, None
