from hypothesis import given
from hypothesis import strategies as st

from rayeval.otel.layout import lay_out

LENGTH = st.none() | st.integers(0, 10**15)


@given(st.integers(0, 2**62), st.integers(0, 10**15), st.lists(LENGTH, max_size=40), st.none() | st.integers(0, 45))
def test_parts_follow_each_other_inside_the_whole(start: int, total: int, measured: list[int | None], hungry: int | None) -> None:
    parts = lay_out(start, total, measured, hungry)
    assert len(parts) == len(measured)
    at = start
    for begin, end in parts:
        assert begin == at <= end
        at = end
    assert at <= start + total


def test_measured_parts_keep_their_length_and_the_others_share_the_rest() -> None:
    assert lay_out(10, 100, [None, 40, None, 20]) == [(10, 30), (30, 70), (70, 90), (90, 110)]


def test_the_hungry_part_takes_all_that_no_clock_covers() -> None:
    assert lay_out(0, 100, [None, 40, None], 2) == [(0, 0), (0, 40), (40, 100)]


def test_a_measured_part_is_not_hungry() -> None:
    assert lay_out(0, 100, [None, 40, None], 1) == [(0, 30), (30, 70), (70, 100)]


def test_clocks_beyond_the_whole_are_shrunk_alike() -> None:
    assert lay_out(0, 100, [150, None, 50]) == [(0, 75), (75, 75), (75, 100)]
