"""Messages, tools and results in the form that the GenAI conventions give them: JSON text in an attribute.

Only for runs that opted in twice (``content_wanted``), and only through the run's ``Scrub``. Bounded: a text is cut at 8,000
characters, a history keeps its newest 64,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rayeval.encoding import encode
from rayeval.otel.reading import NAME_CHARS, objects_of
from rayeval.scrub import Scrub

TEXT_CHARS = 8_000
HISTORY_CHARS = 64_000
CUT = " … (cut)"

_YES = frozenset({"true", "1", "yes", "span_only", "span_and_event"})
"""Words of the variable that ask for content on spans; ``event_only`` and ``no_content`` do not."""


def content_wanted(word: str | None) -> bool:
    """Whether the value of ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` asks for content on spans."""
    return word is not None and word.strip().lower() in _YES


class Content:
    """Builds the attribute texts. Takes whatever stands in a trace; what is odd is left out."""

    def __init__(self, scrub: Scrub) -> None:
        self._scrub = scrub

    def system_instructions(self, conversation: Sequence[Any]) -> str | None:
        """The system messages as parts; None without any."""
        parts = [self._text(m["content"]) for m in _of_role(conversation, "system") if isinstance(m.get("content"), str)]
        return _json(parts) if parts else None

    def input_messages(self, conversation: Sequence[Any]) -> tuple[str | None, int]:
        """-> (everything but the system messages, how many of the oldest were left out)."""
        messages = [m for m in (self._message(m) for m in conversation if isinstance(m, Mapping) and m.get("role") != "system") if m]
        kept: list[bytes] = []
        room = HISTORY_CHARS
        for message in reversed(messages):
            encoded = encode(message)
            room -= len(encoded)
            if kept and room < 0:
                break
            kept.append(encoded)
        if not kept:
            return None, 0
        return (b"[" + b",".join(reversed(kept)) + b"]").decode(), len(messages) - len(kept)

    def output_messages(self, model: Mapping[str, Any]) -> str:
        """One answer of the model, from ``steps[].model``."""
        parts = []
        if isinstance(model.get("reasoning"), str):
            parts.append({**self._text(model["reasoning"]), "type": "reasoning"})
        if isinstance(model.get("content"), str) and model["content"]:
            parts.append(self._text(model["content"]))
        for call in objects_of(model.get("tool_calls")):
            parts.append(self._call(call.get("call_id"), call.get("name"), call.get("arguments")))
        message: dict[str, Any] = {"role": "assistant", "parts": parts}
        if isinstance(model.get("finish_reason"), str):
            message["finish_reason"] = self._word(model["finish_reason"])
        return _json([message])

    def tool_definitions(self, tools: Any) -> str | None:
        """The tools offered in one turn."""
        offered = [t for t in objects_of(tools) if t]
        text = _json(self._scrub.value(offered)) if offered else None
        return text if text is None or len(text) <= HISTORY_CHARS else None

    def arguments(self, value: Any) -> str:
        """The arguments of a call."""
        return _cut(_json(self._scrub.value(value)))

    def result(self, page: Any) -> str | None:
        """What a step gave: the page as the model reads it."""
        return _cut(self._scrub.text(page)) if isinstance(page, str) else None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            return None
        if role == "tool":
            answer = {"type": "tool_call_response", "id": self._word(message.get("tool_call_id")), "result": self.result(content)}
            return {"role": role, "parts": [answer]}
        parts = [self._text(content)] if isinstance(content, str) and content else []
        for call in objects_of(message.get("tool_calls")):
            function = call.get("function")
            function = function if isinstance(function, Mapping) else {}
            parts.append(self._call(call.get("id"), function.get("name"), _parsed(function.get("arguments"))))
        return {"role": self._word(role), "parts": parts} if parts else None

    def _word(self, value: Any) -> str | None:
        return self._scrub.text(value)[:NAME_CHARS] if isinstance(value, str) else None

    def _text(self, text: str) -> dict[str, Any]:
        return {"type": "text", "content": _cut(self._scrub.text(text))}

    def _call(self, call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
        arguments = self._scrub.value(arguments)
        return {
            "type": "tool_call",
            "id": self._word(call_id),
            "name": self._word(name),
            "arguments": arguments if len(_json(arguments)) <= TEXT_CHARS else _cut(_json(arguments)),
        }


def messages_before(conversation: Sequence[Any], steps: Sequence[Mapping[str, Any]]) -> list[int]:
    """For each step, how many messages of the conversation its turn was asked with. Follows what ``runtime`` appends: an answer and a
    page; after a protocol error the answer with one message for each decoded call, or its visible text and a user message."""
    counts, at = [], 2
    for step in steps:
        counts.append(min(at, len(conversation)))
        model = step.get("model")
        model = model if isinstance(model, Mapping) else {}
        calls = len(objects_of(model.get("tool_calls")))
        if step.get("protocol_error"):
            visible = isinstance(model.get("content"), str) and bool(model["content"].strip())
            at += 1 + calls if calls else 1 + visible
        elif step.get("environment") is not None:
            at += 2
    return counts


def _of_role(conversation: Sequence[Any], role: str) -> list[Mapping[str, Any]]:
    return [m for m in conversation if isinstance(m, Mapping) and m.get("role") == role]


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _json(value: Any) -> str:
    return encode(value).decode()


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - len(CUT)] + CUT
