"""What a result must hold before an episode goes on with it. Each function names the first fault, or gives None.

A fault goes into errors, and these go everywhere: it quotes numbers and short words, never what a text, list or object holds.
"""

from __future__ import annotations

from typing import Any

MAX_REWARD = 1e9
"""Largest reward, and reward component, either way. Far beyond any score an environment is known to give, and small enough for all that is
done with rewards later: a trainer's squares in 32-bit floats (up to 3e38) hold sums over 10**20 of them. A larger number is a fault of the
environment, and one such episode would make the mean of a whole run worthless."""

_WORD_CHARS = 8
"""Texts up to here are quoted where a number or a flag belongs: ``true``, ``n/a``, ``0.5``; an article's number is longer."""


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
    """A page with ``done`` (bool) and, when done, a number of at most ``MAX_REWARD`` as ``reward``: a score that is none must not be
    counted. A component (``r_*`` of ``reward_detail``) may be absent or no number, but not a larger one."""
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
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= MAX_REWARD:  # not a NaN either
            return _not("reward", f"a number from {-MAX_REWARD:g} to {MAX_REWARD:g} when done", result)
        detail = result.get("reward_detail", {})
        for name, value in detail.items():
            if isinstance(value, int | float) and abs(value) > MAX_REWARD and str(name).startswith("r_"):
                return "reward_detail." + _not(name, f"a number from {-MAX_REWARD:g} to {MAX_REWARD:g}", detail)
    return None


def terminal_fault(result: Any) -> str | None:
    """The answer to ``terminate``: a step's, with ``done`` true."""
    fault = step_fault(result)
    return "done is not true after terminate" if fault is None and not result["done"] else fault


def _not(field: str, wanted: str, holder: dict[str, Any]) -> str:
    got = "is missing" if field not in holder else f"is {_shown(holder[field])}"
    return f"{field} {got}; it must be {wanted}"


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 256:  # str() refuses very long ones
        return f"a number of {value.bit_length()} bits"
    match value:
        case None:
            return "null"
        case str() if len(value) > _WORD_CHARS:
            return f"a text of {len(value)} characters"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object with {len(value)} keys"
    return repr(value)
