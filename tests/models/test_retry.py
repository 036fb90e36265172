import random
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.models import Backoff, retry_after

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("given_header", "seconds"),
    [
        ("3", 3.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        (format_datetime(datetime.fromtimestamp(NOW + 40, UTC), usegmt=True), 40.0),
        (format_datetime(datetime.fromtimestamp(NOW - 40, UTC), usegmt=True), 0.0),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 10.0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("inf", None),
        ("nan", None),
        ("1e3", None),
        ("1_000", None),
        ("３", None),
        ("9" * 400, None),
        ("Mon, 99 Foo 2023 99:99:99 GMT", None),
        ("Tue, 14 Nov 99999 22:13:30 GMT", None),
    ],
)
def test_retry_after(given_header: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": given_header}, NOW) == seconds


def test_retry_after_absent() -> None:
    assert retry_after({}) is None


@given(st.text())
def test_no_retry_after_raises(text: str) -> None:
    seconds = retry_after({"Retry-After": text}, NOW)
    assert seconds is None or seconds >= 0


@given(st.integers(1, 10_000), st.integers())
def test_own_waits_double_to_the_cap_and_are_jittered(attempt: int, seed: int) -> None:
    full = min(30.0, 0.5 * 2.0 ** min(attempt - 1, 32))
    assert full / 2 <= Backoff().wait_s(attempt, None, random.Random(seed)) <= full


@given(st.integers(1, 8), st.floats(0, 1e9), st.integers())
def test_retry_after_is_never_undercut_below_its_cap(attempt: int, asked_s: float, seed: int) -> None:
    waited = Backoff().wait_s(attempt, asked_s, random.Random(seed))
    assert min(asked_s, 120.0) <= waited <= max(30.0, 120.25)


@pytest.mark.parametrize("wrong", [{"base_s": -1}, {"base_s": 2, "cap_s": 1}, {"retry_after_cap_s": -1}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give 0 <= base_s"):
        Backoff(**wrong)
