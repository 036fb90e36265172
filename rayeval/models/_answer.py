"""From the bytes of a 200 to a ``ModelOutput``: the tool protocol and its checks.

The first check that an answer fails names its error, in this order; none is a reason to ask again, each costs one step:

    invalid_json_response    not one JSON document: HTML, an event stream, cut short, not UTF-8, NaN, too deep
    invalid_response_body    JSON, but no object
    missing_choices          ``choices`` is no list, or empty
    invalid_choice           the first choice is no object
    invalid_message          its ``message`` is no object, or ``content`` neither text nor null
    invalid_tool_calls       ``tool_calls`` is neither a list nor null
    for each call in turn:
    invalid_tool_call        no object, or of a type other than ``function``
    missing_function  missing_tool_call_id  missing_tool_name
    invalid_arguments_type   arguments are no string
    invalid_arguments_json   the string is not JSON, or too deep
    invalid_arguments_object it is JSON, but no object
    unavailable_tool         the name is none of the tools offered
    [length]                 cut at ``max_tokens``: one good call counts as an answer, none or several end the episode
    tool_call_count          several calls, or visible text without a call
    mixed_content            visible text beside the call
    empty_response           nothing visible and no call

Whatever calls could be decoded stay in ``tool_calls`` beside an error, for the runtime replies to each of them. Nothing
here raises, whatever the bytes; everything it gives can be written with orjson.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson

from rayeval.encoding import json_kind
from rayeval.models._secrets import Scrubber
from rayeval.schemas import JsonObject, ModelOutput, ModelRetry, ProtocolError, Termination, ToolCall

DEEPEST = 100
"""Levels of nesting taken from a server; orjson reads 1024 but writes only 254, and a trace adds some of its own."""
RAW_TEXT_CHARS = 64 * 1024
RAW_JSON_BYTES = 1024 * 1024
"""A rejected answer larger than this is kept as cut text, not as JSON."""
NAME_CHARS = 80
"""What is quoted of a name that the model made up."""


def read_answer(
    body: bytes,
    offered: Collection[str],
    scrubber: Scrubber,
    latency_ms: float,
    retries: tuple[ModelRetry, ...] = (),
    metadata: JsonObject | None = None,
) -> ModelOutput:
    """Decode the body of a 200. ``offered``: names of the tools of this turn. ``metadata`` is filled up and kept."""
    metadata = {} if metadata is None else metadata
    suspect = scrubber.suspects(body)
    payload: Any = None
    failure: ProtocolError | None = None
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        failure = ProtocolError("invalid_json_response", f"the response body is not JSON: {error.msg}")
    else:
        if _too_deep(body, payload):
            failure = ProtocolError("invalid_json_response", f"the response body is nested deeper than {DEEPEST} levels")
            payload = None
        elif suspect:
            payload = scrubber.value(payload)

    content: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    calls: tuple[ToolCall, ...] = ()
    if failure is None:
        choice, failure = _first_choice(payload)
        if choice is not None:
            given = choice.get("finish_reason")
            finish_reason = given if isinstance(given, str) else None
            message = choice.get("message")
            if isinstance(message, dict):
                content, reasoning, calls, failure = _read_message(message, offered)
            else:
                failure = ProtocolError("invalid_message", "the first choice has no message object")

    policy_failure: ProtocolError | None = None
    if failure is None and finish_reason == "length" and len(calls) != 1:
        policy_failure = ProtocolError(
            Termination.GENERATION_LENGTH.value,
            f"the answer was cut at max_tokens with {len(calls)} complete tool calls in it; exactly one counts",
        )
    elif failure is None:
        failure = _check_turn(content, calls)

    envelope = payload if isinstance(payload, dict) else {}
    usage = envelope.get("usage")
    response_id = envelope.get("id")
    for key in ("model", "system_fingerprint"):
        if isinstance(envelope.get(key), str):
            metadata[key] = envelope[key]
    rejected = failure is not None or policy_failure is not None
    return ModelOutput(
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        finish_reason=finish_reason,
        usage=usage if isinstance(usage, dict) else {},
        response_id=response_id if isinstance(response_id, str) else None,
        latency_ms=latency_ms,
        protocol_error=failure,
        policy_failure=policy_failure,
        raw_response=raw_body(body, payload, scrubber) if rejected else None,
        retries=retries,
        metadata=metadata,
    )


def raw_body(body: bytes, payload: Any, scrubber: Scrubber) -> Any:
    """What a trace keeps of a rejected body: ``payload`` (parsed, clean) where its size is bearable, else cut text."""
    if payload is not None and len(body) <= RAW_JSON_BYTES:
        return payload
    # Cleaned before it is cut: half a key would not be found.
    return scrubber.text(body.decode("utf-8", "replace"))[:RAW_TEXT_CHARS]


def parse_clean(body: bytes, scrubber: Scrubber) -> Any:
    """The body of an error as clean JSON, or None when it is none that can be kept."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if _too_deep(body, payload):
        return None
    return scrubber.value(payload) if scrubber.suspects(body) else payload


