"""Function tools of a page, and the way from a tool call to the environment's canonical action.

Canonical actions are ``search[<query>]`` and ``click[<value>]``, both trimmed. Whether an action is allowed is the server's word
alone: a click outside the offered values is sent on. What breaks the *tool* protocol never reaches the server; that includes an
argument with nothing left after trimming, for the schema asks for at least one character.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from rayeval.encoding import encode, well_formed
from rayeval.schemas import JsonObject, ModelOutput, ProtocolError, ToolCall

ToolSchema = Literal["dynamic", "static"]
"""``dynamic``: the tools of the page, clicks as an enum. ``static``: both tools in every turn and no enum, so a conversation only grows."""

FEEDBACK_INSTRUCTION = "Answer again with exactly one call of an available tool, valid JSON arguments, and no other text."

_ARGUMENT = {"search": "query", "click": "value"}

# first words that the search engine takes for commands: random results, attribute and category listings
_HIDDEN_VERB = re.compile(r"(search\s*\[\s*)<([rac])>(?=\s|\]|\\n|$)", re.IGNORECASE)


_TEXT = frozenset({str})


class ToolSet(NamedTuple):
    """The tools of one turn."""

    tools: list[JsonObject]
    encoded: bytes
    """``tools`` as JSON."""
    names: tuple[str, ...]


def _function(name: str, description: str, argument: JsonObject) -> JsonObject:
    key = _ARGUMENT[name]
    parameters = {"type": "object", "properties": {key: argument}, "required": [key], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_QUERY = {"type": "string", "minLength": 1, "description": "What to search for."}
_SEARCH = _function("search", "Search the shop's products.", _QUERY)
_CLICK_TEXT = "Click one of the things that can be clicked on the current page."


def _tool_set(*tools: JsonObject) -> ToolSet:
    listed = list(tools)
    return ToolSet(listed, encode(listed), tuple(t["function"]["name"] for t in listed))


def _click(argument: JsonObject) -> JsonObject:
    return _function("click", _CLICK_TEXT, argument)


_SEARCH_ONLY = _tool_set(_SEARCH)
STATIC_TOOLS = _tool_set(_SEARCH, _click({"type": "string", "minLength": 1, "description": "The label exactly as the page shows it."}))


class PageWithoutToolsError(ValueError):
    """A page that was not said to be the last and that offers nothing to do."""


def tools_for(state: JsonObject, schema: ToolSchema = "dynamic") -> ToolSet:
    """Tools of the page with this ``observation_state``.

    Raises PageWithoutToolsError when the page allows neither a search nor a click, or its ``actions`` are not a list of strings
    (with either schema: the verdict on a page must not depend on how it is shown).
    """
    actions = state.get("actions") or []
    if not isinstance(actions, list) or not (set(map(type, actions)) <= _TEXT or all(isinstance(a, str) for a in actions)):
        raise PageWithoutToolsError(f"observation_state.actions must be a list of strings, got {str(actions)[:200]!r}")
    searchable = state.get("search_available") is True
    if not searchable and not actions:
        raise PageWithoutToolsError(
            f"page {state.get('page_type')!r} offers neither a search nor anything to click, and the episode is not done"
        )
    if schema == "static":
        return STATIC_TOOLS
    if not actions:
        return _SEARCH_ONLY
    click = _click({"type": "string", "enum": list(dict.fromkeys(actions))})  # an enum with repeats is refused by some servers
    return _tool_set(_SEARCH, click) if searchable else _tool_set(click)


def protocol_error_of(output: ModelOutput, offered: ToolSet) -> ProtocolError | None:
    """What is wrong with an answer: the adapter's finding, else the runtime's own (for models whose adapter does not check)."""
    if output.protocol_error is not None:
        return output.protocol_error
    calls = output.tool_calls
    if len(calls) != 1:
        return ProtocolError("tool_call_count", f"Expected exactly one tool call, got {len(calls)}.")
    if output.content is not None and output.content.strip():
        return ProtocolError("mixed_content", "The answer mixes visible text with a tool call.")
    if calls[0].name not in offered.names:
        return ProtocolError("unavailable_tool", f"Tool {calls[0].name[:80]!r} is not available on this page.")
    return None


def action_of(call: ToolCall) -> str | ProtocolError:
    """The canonical action of a call, or ``invalid_tool_arguments``. ``call.name`` is one of the tools above."""
    key = _ARGUMENT[call.name]
    value: Any = call.arguments.get(key)
    if set(call.arguments) != {key} or not isinstance(value, str):
        return ProtocolError("invalid_tool_arguments", f"{call.name} takes exactly one argument, the string {key!r}.")
    trimmed = well_formed(value).strip()
    if not trimmed:
        return ProtocolError("invalid_tool_arguments", f"The argument {key!r} of {call.name} is empty.")
    return f"{call.name}[{trimmed}]"


def sent_form(action: str) -> str:
    """The action as it is sent: a first word ``<r>``, ``<a>`` or ``<c>`` of a query loses its brackets.

    In any case of letters, and wherever the server could find a search in the text (it also takes a line ``Action: search[...]``).
    """
    return _HIDDEN_VERB.sub(r"\1\2", action) if "<" in action else action


def protocol_feedback(error: ProtocolError, offered: ToolSet) -> JsonObject:
    """What the model is told after a protocol error."""
    return {
        "type": "tool_protocol_error",
        "code": error.code,
        "message": error.message,
        "instruction": FEEDBACK_INSTRUCTION,
        "available_tools": list(offered.names),
    }
