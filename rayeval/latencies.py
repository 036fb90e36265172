"""How long calls took, as counts between fixed edges: small enough to ride with every finished trace, exact when added up.

The edges are those that OpenTelemetry's GenAI conventions advise for ``gen_ai.client.operation.duration`` and
``gen_ai.invoke_agent.duration``, so that figures from here and from tracing fall into the same buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

CALL_EDGES_S = tuple(round(0.01 * 2**k, 2) for k in range(14))
"""0.01 to 81.92 s, doubling: one call of a model or an environment."""
EPISODE_EDGES_S = tuple(round(0.1 * 2**k, 1) for k in range(13))
"""0.1 to 409.6 s, doubling: one attempt."""

Packed = tuple[float, list[int]]
"""Sum of some calls in seconds, and for each call the number of its bucket in ``CALL_EDGES_S``. Plain values: it is pickled."""


def packed(seconds: Sequence[float]) -> Packed:
    """Calls of one trace, as they are shipped."""
    return sum(seconds), [bisect_left(CALL_EDGES_S, s) for s in seconds]


class Spread:
    """A histogram: counts between edges, and the sum."""

    __slots__ = ("_counts", "edges", "sum_s")

    def __init__(self, edges: tuple[float, ...] = CALL_EDGES_S) -> None:
        self.edges = edges
        self.sum_s = 0.0
        self._counts = [0] * (len(edges) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self.edges, seconds)] += 1
        self.sum_s += seconds

    def add_packed(self, calls: Packed) -> None:
        """Count the calls of a trace; only for a spread over ``CALL_EDGES_S``."""
        total, buckets = calls
        for bucket in buckets:
            self._counts[bucket] += 1
        self.sum_s += total

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self._counts)

    def cumulative(self) -> Iterable[tuple[str, int]]:
        """(``le``, durations of at most so many seconds), as Prometheus counts them; the last is ``+Inf``."""
        return zip([f"{edge:g}" for edge in self.edges] + ["+Inf"], accumulate(self._counts), strict=True)