def _first_choice(payload: Any) -> tuple[dict[str, Any] | None, ProtocolError | None]:
    if not isinstance(payload, dict):
        return None, ProtocolError("invalid_response_body", f"the response body is {json_kind(payload)}, not an object")
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices:
        return None, ProtocolError("missing_choices", "the response has no choices")
    if not isinstance(choices[0], dict):
        return None, ProtocolError("invalid_choice", f"the first choice is {json_kind(choices[0])}, not an object")
    return choices[0], None


def _read_message(
    message: dict[str, Any], offered: Collection[str]
) -> tuple[str | None, str | None, tuple[ToolCall, ...], ProtocolError | None]:
    content = message.get("content")
    reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    if content is not None and not isinstance(content, str):
        failure = ProtocolError("invalid_message", f"the message's content is {json_kind(content)}, not text or null")
        return None, reasoning, (), failure
    given = message.get("tool_calls")
    if given is None:
        return content, reasoning, (), None
    if not isinstance(given, list):
        return content, reasoning, (), ProtocolError("invalid_tool_calls", f"tool_calls is {json_kind(given)}, not a list")
    calls = []
    failure_found: ProtocolError | None = None
    for number, entry in enumerate(given, 1):
        call = _read_call(entry, number, offered)
        if isinstance(call, ToolCall):
            calls.append(call)
            if call.name not in offered and failure_found is None:
                names = ", ".join(sorted(offered)) or "none"
                failure_found = ProtocolError(
                    "unavailable_tool",
                    f"tool call {number} names {call.name[:NAME_CHARS]!r}; the tools of this turn: {names}",
                )
        elif failure_found is None:
            failure_found = call
    return content, reasoning, tuple(calls), failure_found


def _read_call(entry: Any, number: int, offered: Collection[str]) -> ToolCall | ProtocolError:
    if not isinstance(entry, dict) or entry.get("type") != "function":
        return ProtocolError("invalid_tool_call", f"tool call {number} is not an object of type function")
    function = entry.get("function")
    if not isinstance(function, dict):
        return ProtocolError("missing_function", f"tool call {number} has no function object")
    call_id, name, raw = entry.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(call_id, str) or not call_id:
        return ProtocolError("missing_tool_call_id", f"tool call {number} has no id")
    if not isinstance(name, str) or not name:
        return ProtocolError("missing_tool_name", f"tool call {number} has no function name")
    if not isinstance(raw, str):
        return ProtocolError("invalid_arguments_type", f"the arguments of tool call {number} are not a JSON string")
    try:
        arguments = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return ProtocolError("invalid_arguments_json", f"the arguments of tool call {number} are not valid JSON: {error.msg}")
    if not isinstance(arguments, dict):
        return ProtocolError("invalid_arguments_object", f"the arguments of tool call {number} are {json_kind(arguments)}, not an object")
    if _too_deep(raw, arguments):
        return ProtocolError("invalid_arguments_json", f"the arguments of tool call {number} are nested deeper than {DEEPEST} levels")
    return ToolCall(call_id, name, arguments, raw)


def _check_turn(content: str | None, calls: tuple[ToolCall, ...]) -> ProtocolError | None:
    visible = content is not None and bool(content.strip())
    if len(calls) > 1:
        return ProtocolError("tool_call_count", f"{len(calls)} tool calls in one turn; give exactly one")
    if not calls and visible:
        return ProtocolError("tool_call_count", "text without a tool call; give exactly one tool call")
    if visible:
        return ProtocolError("mixed_content", "visible text beside the tool call; give the tool call alone")
    if not calls:
        return ProtocolError("empty_response", "neither text nor a tool call; give exactly one tool call")
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _too_deep(text: bytes | str, value: Any) -> bool:
    # Counting brackets is a search of memory; walking the value is left for the few texts that are full of them.
    opened = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if opened <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True
