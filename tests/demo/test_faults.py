import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.demo.faults import Latency, Refusals, u01
from rayeval.exceptions import ConfigurationError


@given(st.integers(), st.text())
def test_u01_is_repeatable_and_open(number: int, text: str) -> None:
    assert u01(number, text) == u01(number, text)
    assert 0.0 < u01(number, text) < 1.0


def test_u01_is_the_same_on_every_machine() -> None:
    assert u01("a", 1) == 0.603503730105955


def test_a_share_of_requests_is_refused_and_retries_pass() -> None:
    refusals = Refusals()
    tries = []
    for seed in range(2000):
        n = 1
        while refusals.strikes("500", 0.2, seed, 3):
            n += 1
        tries.append(n)
    assert statistics.fmean(t > 1 for t in tries) == pytest.approx(0.2, abs=0.03)
    assert max(tries) < 12


def test_the_same_requests_meet_the_same_faults_again() -> None:
    refusals = Refusals()

    def history() -> list[bool]:
        seen = []
        for seed in range(200):
            while refusals.strikes("429", 0.3, seed):
                seen.append(True)
            seen.append(False)
        return seen

    assert history() == history()


def test_another_salt_deals_the_faults_differently() -> None:
    first, second = Refusals(0), Refusals(1)
    assert [first.strikes("x", 0.5, i) for i in range(64)] != [second.strikes("x", 0.5, i) for i in range(64)]


def test_probabilities_zero_and_one() -> None:
    assert not any(Refusals().strikes("x", 0.0, i) for i in range(100))
    assert all(Refusals().strikes("x", 1.0, i) for i in range(100))


def test_latency_forms() -> None:
    assert Latency.parse("fixed:0.5").draw("any") == 0.5
    draws = [Latency.parse("mean:2,0.5").draw(i) for i in range(4000)]
    assert statistics.fmean(draws) == pytest.approx(2.0, rel=0.05)
    logs = [Latency.parse("lognormal:0,1").draw(i) for i in range(4000)]
    assert statistics.median(logs) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("spec", ["", "fixed", "fixed:-1", "fixed:1,2", "mean:0,1", "lognormal:1", "mean:x,1", "fixed:nan"])
def test_a_bad_latency_is_named(spec: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Latency.parse(spec, "env_latency")
    assert (caught.value.field, caught.value.value) == ("env_latency", spec)
