"""A ``ChatModel`` that is a function: for tests, examples and runs without a model server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from rayeval.exceptions import EpisodeDeadlineError
from rayeval.models._answer import read_answer
from rayeval.models._secrets import Scrubber
from rayeval.models.base import ModelRequest
from rayeval.schemas import ErrorKind, JsonObject, ModelOutput

Answer = ModelOutput | JsonObject | bytes | str
"""An output as it is; an assistant message (``call``); the body of a 200; or visible text without a call."""
Script = Callable[[list[JsonObject], Sequence[JsonObject], int], Answer | Awaitable[Answer]]
"""(messages, tools, seed) -> an answer. May be asynchronous; an exception leaves ``generate`` as it is."""


def call(name: str, arguments: JsonObject, *, call_id: str = "call-1", reasoning: str | None = None) -> JsonObject:
    """An assistant message with one tool call."""
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    message: JsonObject = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


def completion(message: JsonObject, *, finish_reason: str | None = None, usage: JsonObject | None = None) -> bytes:
    """The body of a 200 around ``message``, as an OpenAI-compatible server writes it."""
    if finish_reason is None:
        finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
    return orjson.dumps(
        {
            "id": "scripted",
            "object": "chat.completion",
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": usage if usage is not None else {},
        }
    )


def first_offered(messages: list[JsonObject], tools: Sequence[JsonObject], seed: int) -> JsonObject:
    """A policy that always makes one valid call: a tool picked by the seed, each required argument the first that its
    schema allows. What ``model.provider: scripted`` runs."""
    function = tools[seed % len(tools)]["function"]
    schema = function["parameters"]
    arguments = {name: _first_value(schema["properties"][name], seed) for name in schema.get("required", ())}
    return call(function["name"], arguments, call_id=f"call-{len(messages)}")


def _first_value(schema: JsonObject, seed: int) -> Any:
    if schema.get("enum"):
        return schema["enum"][seed % len(schema["enum"])]
    return {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}.get(schema.get("type", ""), "a")


class ScriptedModel:
    """``script`` answers each turn; what it gives goes through the same checks as a server's answer.

    ``requests`` lists (messages, tools, seed, endpoint) of every turn; with ``record`` off it stays empty, for long runs.
    """

    def __init__(self, script: Script = first_offered, name: str = "scripted", record: bool = True) -> None:
        self._script = script
        self._name = name
        self._record = record
        self._scrub = Scrubber(None)
        self.requests: list[tuple[list[JsonObject], Sequence[JsonObject], int, str | None]] = []
        self.closed = False

    def identity(self) -> JsonObject:
        return {"provider": "scripted", "model": self._name, "sampling": {}}

    def transport_identity(self) -> JsonObject:
        return {}

    async def generate(self, request: ModelRequest, endpoint: str | None = None) -> ModelOutput:
        """As ``ChatModel.generate``. Raises EpisodeDeadlineError when the script is not done by the deadline."""
        started = time.monotonic()
        messages = [orjson.loads(message) for message in request.messages]
        if self._record:
            self.requests.append((messages, request.tools, request.seed, endpoint))
        bound = asyncio.timeout(request.deadline - started)
        try:
            async with bound:
                given = self._script(messages, request.tools, request.seed)
                answer = await given if inspect.isawaitable(given) else given
        except TimeoutError:
            if not bound.expired():
                raise
            message = "the episode's deadline passed within a scripted model call"
            raise EpisodeDeadlineError(message, ErrorKind.EPISODE_TIMEOUT, True) from None
        if isinstance(answer, ModelOutput):
            return answer
        if isinstance(answer, str):
            answer = {"role": "assistant", "content": answer}
        body = answer if isinstance(answer, bytes) else completion(answer)
        offered = [tool["function"]["name"] for tool in request.tools]
        return read_answer(body, offered, self._scrub, (time.monotonic() - started) * 1e3)

    async def aclose(self) -> None:
        self.closed = True
