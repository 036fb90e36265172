"""The table of all benchmarks: for a terminal, and as Markdown between two markers of docs/performance.md.

What is between the markers belongs to ``python -m benchmarks``, which replaces all of it; what is around them is written by hand and never
touched.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.experiment import REPOSITORY, Figure, table
from rayeval.exceptions import InputError

DOCUMENT = REPOSITORY / "docs" / "performance.md"
BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
_HEAD = ("", "measured", "floor or first", "ratio or growth", "limit", "load")
_GIT_S = 30.0
_GIB = 1 << 30


class Part(NamedTuple):
    """What one benchmark gave."""

    name: str
    figures: Sequence[Figure]
    load: tuple[float, float]
    """Load average of the last minute, before it and at its end: its own load is in the second."""
    within_limits: bool
    failed: str | None = None
    """The class of the error for which there are no figures."""

    def rows(self) -> list[tuple[str, ...]]:
        """-> rows under ``_HEAD``, and in a last column what is wrong."""
        load = " to ".join(f"{value:.1f}" for value in self.load)
        if self.failed is not None:
            return [(self.name, "failed", "", "", "", load, self.failed)]
        rows: list[tuple[str, ...]] = [
            (f.what, f.measured, f.floor, f.ratio, f.limit, load, "" if f.within else "beyond its limit") for f in self.figures
        ]
        if not self.within_limits and all(f.within for f in self.figures):
            rows.append((self.name, "", "", "", "", load, "not as it must be"))
        return rows


def terminal(parts: Sequence[Part]) -> str:
    """The table for a terminal."""
    return table([(*_HEAD, ""), *(row for part in parts for row in part.rows())])


def markdown(parts: Sequence[Part], circumstances: Sequence[str]) -> str:
    """The same for the document, with the sentences of ``circumstances`` above it."""
    rows: list[tuple[str, ...]] = []
    for *cells, wrong in (row for part in parts for row in part.rows()):
        mark = f"**{wrong}**" if wrong else ""
        rows.append((cells[0], " ".join(filter(None, (cells[1], mark))), *cells[2:]))
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    return "\n".join([*circumstances, "", *lines])


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def check(path: Path) -> None:
    """Look whether the table could be put there, before a long measurement. Raises InputError."""
    _around(path)


def put(text: str, path: Path) -> None:
    """Replace what is between the markers, in one step. Raises InputError when they are not there, OSError."""
    before, after = _around(path)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    os.replace(temporary, path)


def _around(path: Path) -> tuple[str, str]:
    hint = f"give a file with one line {BEGIN} and one line {END} after it, or --no-write"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("document", str(path), hint) from None
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before or END in after:
        raise InputError("document", str(path), hint)
    return before, after


def circumstances(began: datetime, servers: str, load: float) -> list[str]:
    """When, where and of what: what a figure says nothing without. ``load``: load average before anything was measured."""
    memory = psutil.virtual_memory().total / _GIB
    minutes = (datetime.now(UTC) - began).total_seconds() / 60
    packages = ", ".join(f"{name} {version(name)}" for name in ("ray", "aiohttp", "uvloop", "pyarrow"))
    return [
        f"Written by `python -m benchmarks` on {began:%Y-%m-%d %H:%M} UTC, in {minutes:.0f} minutes, at commit {commit()}.",
        f"Machine: {len(os.sched_getaffinity(0))} cores ({platform.machine()}), {memory:.0f} GiB, {platform.system()}; load average "
        f"{load:.1f} before the first benchmark.",
        f"Python {platform.python_version()}, {packages}. Servers: {servers}.",
    ]


def commit(repository: Path = REPOSITORY) -> str:
    """The short hash, and whether there are changes beside those of the document itself."""
    try:
        head = _git(repository, "rev-parse", "--short=12", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--", ".", f":(exclude){DOCUMENT.relative_to(REPOSITORY)}")
    except (OSError, subprocess.SubprocessError):
        return "unknown (no git here)"
    return f"`{head}`" + (" with changes on top" if changed else "")


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, timeout=_GIT_S, check=True)
    return done.stdout.strip()
