"""Figures that no server should send: the summary of a run stays a summary."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.costs import Prices
from rayeval.figures import figures_of
from rayeval.moments import Moments
from rayeval.summary import Aggregate, summarize_run
from rayeval.summary_text import figure, summary_lines, verdict_lines
from tests.helpers.runs import completed, make_run, step

MOST = 1.7976931348623157e308


def moments(values: list[float]) -> Moments:
    made = Moments()
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize(
    ("values", "mean", "sem"),
    [
        ([1e308, 1e308], 1e308, 0.0),
        ([MOST, -MOST], 0.0, MOST),
        ([1e200, 3e200], 2e200, 1e200),
        ([1e308, 0.5, 1.0], 1e308 / 3, 1e308 / 3),
    ],
)
def test_the_error_of_the_mean_of_absurd_figures(values: list[float], mean: float, sem: float) -> None:
    made = moments(values)
    assert made.mean() == pytest.approx(mean, rel=1e-12) and made.sem() == pytest.approx(sem, rel=1e-12)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=6))
def test_every_figure_of_finite_numbers_is_a_finite_number(values: list[float]) -> None:
    made = moments(values)
    sem = made.sem()
    assert all(math.isfinite(x) for x in (made.mean(), made.mean(3, 1), sem))  # type: ignore[arg-type]
    n = len(values)
    mean = sum(map(Fraction, values)) / n
    square = sum((Fraction(v) - mean) ** 2 for v in values) / (n * (n - 1))
    if square > 1e-300:
        assert abs(Fraction(sem or 0.0) ** 2 - square) <= square * Fraction(1, 10**12)


def test_an_old_run_with_an_absurd_reward_is_summarized(tmp_path: Path) -> None:
    episodes = [completed(0, reward=1e308), completed(1, reward=-1e308), completed(2, reward=0.5)]
    summary = summarize_run(make_run(tmp_path / "r", episodes, tasks=range(3)))
    primary = summary["primary"]
    assert primary["reward_mean"] == pytest.approx(0.5 / 3) and primary["reward_sem"] == pytest.approx(1e308 / math.sqrt(3))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert max(map(len, [*verdict_lines(summary), *summary_lines(summary)])) < 250
    assert "0.1667 ± 5.7735e+307 (SEM)" in verdict_lines(summary)[0]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (0.5, "0.5000"), (-1e9, "-1000000000.0000"), (1e308, "1.0000e+308"), (-2e12, "-2.0000e+12")]
)
def test_a_long_number_has_an_exponent(value: float | None, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize("tokens", [-8_000_000_000_000, -1, 2**40 + 1, 10**400, True, 1.5, "7"])
def test_a_count_of_tokens_that_can_be_none_is_absent(tokens: object) -> None:
    turn = step()
    turn["model"]["usage"] = {"prompt_tokens": tokens, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": tokens}}
    figures = figures_of(completed(steps=[step(tokens=10), turn]))
    assert (figures["tokens"]["prompt_tokens"], figures["tokens"]["completion_tokens"], figures["cached_tokens"]) == (10, 5, 0)
    aggregate = Aggregate()
    aggregate.add(figures)
    aggregate.add_line(figures)
    assert aggregate.to_summary(1, 0, Prices(1.0, 1.0))["cost"]["amount"] == pytest.approx(15e-6)


def test_names_that_a_server_gave_take_no_line_of_their_own(tmp_path: Path) -> None:
    episode = completed(0, reason="x\r\nFAKE 80 of 80 episodes completed\u2028y", **{"r_\nFAKE": 1.0})
    lines = summary_lines(summarize_run(make_run(tmp_path / "r", [episode], tasks=[0])))
    assert not any(line.startswith("FAKE") for text in lines for line in text.splitlines())
    assert any("x FAKE 80 of 80 episodes completed y 1" in line for line in lines)


NO_COMPLETION = ["invalid_json_response", "invalid_response_body", "missing_choices", "invalid_choice"]


@pytest.mark.parametrize("code", NO_COMPLETION)
def test_answers_that_are_no_chat_completion_are_a_warning(tmp_path: Path, code: str) -> None:
    page = [step(n, protocol_error=code) for n in range(1, 31)]
    summary = summarize_run(make_run(tmp_path / "r", [completed(0, reward=0.0, steps=page), completed(1)], tasks=[0, 1]))
    assert summary["unreadable_answers"] == {"steps": 30, "episodes": 1}
    (warning,) = [line for line in verdict_lines(summary) if line.startswith("warning")]
    assert warning.startswith("warning: 30 of 31 answers were no chat completion") and "in 1 episodes" in warning


def test_a_policy_that_breaks_the_tool_protocol_is_no_such_warning(tmp_path: Path) -> None:
    own = [step(n, protocol_error=code) for n, code in enumerate(["tool_call_count", "mixed_content", "empty_response"], 1)]
    rare = [step(n, protocol_error=None if n > 1 else "invalid_json_response") for n in range(1, 201)]
    summary = summarize_run(make_run(tmp_path / "r", [completed(0, steps=own), completed(1, steps=rare)], tasks=[0, 1]))
    assert summary["unreadable_answers"] == {"steps": 1, "episodes": 1}
    assert not any(line.startswith("warning") for line in verdict_lines(summary))


def test_slots_that_the_run_does_not_know_of_are_told_in_the_verdict(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [completed(0)], tasks=[0])
    lines = verdict_lines(summarize_run(run, {"unaccounted_leases": {"http://a:1": 2, "http://b:1": 0}}))
    assert lines[-1].startswith("warning: slots are taken that this run does not know of (2 at http://a:1), by another run or by nobody: ")
    assert lines[1] == "no failures"
