"""A model by turns and a world of one shop, for tests of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from rayeval.environments import EnvironmentTimeouts, FakeEnvironment
from rayeval.exceptions import FencedError
from rayeval.models.base import ModelRequest
from rayeval.prompts import PromptBuilder
from rayeval.runtime import AgentRuntime, RuntimeSettings
from rayeval.schemas import (
    EnvironmentIdentity,
    EpisodeJob,
    FinishedTrace,
    JsonObject,
    Lease,
    ModelOutput,
    Skill,
    ToolCall,
)
from rayeval.skills import NoSkills, SkillProvider

JOB = EpisodeJob(4, 1, 1000, "val")
SERVER = "fake://shop"
Turn = Callable[[ModelRequest], Any]


class TurnModel:
    """A ``ChatModel`` of one function; keeps what it was asked."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.asked: list[tuple[list[bytes], int, str | None]] = []

    def identity(self) -> JsonObject:
        return {"provider": "turns", "model": "m"}

    def transport_identity(self) -> JsonObject:
        return {"timeout_seconds": 9}

    async def generate(self, request: ModelRequest, endpoint: str | None = None) -> ModelOutput:
        self.asked.append((list(request.messages), request.seed, endpoint))
        answer = self.turn(request)
        if asyncio.iscoroutine(answer):
            answer = await answer
        assert isinstance(answer, ModelOutput)
        return answer

    async def aclose(self) -> None:
        """Nothing to close."""


def made(name: str, value: Any, key: str | None = None, call_id: str = "c") -> ToolCall:
    arguments = {key or {"search": "query"}.get(name, "value"): value}
    return ToolCall(call_id, name, arguments, orjson.dumps(arguments).decode())


def said(*calls: ToolCall, **fields: Any) -> ModelOutput:
    start: dict[str, Any] = {"content": None, "reasoning": "thinking", "usage": {"total_tokens": 3}, "response_id": "r", "latency_ms": 1.5}
    return ModelOutput(tool_calls=calls, finish_reason="tool_calls", **{**start, **fields})


def shopper(request: ModelRequest) -> ModelOutput:
    """Buys the second product with its second option: the right one for task 4."""
    state = request.context["observation_state"]
    if state["search_available"]:
        return said(made("search", "风扇"))
    actions = state["actions"]
    return said(made("click", "buy now" if "buy now" in actions else actions[2]))


def script(*turns: ModelOutput | Exception | Turn) -> Turn:
    """These turns, then the shopper."""
    left = list(turns)

    def turn(request: ModelRequest) -> Any:
        if not left:
            return shopper(request)
        now = left.pop(0)
        if isinstance(now, Exception):
            raise now
        return now if isinstance(now, ModelOutput) else now(request)

    return turn


class World:
    """A runtime on a fake environment."""

    def __init__(self, turn: Turn = shopper, hook: Any = None, skills: SkillProvider | None = None, **settings: Any) -> None:
        self.model = TurnModel(turn)
        self.environment = FakeEnvironment(hook=hook, timeouts=EnvironmentTimeouts(reset_timeout_s=5))
        self.runtime = AgentRuntime(
            self.model, PromptBuilder("PROMPT"), skills or NoSkills(), RuntimeSettings(**settings), {"plan_fingerprint": "f" * 64}
        )
        self.leases: list[str] = []
        self.events: list[tuple[str, JsonObject]] = []
        self.fenced = False

    def _on_lease(self, word: str, lease: Lease) -> None:
        self.leases.append(word)

    def _guard(self) -> None:
        if self.fenced:
            raise FencedError("no longer ours")

    async def run(self, job: EpisodeJob = JOB, attempt: int = 1, pinned: EnvironmentIdentity | None = None) -> FinishedTrace:
        return await self.runtime.run(
            job,
            attempt,
            self.environment.open(job, SERVER, self._on_lease, self._guard),
            endpoint="http://me:secret@model:8000/v1?key=secret",
            server=SERVER,
            environment_identity=self.environment.identity(),
            pinned=pinned or EnvironmentIdentity(),
            on_event=lambda kind, what: self.events.append((kind, what)),
        )

    async def trace(self, **options: Any) -> dict[str, Any]:
        finished = await self.run(**options)
        assert finished.line.endswith(b"\n")
        assert finished.line.count(b"\n") == 1
        trace: dict[str, Any] = orjson.loads(finished.line)
        assert (trace["status"], trace["episode_id"]) == (finished.status, finished.episode_id)
        assert self.leases in ([], ["held", "ended"])
        return trace


def calls_of(world: World) -> list[str]:
    return [call.name for call in world.environment.calls]


class OneSkill:
    def __init__(self) -> None:
        self.context: JsonObject = {}

    def select(self, context: JsonObject) -> list[Skill]:
        self.context = context
        return [Skill("s1", "look twice", metadata={"k": 1})]

    def identity(self) -> JsonObject:
        return {"provider": "one"}
