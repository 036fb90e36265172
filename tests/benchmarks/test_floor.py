from hypothesis import given
from hypothesis import strategies as st

from benchmarks.floor import ideal_wall_s


def test_a_place_takes_the_next_episode_the_moment_it_is_free() -> None:
    assert ideal_wall_s([4.0, 1.0, 1.0, 1.0], places=2) == 4.0
    assert ideal_wall_s([1.0, 1.0, 1.0, 4.0], places=2) == 5.0


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=30), st.integers(1, 8))
def test_the_ideal_wall_lies_between_its_bounds(durations: list[float], places: int) -> None:
    wall, even = ideal_wall_s(durations, places), sum(durations) / places
    assert max(even, max(durations)) - 1e-6 <= wall <= even + max(durations) + 1e-6
