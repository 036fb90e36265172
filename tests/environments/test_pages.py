import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.environments.pages import MAX_REWARD, reset_fault, step_fault, terminal_fault
from rayeval.figures import figures_of

PAGE: dict[str, Any] = {"observation": "p", "observation_state": {"observation_version": "v1"}}


def ended(reward: Any = 1.0, **detail: Any) -> dict[str, Any]:
    return {**PAGE, "done": True, "reward": reward, "reward_detail": detail}


@pytest.mark.parametrize("reward", [0, 1, -5, 0.25, MAX_REWARD, -MAX_REWARD, int(MAX_REWARD)])
def test_a_number_within_the_bound_is_a_reward(reward: float) -> None:
    assert step_fault(ended(reward)) is None and terminal_fault(ended(reward)) is None


TOO_LARGE = [1e308, -1e308, math.nextafter(MAX_REWARD, math.inf), 2 * 10**9, 10**400, -(10**5000), math.inf, -math.inf]


@pytest.mark.parametrize("reward", [*TOO_LARGE, math.nan, True, "1.0", None], ids=range(len(TOO_LARGE) + 4))
def test_anything_else_is_a_fault_and_no_error(reward: Any) -> None:
    fault = step_fault(ended(reward))
    assert fault is not None and fault.startswith("reward is ") and "a number from -1e+09 to 1e+09" in fault and len(fault) < 200


def test_a_reward_counts_only_at_the_end() -> None:
    assert step_fault({**PAGE, "done": False, "reward": 1e308}) is None


@pytest.mark.parametrize("value", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_a_component_has_the_same_bound(value: float) -> None:
    fault = step_fault(ended(1.0, r_strict=value))
    assert fault is not None and fault.startswith("reward_detail.r_strict is ") and len(fault) < 200


@pytest.mark.parametrize("value", ["n/a", None, math.nan, True, 0.5])
def test_a_component_may_be_no_number_at_all(value: Any) -> None:
    assert step_fault(ended(1.0, r_strict=value, price=1e308)) is None


def test_a_page_without_its_task_is_no_reset() -> None:
    assert reset_fault({**PAGE, "task_instruction": "t"}) is None
    assert str(reset_fault(PAGE)).startswith("task_instruction is missing")


@given(
    st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text()),
    st.dictionaries(st.text(max_size=4), st.floats() | st.integers()),
)
def test_whatever_passes_can_be_scored(reward: Any, detail: dict[str, Any]) -> None:
    result = ended(reward, **detail)
    if step_fault(result) is None:
        figures = figures_of({"status": "completed", "final": result})
        assert abs(figures["reward"]) <= MAX_REWARD
        assert all(abs(value) <= MAX_REWARD for value in figures["components"].values())
