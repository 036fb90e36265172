"""Where the values of metrics go: to Ray, or nowhere but memory.

A label is ASCII: Ray's core takes nothing else. What is not (a run's name may be any text) is percent-encoded, as in a URL.

Where Ray has no metrics agent (installed without its ``default`` extra) it keeps values nowhere, and giving them costs the same few
microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol
from urllib.parse import quote

from rayeval.metric_names import RUN, Kind, given

_PLAIN = "".join(map(chr, range(0x20, 0x7F)))
Labels = tuple[tuple[str, str], ...]


class Exporter(Protocol):
    """Where values go. Labels include the run."""

    def raised(self, name: str, labels: Labels, by: float) -> None:
        """A counter grew; ``by`` 0 makes the series known."""

    def set(self, name: str, labels: Labels, value: float) -> None:
        """A gauge has this value."""


class RayExporter:
    """To ``ray.util.metrics``, in a process that has joined a cluster. Metrics are no reason to end a run: the first error is noted, and
    nothing more is given."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._failed = False

    def raised(self, name: str, labels: Labels, by: float) -> None:
        if self._failed:
            return
        try:
            _instruments()[name]._record(by, _ascii(labels))  # ``inc`` refuses the 0 with which a series begins
        except Exception as error:
            self._fail(error)

    def set(self, name: str, labels: Labels, value: float) -> None:
        if self._failed:
            return
        try:
            _instruments()[name].set(value, _ascii(labels))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._note("warning", f"metrics are not told any more: {type(error).__name__}: {error}")


def _ascii(labels: Labels) -> dict[str, str]:
    return {name: value if value.isascii() else quote(value, safe=_PLAIN) for name, value in labels}


@cache
def _instruments() -> dict[str, Any]:
    """By name; all runs of a process share them, for a name is registered once."""
    from ray.util import metrics

    made: dict[str, Any] = {}
    for metric in given():
        kind = metrics.Gauge if metric.kind is Kind.GAUGE else metrics.Counter
        made[metric.name] = kind(metric.name, metric.meaning, (RUN, *metric.labels))
    return made


class KeptExporter:
    """Keeps the values: for tests, and wherever nobody scrapes."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, Labels], float] = {}

    def raised(self, name: str, labels: Labels, by: float) -> None:
        self.values[name, labels] = self.values.get((name, labels), 0.0) + by

    def set(self, name: str, labels: Labels, value: float) -> None:
        self.values[name, labels] = value

    def value(self, name: str, **labels: str) -> float | None:
        """The one value of ``name`` with these labels (beside ``run``); None when there is none."""
        wanted = set(labels.items())
        found = [v for (n, own), v in self.values.items() if n == name and {pair for pair in own if pair[0] != RUN} == wanted]
        return found[0] if found else None
