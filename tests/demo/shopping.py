"""Plays an episode in memory: the shop's rules and a shopper, without HTTP."""

import json
from typing import Any, NamedTuple

from rayeval.demo import policy
from rayeval.demo.policy import Habits
from rayeval.demo.shop import Session, Shop
from rayeval.hashing import episode_seed, step_seed

MAX_STEPS = 30


class Played(NamedTuple):
    """How an episode went."""

    reward: float
    reason: str
    steps: int
    protocol_errors: int
    invalid_actions: int
    session: Session
    messages: list[dict[str, Any]]


def function_tool(name: str, key: str, enum: list[str] | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"} if enum is None else {"type": "string", "enum": enum}
    parameters = {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STATIC_TOOLS = [function_tool("search", "query"), function_tool("click", "value")]


def tools_for(state: dict[str, Any], static: bool) -> list[dict[str, Any]]:
    if static:
        return STATIC_TOOLS
    search = [function_tool("search", "query")] if state["search_available"] else []
    return search + ([function_tool("click", "value", state["actions"])] if state["actions"] else [])


def opening_messages(session: Session, persona: bool = True) -> list[dict[str, Any]]:
    opening = session.opening(persona, False)
    profile = json.dumps(opening["user_persona"], ensure_ascii=False, sort_keys=True)
    task = f"Shopping task:\n{opening['task_instruction']}\n\n{opening['observation']}"
    return [{"role": "system", "content": f"Shop well.\n\n{profile}"}, {"role": "user", "content": task}]


def _good_call(answer: policy.Answer) -> tuple[str, str] | None:
    if len(answer.calls) != 1 or answer.calls[0][0] not in ("search", "click"):
        return None
    try:
        (argument,) = json.loads(answer.calls[0][1]).values()
    except ValueError:
        return None
    return answer.calls[0][0], argument


def play(shop: Shop, task_id: int, sample_id: int, habits: Habits | None, *, static: bool = False, persona: bool = True) -> Played:
    session = shop.open(task_id)
    messages = opening_messages(session, persona)
    seed = episode_seed(20260828, task_id, sample_id)
    errors = invalid = 0
    for step in range(1, MAX_STEPS + 1):
        answer = policy.shop(messages, tools_for(session.state, static), step_seed(seed, step), habits)
        if answer.finish_reason == "length":
            result = session.terminate("generation_length")
            return Played(result["reward"], "generation_length", step, errors, invalid, session, messages)
        call = _good_call(answer)
        if call is None:
            errors += 1
            messages.append({"role": "user", "content": '{"type":"tool_protocol_error","code":"tool_call_count"}'})
            continue
        result = session.interact(f"{call[0]}[{call[1]}]")
        invalid += not result["action_feedback"]["valid"]
        function = {"name": call[0], "arguments": answer.calls[0][1]}
        made = {"id": f"call_{step}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"call_{step}", "content": result["observation"]})
        if result["done"]:
            reason = result["termination_reason"]
            return Played(result["reward"], reason, step, errors, invalid, session, messages)
    result = session.terminate("action_limit")
    return Played(result["reward"], "action_limit", MAX_STEPS, errors, invalid, session, messages)
