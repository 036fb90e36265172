"""YAML read safely: plain values with the line of each key.

The scalars are those of YAML 1.2's core schema, so ``no`` is a text, ``1e-3`` a number and ``12:30`` no number in
base 60. Refused with file and line: duplicate keys, tags, merge keys, a value that contains itself, keys that are not
text, NaN and infinities.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rayeval.exceptions import ConfigurationError

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
MAX_DEPTH = 50

_CORE = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "merge": (r"<<", "<"),
}
"""Pattern and first characters of each plain scalar of the core schema; the first match wins."""
_TAG = "tag:yaml.org,2002:"
_TAGS = {_TAG + name for name in (*_CORE, "str", "map", "seq")}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema's scalars."""


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), ["" if c == "\0" else c for c in _first])


@dataclass
class Document:
    """A parsed file."""

    value: Any
    lines: dict[str, int] = field(default_factory=dict)
    """Line, counted from 1, of each dotted key."""


def read_text(path: Path) -> str:
    """The file's text without a byte order mark. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigurationError(str(path), None, "no such file; give the path of a configuration file") from None
    except IsADirectoryError:
        raise ConfigurationError(str(path), None, "is a directory; give the path of a configuration file") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(str(path), None, f"cannot be read ({error}); give a readable file") from None
    if len(data) > MAX_BYTES:
        raise ConfigurationError(str(path), None, f"is larger than {MAX_BYTES} bytes; give a configuration file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}:{data[: error.start].count(10) + 1}", None, "not UTF-8; save the file as UTF-8") from None


def parse(text: str, source: str, key: str = "") -> Document:
    """``source`` names the file in errors. With ``key`` the text is that override's value, and errors name the key.

    Raises ConfigurationError, one line with the place.
    """
    place = f"{source} {key}" if key else source
    try:
        node = _Loader(text.removeprefix("\ufeff")).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or error.context or "is not YAML").split())
        hint = "indent with spaces, not tabs" if "'\\t'" in problem else "give valid YAML"
        if "single document" in (error.context or ""):
            hint = "give one document a file"
        raise _error(place, key, mark.line + 1 if mark else 1, f"{problem}; {hint}") from None
    except yaml.YAMLError as error:
        raise _error(place, key, 1, f"{' '.join(str(error).split())}; give valid YAML") from None
    except RecursionError:
        raise _error(place, key, 1, f"is nested too deeply; give at most {MAX_DEPTH} levels") from None
    reader = _Reader(place, key)
    value = None if node is None else reader.read(node, key, ())
    return Document(value, reader.lines)


def _error(place: str, key: str, line: int, hint: str) -> ConfigurationError:
    return ConfigurationError(place if key else f"{place}:{line}", None, hint)


class _Reader:
    """Nodes to values."""

    def __init__(self, place: str, key: str) -> None:
        self.place, self.key, self.lines, self.count = place, key, dict[str, int](), 0

    def fail(self, node: yaml.Node, hint: str) -> ConfigurationError:
        return _error(self.place, self.key, node.start_mark.line + 1, hint)

    def read(self, node: yaml.Node, key: str, above: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > MAX_VALUES or len(above) > MAX_DEPTH:
            raise self.fail(node, f"{key or 'the file'} holds too much; give at most {MAX_VALUES} values in {MAX_DEPTH} levels")
        if id(node) in above:
            raise self.fail(node, f"{key} contains itself; write the value out")
        if node.tag not in _TAGS:
            raise self.fail(node, f"{key or 'the value'} has the tag {node.tag}; give a plain value")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key, (*above, id(node)))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, f"{key}[{i}]", (*above, id(node))) for i, item in enumerate(node.value)]
        return self.scalar(node, key)

    def mapping(self, node: yaml.MappingNode, key: str, above: tuple[int, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        first: dict[str, int] = {}
        for name_node, value_node in node.value:
            if name_node.tag == "tag:yaml.org,2002:merge":
                raise self.fail(name_node, "merge keys (<<) are not read; write the keys out")
            name = self.read(name_node, key, above)
            if not isinstance(name, str):
                raise self.fail(name_node, f"{_join(key, str(name_node.value))} is a key that is not text; put it in quotes")
            inner = _join(key, name)
            line = name_node.start_mark.line + 1
            if name in out:
                raise self.fail(name_node, f"{inner} is there twice (first on line {first[name]}); give it once")
            first[name] = self.lines[inner] = line
            out[name] = self.read(value_node, inner, above)
        return out

    def scalar(self, node: yaml.Node, key: str) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix(_TAG)
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise self.fail(node, f"{key} holds half of a surrogate pair; give valid Unicode text")
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        try:
            if kind == "int":
                whole = int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
                if not -(2**63) <= whole < 2**63:  # what every JSON writer and reader of ours can hold
                    raise ValueError
                return whole
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan")) if kind == "float" else None
        except ValueError:
            raise self.fail(node, f"{key} is no number that can be read; give a smaller or plainer one") from None
        if number is not None and not math.isfinite(number):
            raise self.fail(node, f"{key} = {text} is not finite; give a finite number, or quotes if it is a text")
        return text if number is None else number


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
