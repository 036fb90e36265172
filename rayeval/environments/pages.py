"""What a result must hold before an episode goes on with it. Each function names the first fault, or gives None."""

from __future__ import annotations

import math
from typing import Any


def page_fault(result: Any) -> str | None:
    """``observation`` (str) and ``observation_state`` (object with a string ``observation_version``)."""
    if not isinstance(result, dict):
        return f"the result is not an object but {type(result).__name__}"
    if not isinstance(result.get("observation"), str):
        return _not("observation", "a string", result)
    state = result.get("observation_state")
    if not isinstance(state, dict):
        return _not("observation_state", "an object", result)
    if not isinstance(state.get("observation_version"), str):
        return "observation_state." + _not("observation_version", "a string", state)
    return None


def reset_fault(result: Any) -> str | None:
    """A page with its ``task_instruction`` (str)."""
    fault = page_fault(result)
    if fault is None and not isinstance(result.get("task_instruction"), str):
        return _not("task_instruction", "a string", result)
    return fault


def step_fault(result: Any) -> str | None:
    """A page with ``done`` (bool) and, when done, a finite number as ``reward``: a score that is none must not be counted."""
    fault = page_fault(result)
    if fault is not None:
        return fault
    if not isinstance(result.get("done"), bool):
        return _not("done", "true or false", result)
    for field in ("action_feedback", "reward_detail"):
        if not isinstance(result.get(field, {}), dict):
            return _not(field, "an object", result)
    if result["done"]:
        reward = result.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            return _not("reward", "a finite number when done", result)
    return None


def terminal_fault(result: Any) -> str | None:
    """The answer to ``terminate``: a step's, with ``done`` true."""
    fault = step_fault(result)
    return "done is not true after terminate" if fault is None and not result["done"] else fault


def _not(field: str, wanted: str, holder: dict[str, Any]) -> str:
    got = "is missing" if field not in holder else f"is {str(holder[field])[:80]!r}"
    return f"{field} {got}; it must be {wanted}"
