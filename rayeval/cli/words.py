"""Reading figures and texts out of objects that anybody may have written, and saying them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rayeval.cli.output import one_line

_MOST = 1e15


def duration(seconds: float) -> str:
    """42 s, 7 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def number(value: object) -> float | None:
    """A finite number as a float, held to ±1e15; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(max(-_MOST, min(_MOST, value)))


def shown(value: object, most: int) -> str:
    """A text in one line of at most ``most`` characters, all of them printable; nothing for what is no text."""
    if not isinstance(value, str):
        return ""
    text = one_line(value[:most])
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    """Spaces of other widths as one space, what has no width or no meaning as its number."""
    return " " if character.isspace() else f"\\u{ord(character):04x}"


def objects(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list; none of anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def counts(value: object) -> dict[str, int]:
    """The whole numbers above 0 of an object, by name."""
    if not isinstance(value, Mapping):
        return {}
    found = {str(name): number(n) for name, n in value.items()}
    return {name: int(n) for name, n in found.items() if n is not None and n >= 1}


def short_url(value: object) -> str:
    """A URL in one line, at most 200 characters of it."""
    return shown(value, 200)
