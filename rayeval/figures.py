"""What one trace contributes to every count of a run: its figures, from the finished trace or step by step as it grows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

from rayeval.duplicates import generated_by, generation_hash
from rayeval.private_fields import without_solution
from rayeval.schemas import EpisodeStatus, JsonObject, Termination

TOKEN_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens")
_SAMPLE_CHARS = 200
_NO_COMPLETION = frozenset({"invalid_json_response", "invalid_response_body", "missing_choices", "invalid_choice"})
"""Protocol errors of an answer that is no chat completion at all: a page of a gateway, an error of a proxy."""
_MOST_TOKENS = 2**40
"""Of one answer."""


class StepSums:
    """What ``figures_of`` needs of the steps of one trace, added up step by step: a runtime counts each step while it is at hand."""

    __slots__ = (
        "actions",
        "cached",
        "generated",
        "invalid",
        "policy_failures",
        "protocol_errors",
        "resampled",
        "retries",
        "steps",
        "tokens",
        "unreadable",
    )

    def __init__(self) -> None:
        self.steps = self.actions = self.invalid = self.protocol_errors = self.resampled = self.cached = self.unreadable = 0
        self.policy_failures: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.tokens = dict.fromkeys(TOKEN_FIELDS, 0)
        self.generated: list[str] = []

    def add(self, step: Mapping[str, Any]) -> None:
        """Count one step; odd fields count as absent."""
        self.steps += 1
        model = _object(step.get("model"))
        self.generated += generated_by(model)
        if fault := step.get("protocol_error"):
            self.protocol_errors += 1
            self.unreadable += _object(fault).get("code") in _NO_COMPLETION
        if failure := step.get("policy_failure"):
            self.policy_failures[str(_object(failure).get("code"))] += 1
        if step.get("resampled"):
            self.resampled += 1
        environment = step.get("environment")
        if environment is not None and isinstance(environment, (dict, Mapping)):
            self.actions += 1
            feedback = environment.get("action_feedback")
            if feedback and _object(feedback).get("valid") is False:
                self.invalid += 1
        if "retries" in model:
            for retry in _objects(model["retries"]):
                self.retries[str(retry.get("cause"))] += 1
        if usage := model.get("usage"):
            _add_tokens(self.tokens, usage)
            self.cached += _cached_tokens(usage)


def figures_of(trace: Mapping[str, Any], sums: StepSums | None = None) -> JsonObject:
    """One trace -> what a summary needs of it, a flat JSON object of a few hundred bytes. Reads foreign traces too; never raises for
    missing or odd fields (they count as absent). ``sums``: of its steps, where they have been counted already."""
    final = _object(trace.get("final"))
    error = _object(trace.get("error"))
    completed = trace.get("status") == EpisodeStatus.COMPLETED and final.get("done") is True
    if sums is None:
        sums = StepSums()
        for step in _objects(trace.get("steps")):
            sums.add(step)
    for retry in _objects(error.get("model_retries")):
        sums.retries[str(retry.get("cause"))] += 1
    detail = _object(final.get("reward_detail"))
    stage = error.get("stage")
    return {
        "episode_id": trace.get("episode_id"),
        "task_id": _object(trace.get("job")).get("task_id"),
        "completed": completed,
        "reward": _number(final.get("reward")) if completed else None,
        "components": _components(detail) if completed else {},
        "termination": _termination(final, sums.policy_failures) if completed else None,
        "duration_ms": _number(trace.get("duration_ms")),
        "steps": sums.steps,
        "actions": sums.actions,
        "invalid_actions": sums.invalid,
        "protocol_errors": sums.protocol_errors,
        "unreadable": sums.unreadable,
        "policy_failures": dict(sums.policy_failures),
        "resampled": sums.resampled,
        "tokens": sums.tokens,
        "cached_tokens": sums.cached,
        "generation": generation_hash(sums.generated) if completed else None,
        "model_retries": dict(sums.retries),
        "error_kind": None if completed else str(error.get("kind") or "unclassified"),
        "error_type": None if completed else str(error.get("type") or "unclassified"),
        "error_message": None if completed else without_solution(" ".join(str(error.get("message") or "").split()))[:_SAMPLE_CHARS],
        "lost": stage == "lost",
        "cleanup_failed": stage == "cleanup" or bool(error.get("cleanup_errors")),
    }


def _object(value: Any) -> Mapping[str, Any]:
    # dict first: an abstract class is asked in Python, and this runs for every step of a run
    return value if isinstance(value, (dict, Mapping)) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; a foreign or damaged record may hold anything in their place."""
    return [item for item in value if isinstance(item, (dict, Mapping))] if isinstance(value, list) else []


def _add_tokens(tokens: dict[str, int], usage: Any) -> None:
    if not isinstance(usage, (dict, Mapping)):
        return
    details = usage.get("completion_tokens_details")
    for name in TOKEN_FIELDS:
        value = usage.get(name)
        if value is None:
            if name != "reasoning_tokens" or details is None or not isinstance(details, (dict, Mapping)):
                continue
            value = details.get(name)
        if _is_count(value):
            tokens[name] += value


def _cached_tokens(usage: Any) -> int:
    """Prompt tokens that the server had in its cache, as far as it says so."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    value = details.get("cached_tokens") if isinstance(details, dict) else None
    return value if _is_count(value) else 0


def _is_count(value: Any) -> TypeGuard[int]:
    """Whether it can be a number of tokens; sums of such numbers are 64-bit numbers still."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def _number(value: Any) -> float | None:
    """A finite number as a float (a truth value as 0 or 1); anything else is absent."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _components(detail: Mapping[str, Any]) -> dict[str, float]:
    pairs = ((name, _number(value)) for name, value in detail.items() if name.startswith("r_"))
    return {name: number for name, number in pairs if number is not None}


def _termination(final: Mapping[str, Any], policy_failures: Mapping[str, int]) -> str:
    # The environment knows one word for both ends, so the step says which one it was.
    if Termination.CONTEXT_OVERFLOW in policy_failures:
        return Termination.CONTEXT_OVERFLOW.value
    reason = final.get("termination_reason") or _object(final.get("reward_detail")).get("termination_reason")
    return str(reason or "unknown")
