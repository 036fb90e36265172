from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.aftermath import WINDOW_S, Mark, again_s, back_s, missing_and_doubled, rate
from benchmarks.recovery import figures


def counted(rates: list[tuple[float, float]], every_s: float = 0.1) -> list[Mark]:
    """Looks at a count that grows by each (seconds, rate a second) in turn."""
    marks, moment, answers = [(0.0, 0)], 0.0, 0.0
    for seconds, a_second in rates:
        for _ in range(round(seconds / every_s)):
            moment, answers = moment + every_s, answers + a_second * every_s
            marks.append((moment, round(answers)))
    return marks


def test_a_rate_is_between_two_looks() -> None:
    assert rate([(0.0, 0), (1.0, 10), (2.0, 50)], 0.5, 1.5) == 40.0
    for since, until in ((0.5, 0.9), (1.5, 9.0), (9.0, 10.0)):
        with pytest.raises(RuntimeError, match="no two counts"):
            rate([(0.0, 0), (1.0, 10), (2.0, 50)], since, until)


def test_the_rate_is_back_when_the_replacement_works() -> None:
    marks = counted([(10, 200), (4, 100), (10, 200)])
    found = back_s(marks, 10.0, 0.9 * 200)
    assert found is not None
    # a window that begins 0.6 s before the end of the gap has 90 % already: (0.6 * 100 + 2.4 * 200) / 3
    assert found == pytest.approx(4.0 - 0.6, abs=0.15)


def test_the_rate_before_the_kill_does_not_count_as_back() -> None:
    marks = counted([(10, 200), (10, 100)])
    assert back_s(marks, 10.0, 0.9 * 200) is None


def test_a_rate_that_never_fell_is_back_at_once() -> None:
    found = back_s(counted([(20, 200)]), 10.0, 0.9 * 200)
    assert found is not None and found <= 0.11


@given(gap=st.floats(0.0, 8.0), low=st.floats(0.0, 150.0))
def test_it_is_never_back_later_than_the_gap_nor_earlier_than_its_share_allows(gap: float, low: float) -> None:
    found = back_s(counted([(10, 200), (gap, low), (WINDOW_S + 5, 200)]), 10.0, 0.9 * 200)
    assert found is not None
    may_be_low = 0.1 * 200 * WINDOW_S / (200 - low)  # so long a part of a window may lie in the gap
    assert gap - may_be_low - 0.25 <= found <= gap + 0.25


def line(episode: str, attempt: int, started: str, stage: str | None = None) -> dict[str, Any]:
    status = "failed" if stage else "completed"
    return {"episode_id": episode, "attempt": attempt, "status": status, "started_at": f"1970-01-01T00:00:{started}+00:00", "stage": stage}


def test_a_lost_episode_runs_again_with_its_next_attempt() -> None:
    traces = [line("a", 1, "12", "lost"), line("b", 1, "12", "lost"), line("c", 1, "05"), line("b", 2, "13.5"), line("a", 2, "11.25")]
    assert again_s(traces, 10.0) == [1.25, 3.5]
    assert again_s([line("c", 1, "05"), line("d", 1, "05", "model")], 10.0) == []


def test_a_lost_episode_that_never_runs_again_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"1 episodes were lost .* \['a'\]"):
        again_s([line("a", 1, "12", "lost"), line("b", 1, "12", "lost"), line("b", 2, "13")], 10.0)


def test_missing_and_doubled_episodes_are_counted() -> None:
    once = [line(name, 1, "01") for name in "abc"]
    assert missing_and_doubled(once, 3) == {"missing": 0, "doubled": 0}
    assert missing_and_doubled([*once, line("a", 2, "02"), line("d", 1, "02", "model")], 5) == {"missing": 2, "doubled": 1}


def result(**changes: Any) -> dict[str, Any]:
    whole = {"missing": 0, "doubled": 0}
    death = {**whole, "wall_s": 30.0, "ratio": 1.2, "lost": 32, "again_first_s": 0.5, "again_s": 3.0, "back_s": 4.0}
    made: dict[str, Any] = {
        "undisturbed": {**whole, "wall_s": 25.0},
        "seen": dict(death),
        "fenced": {**death, "again_s": 13.0, "back_s": 14.0},
        "drivers": [{**whole, "forgotten": 0}],
        "first_s": 10.0,
        "again_s": 11.0,
    }
    for place, value in changes.items():
        where, _, name = place.partition("__")
        if name:
            (made["drivers"][0] if where == "driver" else made[where])[name] = value
        else:
            made[where] = value
    return made


def beyond(made: dict[str, Any]) -> int:
    return sum(not figure.within for figure in figures(made))


def test_a_good_day_is_within_all_limits() -> None:
    assert beyond(result()) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"seen__again_s": 10.1},
        {"seen__back_s": None},
        {"seen__back_s": 10.1},
        {"seen__ratio": 1.26},
        {"fenced__ratio": 1.51},
        {"fenced__again_s": 20.1},
        {"fenced__back_s": 20.1},
        {"again_s": 15.1},
        {"undisturbed__missing": 1},
        {"fenced__doubled": 1},
        {"driver__missing": 1},
        {"driver__forgotten": 1},
    ],
)
def test_each_limit_can_be_passed(changes: dict[str, Any]) -> None:
    assert beyond(result(**changes)) == 1
