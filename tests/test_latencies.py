"""Durations counted between edges."""

from __future__ import annotations

import bisect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.latencies import CALL_EDGES_S, EPISODE_EDGES_S, Spread, packed

_seconds = st.floats(min_value=0.0, max_value=1e6, allow_nan=False) | st.sampled_from(CALL_EDGES_S)


def test_the_edges_are_those_of_the_genai_conventions() -> None:
    assert CALL_EDGES_S == (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
    assert EPISODE_EDGES_S == (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)


@given(st.lists(st.lists(_seconds, max_size=20), max_size=10))
def test_what_is_shipped_adds_up_to_what_was_measured(traces: list[list[float]]) -> None:
    spread, single = Spread(), Spread()
    for calls in traces:
        spread.add_packed(pickle.loads(pickle.dumps(packed(calls))))
        for seconds in calls:
            single.add(seconds)
    every = sorted(s for calls in traces for s in calls)
    assert spread.count == single.count == len(every)
    assert spread.sum_s == pytest.approx(sum(every))
    expected = {f"{edge:g}": bisect.bisect_right(every, edge) for edge in CALL_EDGES_S} | {"+Inf": len(every)}
    assert dict(spread.cumulative()) == dict(single.cumulative()) == expected


def test_a_value_on_an_edge_is_at_most_that_edge() -> None:
    spread = Spread((1.0, 2.0))
    for seconds in (1.0, 1.5, 2.0, 2.1):
        spread.add(seconds)
    assert list(spread.cumulative()) == [("1", 1), ("2", 3), ("+Inf", 4)]
