"""What a run may be called: its name is a directory, an argument of the command line and a word in tables."""

from __future__ import annotations

import unicodedata

MAX_NAME_BYTES = 180
"""Leaves room for a suffix of ours under the 255 bytes of common file systems."""
_RESERVED = frozenset({"latest"})
_PUNCTUATION = frozenset("._- ")


def check_run_name(name: str) -> str:
    """-> ``name``. Raises ValueError with what to give."""
    if not name or name != name.strip():
        raise ValueError("give a name without spaces at its ends")
    if name.startswith((".", "-")) or name.endswith("."):
        raise ValueError("give a name that neither begins with '.' or '-' nor ends with '.'")
    if name.casefold() in _RESERVED:
        raise ValueError("give another name: 'latest' stands for the newest run")
    wrong = sorted({c for c in name if c not in _PUNCTUATION and unicodedata.category(c)[0] not in "LNM"})
    if wrong:
        raise ValueError(f"give letters, digits, '.', '-', '_' and spaces only; found {', '.join(map(repr, wrong))}")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"give at most {MAX_NAME_BYTES} bytes")
    return name
