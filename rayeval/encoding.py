"""JSON bytes from whatever a model, a server or a user's class put into an object: one bad string must not cost an
episode.

``encode`` is ``orjson.dumps`` with a second way out. What JSON in UTF-8 cannot hold is replaced, never refused:

* a lone surrogate in a string becomes U+FFFD (a pair is joined)
* an integer beyond 64 bits becomes its decimal digits as a string
* NaN and the infinities become null (orjson's own rule)
* nesting beyond 200 levels, and an object that is no JSON type, become text
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

_DEEPEST = 200
_TEXT_LIMIT = 2000


def well_formed(text: str) -> str:
    """``text`` with lone surrogates replaced by U+FFFD; the same object when there are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8. Never raises for what was parsed from JSON, nor for foreign objects."""
    # orjson (3.13 at least) hands out its work buffer, 4 to 64 KB however short the text: a thousand waiting episodes hold 30 each
    return bytes(memoryview(_encoded(value, 0)))


def encode_line(value: Any) -> bytes:
    """``encode`` and a line's end, for what is written soon: the text is not copied out of the larger buffer it was made in."""
    return _encoded(value, orjson.OPT_APPEND_NEWLINE)


def _encoded(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, default=_as_text, option=option)
    except TypeError:  # orjson.JSONEncodeError
        return orjson.dumps(_presentable(value, 0), option=option)


def _as_text(value: Any) -> str:
    return well_formed(str(value))[:_TEXT_LIMIT]


def _presentable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return well_formed(str(value))
    if value is None or isinstance(value, bool | float | orjson.Fragment):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else _digits(value)
    if depth >= _DEEPEST:
        return f"(nested deeper than {_DEEPEST} levels)"
    if isinstance(value, Mapping):
        return {well_formed(str(k)): _presentable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_presentable(v, depth + 1) for v in value]
    return _as_text(value)


def _digits(value: int) -> str:
    # str() refuses more than 4300 digits by default; hexadecimal has no such limit
    return str(value) if value.bit_length() < 4096 else hex(value)


def json_kind(value: Any) -> str:
    """What a parsed JSON value is, in words: ``null``, ``a boolean``, ``a number``, ``a string``, ``a list``, ``an object``."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A regular file of at most ``max_bytes``. Raises OSError, also for a device or a pipe, which would be read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
    return data
