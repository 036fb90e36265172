"""What reaches the streams: results on stdout, everything else on stderr, and nothing that could drive a terminal.

A reader of stdout that goes away (``| head``) changes no exit code: what is written after that goes nowhere, and the verb comes to its own
end. Only what goes on for as long as somebody reads (``following=True``) is ended by it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from rayeval.schemas import JsonObject

ERROR_SCHEMA = "rayeval-error-v1"

_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters save tab and newline, marks that turn the reading direction, line separators and lone surrogates."""


class PipeClosedError(Exception):
    """The reader of stdout went away (``| head``) from what goes on for as long as somebody reads."""


def visible(text: str) -> str:
    """Text of a server or a file, made harmless: escape sequences are shown as ``\\x1b``, not obeyed. Tabs and newlines stay."""
    return _HARMFUL.sub(lambda m: _escaped(ord(m.group())), text)


def one_line(text: str) -> str:
    """``visible`` in one line: newlines and tabs shown too."""
    return visible(text).replace("\t", "\\t").replace("\n", "\\n")


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def write_out(text: str, *, following: bool = False) -> None:
    """Text on stdout, made visible. Raises PipeClosedError, only if ``following``."""
    _write(sys.stdout, visible(text) + "\n", following)


def write_json(value: Mapping[str, Any]) -> None:
    """The one JSON object of ``--json`` on stdout; control characters are escaped by JSON itself."""
    text = json.dumps(value, ensure_ascii=not _speaks_unicode(sys.stdout), indent=2 if sys.stdout.isatty() else None)
    # JSON escapes C0 only; the rest of what ``visible`` guards against is escaped the JSON way, so that the value stays the same.
    _write(sys.stdout, _HARMFUL.sub(_json_escaped, text) + "\n")


def write_json_line(value: Mapping[str, Any]) -> None:
    """One of several JSON objects on stdout, each a line, for as long as somebody reads. Raises PipeClosedError."""
    text = json.dumps(value, ensure_ascii=not _speaks_unicode(sys.stdout))
    _write(sys.stdout, _HARMFUL.sub(_json_escaped, text) + "\n", True)


def _json_escaped(m: re.Match[str]) -> str:
    return m.group() if m.group() < " " else f"\\u{ord(m.group()):04x}"


def write_error(text: str) -> None:
    """Text on stderr, made visible; a closed stderr is not an error."""
    try:
        sys.stderr.write(visible(text) + "\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        pass


def _write(stream: IO[str], text: str, following: bool = False) -> None:
    try:
        stream.write(text if _speaks_unicode(stream) else text.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except BrokenPipeError as error:
        stdout_to_nowhere()
        if following:
            raise PipeClosedError from error


def stdout_to_nowhere() -> None:
    """Nobody reads stdout any more: what is left in it, and whatever follows, ends in nothing and raises nothing."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _speaks_unicode(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")


def error_object(code: int, field: str | None, value: Any, hint: str) -> JsonObject:
    """What ``--json`` prints in place of a result. ``value`` is given as text unless JSON holds it."""
    if not isinstance(value, (str, int, float, bool, type(None))):
        value = str(value)
    return {"schema": ERROR_SCHEMA, "error": {"code": int(code), "field": field, "value": value, "hint": hint}}


def use_color(environ: Mapping[str, str], is_terminal: bool) -> bool:
    """NO_COLOR wins over FORCE_COLOR, which wins over TERM=dumb, which wins over being a terminal."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR") not in (None, "", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def link(path: Path) -> str:
    """A path for stdout. On a terminal it is wrapped in OSC 8 so that a click opens it; call it after ``visible`` ran."""
    shown = one_line(str(path))
    if not use_color(os.environ, sys.stdout.isatty()) or not sys.stdout.isatty():
        return shown
    return f"\x1b]8;;file://{quote(str(path.resolve()))}\x1b\\{shown}\x1b]8;;\x1b\\"


def write_link(label: str, path: Path) -> None:
    """``label path`` on stdout, the path as a link."""
    _write(sys.stdout, f"{visible(label)}{link(path)}\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded with spaces; wide (CJK) characters count double."""
    body = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(width_of(cell) for cell in column) for column in zip(head, *body, strict=True)]
    lines = ("  ".join(cell + " " * (w - width_of(cell)) for cell, w in zip(row, widths, strict=True)) for row in (head, *body))
    return "\n".join(line.rstrip() for line in lines)


def width_of(text: str) -> int:
    """Columns that a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
