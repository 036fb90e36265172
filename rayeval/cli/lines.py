"""Lines of styled text, and their width on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rayeval.cli.output import width_of

__all__ = ["Line", "Span", "cut", "fit", "plain", "width_of", "wrapped"]


class Span(NamedTuple):
    """Text of one style."""

    text: str
    style: str = ""
    """A style of rich: ``bold``, ``red`` ..."""


Line = tuple[Span, ...]


def plain(lines: Iterable[Line]) -> str:
    """Lines without styles."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def fit(line: Line, width: int) -> Line:
    """The line, cut at ``width`` columns with an ellipsis."""
    if sum(width_of(span.text) for span in line) <= width:
        return line
    out: list[Span] = []
    left = width
    for span in line:
        w = width_of(span.text)
        if w < left:
            out.append(span)
            left -= w
            continue
        out.append(Span(cut(span.text + "……", left), span.style))  # more follows, also where this span alone would fit
        break
    return tuple(out)


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` columns, broken at spaces; a word that is too long for a line is left to ``fit``."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and width_of(lines[-1]) + 1 + width_of(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def cut(text: str, width: int) -> str:
    """At most ``width`` columns; what was cut ends in an ellipsis."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, used = [], 0
    for character in text:
        used += width_of(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"
