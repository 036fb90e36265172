from typing import Any

import pytest

from benchmarks.scaling import compared, figures


def run(actors: int, steps_per_s: float, cpu_ms: float) -> dict[str, Any]:
    return {
        "actors": actors,
        "in_flight": 64 * actors,
        "latency_s": 0.5,
        "steps_per_s": steps_per_s,
        "all_cpu_ms_per_step": cpu_ms,
        "cpu_ms_per_step": cpu_ms / 2,
        "load": 0.0,
    }


def test_each_run_stands_beside_the_wait_alone_and_beside_the_first() -> None:
    result = compared([run(1, 126.0, 2.0), run(2, 250.0, 1.5), run(4, 500.0, 1.0)])
    assert result["within_limits"]
    assert [r["ideal_steps_per_s"] for r in result["runs"]] == [128.0, 256.0, 512.0]
    assert result["runs"][2]["of_ideal"] == pytest.approx(500 / 512)
    assert result["runs"][2]["times_first"] == pytest.approx(500 / 126)
    assert [figure.ratio for figure in figures(result)] == ["0.984", "0.977", "0.977", "0.75", "0.50"]


@pytest.mark.parametrize(
    ("second", "wrong"), [(run(2, 240.0, 2.0), "steps/s"), (run(2, 250.0, 2.6), "CPU"), (run(2, 126.0, 2.0), "steps/s")]
)
def test_places_that_stay_empty_and_dearer_steps_are_beyond_a_limit(second: dict[str, Any], wrong: str) -> None:
    result = compared([run(1, 126.0, 2.0), second])
    assert not result["within_limits"]
    (beyond,) = [figure for figure in figures(result) if not figure.within]
    assert wrong in beyond.what
