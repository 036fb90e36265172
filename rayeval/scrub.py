"""What must not leave a run: the fields of ``private_fields``, and texts that look like keys.

Whatever carries (parts of) a trace to another program goes through here: tracing, exporters, reports. Two measures, both applied:

* by name: a field of ``PRIVATE_FIELDS``, or one whose name begins with ``private``, is dropped wherever in a value it stands
* by form: an API key that is known, bearer tokens, key-like strings, and the user part of URLs become ``[redacted]``

The words of an error, which are no value with names, end where they begin to quote a task's solution (``Scrub.error``).

``docs/traces.md`` ("What is private") says where these fields stand in a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rayeval.models._secrets import REDACTED, Scrubber
from rayeval.private_fields import PRIVATE_FIELDS, is_private, without_solution

__all__ = ["DEEPEST", "PRIVATE_FIELDS", "Scrub", "is_private"]

DEEPEST = 200
"""Levels that a value keeps; what is nested deeper is dropped."""

_URL_USER = re.compile(r"(?<=://)[^/@\s\"'<>]+@")
_KEY_LIKE = re.compile(r"\b(?:(?:sk|pk|rk|hf|gh[pousr]|github_pat|xox[a-z]|glpat)[-_]|AKIA|AIza)(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}")


class Scrub:
    """Cleans texts and JSON values. ``keys``: secrets that are known, such as the model's API key. Holds them: never pickled."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._scrubbers = tuple(Scrubber(key) for key in keys) or (Scrubber(None),)

    def __repr__(self) -> str:
        return "Scrub()"

    def __reduce__(self) -> Any:
        raise TypeError("a Scrub may hold a secret and is never pickled: build it where it is used")

    def text(self, text: str) -> str:
        """``text`` without keys and tokens."""
        for scrubber in self._scrubbers:
            text = str(scrubber.value(text))
        return _KEY_LIKE.sub(REDACTED, _URL_USER.sub(f"{REDACTED}@", text))

    def error(self, text: str) -> str:
        """``text`` of an error, whoever wrote it: without keys and tokens, and up to where it quotes a task's solution."""
        for scrubber in self._scrubbers:
            text = scrubber.text(text)  # stricter than for an answer of the model: any word after Bearer goes
        return without_solution(self.text(text))

    def value(self, value: Any) -> Any:
        """A copy of a JSON value without private fields, every text in it (names too) cleaned."""
        return self._copy(value, 0)

    def _copy(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if depth >= DEEPEST:
            return None if isinstance(value, (Mapping, list, tuple)) else value
        if isinstance(value, Mapping):
            return {self.text(str(k)): self._copy(v, depth + 1) for k, v in value.items() if not is_private(str(k))}
        if isinstance(value, list | tuple):
            return [self._copy(v, depth + 1) for v in value]
        return value
