"""Keeps the API key out of everything that is taken from a server's answer.

Servers echo requests: in a 401, in a 500 with its headers, in a 200 through a careless proxy. What leaves a model
client has been through a ``Scrubber``. A clean answer, which is nearly every one, costs a few searches of its bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Shorter keys are placeholders of local servers (``EMPTY``, ``none``, ``dummy``): hiding them changes answers."""

_LOUD_BEARER = re.compile(r"(?i)\bbearer[\s:=\"']+[^\s\"',;<>]+")
# In an answer of the model "bearer of good news" must stay: only what is long enough for a token goes.
_QUIET_BEARER = re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{16,}")


class KeyMark(NamedTuple):
    """By which a process that does not have a key finds it in a text: length and salted hash of each of its spellings. For memory alone:
    a key that can be guessed can be guessed by its hash."""

    salt: bytes
    spellings: tuple[tuple[int, bytes], ...]

    def hidden_in(self, text: str) -> str:
        """``text`` without the key. Looks at every place of it where a spelling fits: for texts of some 100 KB."""
        for length, digest in self.spellings:
            text = self._without(text, length, digest)
        return text

    def _without(self, text: str, length: int, digest: bytes) -> str:
        def cleaned(word: re.Match[str]) -> str:
            parts, kept, at = [], 0, 0
            while at + length <= len(word[0]):
                if _salted(self.salt, word[0][at : at + length]) == digest:
                    parts += [word[0][kept:at], REDACTED]
                    kept = at = at + length
                else:
                    at += 1
            return "".join((*parts, word[0][kept:]))

        return re.sub(rf"\S{{{length},}}", cleaned, text)  # no key has a space in it


def _salted(salt: bytes, text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), key=salt, digest_size=16).digest()


class Scrubber:
    """Replaces one key, in the spellings servers give it, and bearer tokens of any kind."""

    def __init__(self, key: str | None) -> None:
        self._forms: tuple[str, ...] = ()
        if key is not None and len(key) >= SHORTEST_SECRET:
            spellings = {key, quote(key, safe=""), orjson.dumps(key).decode()[1:-1]}
            self._forms = tuple(sorted(spellings, key=len, reverse=True))
        self._byte_forms = tuple(form.encode() for form in self._forms)

    def __repr__(self) -> str:
        return "Scrubber()"

    def __reduce__(self) -> Any:
        raise TypeError("a Scrubber holds a secret and is never pickled: build it where it is used")

    def mark(self) -> KeyMark:
        """The key's mark for another process; without spellings where there is no key worth hiding."""
        salt = os.urandom(16)
        return KeyMark(salt, tuple((len(form), _salted(salt, form)) for form in self._forms))

    def text(self, text: str) -> str:
        """For error texts: the key and whatever follows the word Bearer."""
        # A UTF-16 echo read as bytes has a NUL beside each letter, which would hide the key from the search.
        text = text.replace("\x00", "")
        if "\\u00" in text:
            text = _spelled_out(text)
        for form in self._forms:
            text = text.replace(form, REDACTED)
        return _LOUD_BEARER.sub(f"Bearer {REDACTED}", text)

    def suspects(self, body: bytes) -> bool:
        """Whether an answer may hold the key or a token. Errs to True: ASCII spelled as ``\\u00..`` could be either."""
        return b"earer" in body or b"EARER" in body or b"\\u00" in body or any(form in body for form in self._byte_forms)

    def value(self, value: Any) -> Any:
        """A parsed answer with every string in it (keys too) cleaned; rebuilt without recursion, however deep it is."""
        if isinstance(value, str):
            return self._answer_text(value)
        root: list[Any] = [value]
        pending: list[tuple[Any, Any]] = [(root, 0)]
        while pending:
            holder, place = pending.pop()
            item = holder[place]
            if isinstance(item, str):
                holder[place] = self._answer_text(item)
            elif isinstance(item, list):
                copied = list(item)
                holder[place] = copied
                pending.extend((copied, i) for i, child in enumerate(copied) if isinstance(child, (str, list, dict)))
            elif isinstance(item, dict):
                renamed = {self._answer_text(k): child for k, child in item.items()}
                holder[place] = renamed
                pending.extend((renamed, k) for k, child in renamed.items() if isinstance(child, (str, list, dict)))
        return root[0]

    def _answer_text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, REDACTED)
        if "\\u00" in text:
            text = self._embedded(text)
        return _QUIET_BEARER.sub(f"Bearer {REDACTED}", text)

    def _embedded(self, text: str) -> str:
        """JSON inside a string (arguments of a call) can spell the key with escapes of its own."""
        plain = _spelled_out(text)
        for form in self._forms:
            if form in plain:
                return REDACTED
        return text


_ASCII_ESCAPE = re.compile(r"\\u00([2-7][0-9a-fA-F])")


def _spelled_out(text: str) -> str:
    return _ASCII_ESCAPE.sub(lambda m: chr(int(m[1], 16)), text)
