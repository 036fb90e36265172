from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rayeval.environments import EnvironmentTimeouts, FakeCall, FakeEnvironment
from rayeval.environments.fake import ENVIRONMENT_VERSION, OBSERVATION_VERSION, REWARD_VERSION
from rayeval.exceptions import ConfigurationError, EnvironmentCallError, FencedError, ModelCallError
from rayeval.hashing import canonical_trace
from rayeval.models.base import ModelRequest
from rayeval.prompts import PromptBuilder
from rayeval.runtime import AgentRuntime, RuntimeSettings
from rayeval.schemas import (
    EnvironmentIdentity,
    EpisodeJob,
    ErrorKind,
    FinishedTrace,
    JsonObject,
    Lease,
    ModelOutput,
    ModelRetry,
    ProtocolError,
    Skill,
    ToolCall,
    Trace,
)
from rayeval.skills import NoSkills, SkillProvider
from tests.waiting import until

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


async def test_a_purchase_gives_a_completed_trace_with_every_key() -> None:
    world = World()
    finished = await world.run(attempt=2)
    trace = orjson.loads(finished.line)
    assert list(trace) == list(Trace.__annotations__)
    assert (trace["schema_version"], trace["attempt"], trace["status"], trace["error"]) == ("rayeval-episode-v1", 2, "completed", None)
    assert trace["job"] == {"task_id": 4, "sample_id": 1, "seed": 1000, "split": "val"}
    assert trace["final"] == trace["steps"][-1]["environment"]
    assert (trace["final"]["termination_reason"], trace["final"]["reward"]) == ("purchase", 1.0)
    assert [step["action"] for step in trace["steps"]][::3] == ["search[风扇]", "click[buy now]"]
    assert finished.identity == EnvironmentIdentity(ENVIRONMENT_VERSION, OBSERVATION_VERSION, REWARD_VERSION)
    assert (finished.error_kind, finished.server, finished.attempt) == (None, SERVER, 2)
    assert finished.figures["reward"] == 1.0
    assert world.leases == ["held", "ended"]


async def test_steps_have_exactly_the_keys_of_the_format() -> None:
    trace = await World().trace()
    for number, step in enumerate(trace["steps"], 1):
        assert list(step) == ["step_index", "observation", "tools", "model", "action", "environment"]
        assert step["step_index"] == number
        assert list(step["model"]) == [
            "content",
            "reasoning",
            "tool_calls",
            "finish_reason",
            "usage",
            "response_id",
            "metadata",
            "latency_ms",
            "protocol_error",
            "policy_failure",
        ]
        assert list(step["model"]["tool_calls"][0]) == ["call_id", "name", "arguments", "raw_arguments"]


async def test_provenance_says_what_played_and_holds_no_secret() -> None:
    trace = await World().trace()
    provenance = trace["provenance"]
    assert sorted(provenance) == ["environment", "model", "package", "plan_fingerprint", "prompt", "runtime", "skills"]
    model = {"provider": "turns", "model": "m", "transport": {"timeout_seconds": 9}, "base_url": "http://model:8000/v1"}
    assert provenance["model"] == model
    assert provenance["environment"]["base_url"] == SERVER
    assert [provenance["environment"][f] for f in EnvironmentIdentity._fields] == [ENVIRONMENT_VERSION, OBSERVATION_VERSION, REWARD_VERSION]
    assert provenance["runtime"] == {"max_steps": 30, "tool_schema": "dynamic", "action_protocol": "rayeval-function-tools-v1"}
    assert b"secret" not in orjson.dumps(trace)


async def test_the_conversation_is_what_was_sent_plus_the_last_exchange() -> None:
    world = World()
    trace = await world.trace()
    sent = [[orjson.loads(m) for m in messages] for messages, _, _ in world.model.asked]
    for before, after in zip(sent, [*sent[1:], trace["conversation"]], strict=True):
        assert after[: len(before)] == before
        assert [m["role"] for m in after[len(before) :]] == ["assistant", "tool"]
    assert [m["role"] for m in sent[0]] == ["system", "user"]
    assert trace["steps"][0]["observation"] == sent[0][1]["content"]
    assert trace["conversation"][-1]["content"] == trace["final"]["observation"]
    assert b"thinking" not in orjson.dumps(trace["conversation"])


async def test_each_turn_has_its_step_seed_and_goes_to_the_given_endpoint() -> None:
    world = World(script(said(content="hm")))
    trace = await world.trace()
    assert [seed for _, seed, _ in world.model.asked] == [1000 + n for n in range(len(trace["steps"]))]
    assert {endpoint for _, _, endpoint in world.model.asked} == {"http://me:secret@model:8000/v1?key=secret"}


async def test_the_model_is_told_the_deadline_of_the_episode() -> None:
    deadlines: list[float] = []

    def turn(request: ModelRequest) -> ModelOutput:
        deadlines.append(request.deadline)
        return shopper(request)

    before = time.monotonic()
    await World(turn, episode_timeout_s=500).run()
    assert len(set(deadlines)) == 1
    assert before + 500 <= deadlines[0] <= time.monotonic() + 500


async def test_equal_jobs_give_equal_canonical_traces() -> None:
    first, second = orjson.loads((await World().run()).line), orjson.loads((await World().run(attempt=3)).line)
    assert canonical_trace(first) == canonical_trace(second)


async def test_static_tools_stay_the_same_all_along() -> None:
    world = World(tool_schema="static")
    trace = await world.trace()
    assert len({orjson.dumps(step["tools"]) for step in trace["steps"]}) == 1
    assert trace["final"]["reward"] == 1.0


@pytest.mark.parametrize(
    ("answer", "code", "roles"),
    [
        (said(content="no call"), "tool_call_count", ["assistant", "user"]),
        (said(content="  "), "tool_call_count", ["user"]),
        (said(made("search", "a"), made("search", "b", call_id="d")), "tool_call_count", ["assistant", "tool", "tool"]),
        (said(made("search", "a"), content="text"), "mixed_content", ["assistant", "tool"]),
        (said(made("search", "a", "wrong")), "invalid_tool_arguments", ["assistant", "tool"]),
        (said(made("search", " ")), "invalid_tool_arguments", ["assistant", "tool"]),
        (said(made("finish", "a")), "unavailable_tool", ["assistant", "tool"]),
        (
            said(protocol_error=ProtocolError("invalid_arguments_json", "m"), raw_response={"id": 1}),
            "invalid_arguments_json",
            ["user"],
        ),
    ],
)
async def test_a_protocol_error_is_fed_back_and_costs_a_step(answer: ModelOutput, code: str, roles: list[str]) -> None:
    world = World(script(answer))
    trace = await world.trace()
    step, following = trace["steps"][:2]
    assert (step["protocol_error"]["code"], step["action"], step["environment"]) == (code, None, None)
    assert step["protocol_feedback"]["type"] == "tool_protocol_error"
    assert step["protocol_feedback"]["available_tools"] == ["search"]
    added = [orjson.loads(m) for m in world.model.asked[1][0][2:]]
    assert [m["role"] for m in added] == roles
    bodies = [m["content"] for m in added if m["role"] != "assistant"]
    assert all(b == orjson.dumps(step["protocol_feedback"]).decode() for b in bodies)
    assert [m["tool_call_id"] for m in added if m["role"] == "tool"] == [c.call_id for c in answer.tool_calls]
    assert following["tools"] == step["tools"]
    assert following["observation"] == step["observation"]
    assert (trace["status"], len(trace["steps"])) == ("completed", 5)
    assert ("raw_response" in step["model"]) == (answer.raw_response is not None)
    assert [kind for kind, _ in world.events].count("protocol_error") == 1


async def test_protocol_errors_to_the_limit_end_in_action_limit() -> None:
    world = World(lambda request: said(content="no"), max_steps=3)
    trace = await world.trace()
    assert (trace["status"], trace["final"]["termination_reason"], len(trace["steps"])) == ("completed", "action_limit", 3)
    assert calls_of(world) == ["reset", "terminate", "close"]


@pytest.mark.parametrize("code", ["generation_length", "context_overflow"])
async def test_a_policy_failure_ends_the_episode_at_once_scored(code: str) -> None:
    world = World(script(shopper, said(policy_failure=ProtocolError(code, "m"), raw_response={"x": 1})))
    finished = await world.run()
    trace = orjson.loads(finished.line)
    step = trace["steps"][-1]
    assert (step["policy_failure"]["code"], step["action"], step["environment"]) == (code, None, None)
    assert step["model"]["raw_response"] == {"x": 1}
    assert (trace["status"], trace["final"]["termination_reason"]) == ("completed", "generation_length")
    assert [c.argument for c in world.environment.calls if c.name == "terminate"] == ["generation_length"]
    assert finished.figures["termination"] == code


async def test_a_click_that_is_not_offered_is_sent_on() -> None:
    trace = await World(script(shopper, said(made("click", " nowhere ")))).trace()
    assert trace["steps"][1]["action"] == "click[nowhere]"
    assert trace["steps"][1]["environment"]["action_feedback"]["reason"] == "unavailable_action"


async def test_a_hidden_search_verb_is_kept_beside_what_was_sent() -> None:
    world = World(script(said(made("search", "<r> fan"))))
    trace = await world.trace()
    assert (trace["steps"][0]["action"], trace["steps"][0]["sent_action"]) == ("search[<r> fan]", "search[r fan]")
    assert world.environment.calls[1].argument == "search[r fan]"
    assert "sent_action" not in trace["steps"][1]


async def test_retries_are_recorded_and_a_time_out_marks_the_step() -> None:
    retried = said(made("search", "a"), retries=(ModelRetry("status_500", 0.5), ModelRetry("timeout", 1.0)))
    trace = await World(script(retried)).trace()
    assert trace["steps"][0]["model"]["retries"] == [{"cause": "status_500", "waited_s": 0.5}, {"cause": "timeout", "waited_s": 1.0}]
    assert trace["steps"][0]["resampled"] == "timeout"
    assert "resampled" not in trace["steps"][1]
    assert "retries" not in trace["steps"][1]["model"]


async def test_text_that_utf_8_cannot_hold_does_not_cost_the_episode() -> None:
    odd = ToolCall("c\ud800", "search", {"query": "x\ud800"}, '{"query": "x\\ud800"}')
    trace = await World(script(said(odd, reasoning="\udfff", metadata={"n": 10**30}))).trace()
    assert trace["status"] == "completed"
    assert trace["steps"][0]["action"] == "search[x\ufffd]"
    assert trace["steps"][0]["model"]["reasoning"] == "\ufffd"


class OneSkill:
    def __init__(self) -> None:
        self.context: JsonObject = {}

    def select(self, context: JsonObject) -> list[Skill]:
        self.context = context
        return [Skill("s1", "look twice", metadata={"k": 1})]

    def identity(self) -> JsonObject:
        return {"provider": "one"}


async def test_skills_enter_the_system_message_and_the_trace() -> None:
    skills = OneSkill()
    trace = await World(skills=skills).trace()
    assert "look twice" in trace["conversation"][0]["content"]
    assert list(trace["selected_skills"][0]) == ["skill_id", "content", "version", "metadata", "content_sha256"]
    assert set(skills.context) == {"task_id", "sample_id", "split", "task_instruction", "user_persona", "observation_state", "task_mode"}


@pytest.mark.parametrize(("persona", "shown"), [(True, True), (False, False)])
async def test_the_persona_is_shown_in_persona_mode_only(persona: bool, shown: bool) -> None:
    world = World()
    world.environment.persona = persona
    trace = await world.trace()
    assert ("u-04" in trace["conversation"][0]["content"]) is shown
    assert trace["reset"]["user_persona"] == {"user_id": "u-04"}


REFUSED = EnvironmentCallError("unknown task", ErrorKind.ENVIRONMENT_REFUSED, False)
CRASHED = EnvironmentCallError("crash", ErrorKind.ENVIRONMENT_ERROR, True)


def at(name: str, action: Any, number: int = 0) -> Callable[[FakeCall], Any]:
    """A hook that acts on one call: raises an exception, gives a result, or awaits what a function returns."""

    def hook(call: FakeCall) -> Any:
        if (call.name, call.number) != (name, number):
            return None
        if isinstance(action, BaseException):
            raise action
        return action() if callable(action) else action

    return hook


PAGE = {"observation": "p", "observation_state": {"observation_version": OBSERVATION_VERSION, "search_available": True, "actions": []}}
EMPTY_PAGE = {
    **PAGE,
    "observation_state": {"observation_version": OBSERVATION_VERSION, "search_available": False, "actions": []},
    "done": False,
}
OTHER_VERSION = {**PAGE, "observation_state": {**PAGE["observation_state"], "observation_version": "v0"}, "done": False}  # type: ignore[dict-item]
MODEL_DOWN = ModelCallError("down", ErrorKind.MODEL_UNAVAILABLE, True, (ModelRetry("connect", 0.5),))


@pytest.mark.parametrize(
    ("turn", "hook", "stage", "kind", "retryable"),
    [
        (shopper, at("reset", REFUSED), "reset", "environment_refused", False),
        (shopper, at("reset", {"observation": "p"}), "reset", "environment_error", True),
        (shopper, at("reset", ValueError("bug")), "reset", "internal", True),
        (script(MODEL_DOWN), None, "model_step_1", "model_unavailable", True),
        (script(shopper, KeyError("bug")), None, "model_step_2", "internal", True),
        (shopper, at("step", CRASHED, 1), "environment_step_2", "environment_error", True),
        (shopper, at("step", {**PAGE, "done": "yes"}), "environment_step_1", "environment_error", True),
        (shopper, at("step", {**PAGE, "done": True, "reward": float("nan")}), "environment_step_1", "environment_error", True),
        (shopper, at("step", EMPTY_PAGE), "model_step_2", "environment_error", True),
        (shopper, at("step", OTHER_VERSION), "environment_step_1", "environment_changed", True),
        (
            script(said(policy_failure=ProtocolError("generation_length", "m"))),
            at("terminate", CRASHED),
            "policy_termination_step_1",
            "environment_error",
            True,
        ),
        (lambda request: said(content="x"), at("terminate", CRASHED), "action_limit_termination", "environment_error", True),
        (
            lambda request: said(content="x"),
            at("terminate", {**PAGE, "done": False}),
            "action_limit_termination",
            "environment_error",
            True,
        ),
    ],
)
async def test_what_fails_is_told_by_stage_and_kind(turn: Turn, hook: Any, stage: str, kind: str, retryable: bool) -> None:
    finished = await World(turn, hook, max_steps=5).run()
    trace = orjson.loads(finished.line)
    assert (trace["status"], trace["error"]["stage"], trace["error"]["kind"]) == ("failed", stage, kind)
    assert (finished.error_kind, finished.retryable, trace["error"]["retryable"]) == (kind, retryable, retryable)
    assert ("traceback" in trace["error"]) == (kind == "internal")
    assert finished.figures["completed"] is False
    assert (trace["reset"] is None) == (stage == "reset")


async def test_a_failed_skill_selection_has_its_own_stage() -> None:
    class Broken(OneSkill):
        def select(self, context: JsonObject) -> list[Skill]:
            raise LookupError("no index")

    trace = await World(skills=Broken()).trace()
    assert (trace["error"]["stage"], trace["error"]["type"]) == ("skill_selection", "LookupError")


async def test_a_model_that_is_down_leaves_its_retries_in_the_error() -> None:
    trace = await World(script(MODEL_DOWN)).trace()
    assert trace["error"]["model_retries"] == [{"cause": "connect", "waited_s": 0.5}]
    assert trace["steps"] == []


async def test_an_action_whose_answer_was_lost_stays_in_the_trace() -> None:
    trace = await World(shopper, at("step", CRASHED)).trace()
    assert (trace["steps"][0]["action"], trace["steps"][0]["environment"], trace["final"]) == ("search[风扇]", None, None)


@pytest.mark.parametrize(
    ("pinned", "stage"),
    [
        (EnvironmentIdentity("other", None, None), "reset"),
        (EnvironmentIdentity(None, "other", None), "reset"),
        (EnvironmentIdentity(None, None, "other"), "environment_step_4"),
    ],
)
async def test_a_server_of_another_version_fails_the_attempt(pinned: EnvironmentIdentity, stage: str) -> None:
    world = World()
    finished = await world.run(pinned=pinned)
    trace = orjson.loads(finished.line)
    assert (finished.error_kind, finished.status, trace["error"]["stage"]) == ("environment_changed", "failed", stage)
    assert "other" in trace["error"]["message"]
    assert finished.identity.environment_version == ENVIRONMENT_VERSION
    assert bool(world.model.asked) == (stage != "reset")


async def test_a_failed_release_changes_no_verdict() -> None:
    world = World(hook=at("close", EnvironmentCallError("net", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)))
    finished = await world.run()
    trace = orjson.loads(finished.line)
    assert (trace["status"], trace["error"]["stage"], finished.error_kind) == ("completed", "cleanup", None)
    assert finished.figures["completed"] is True
    assert world.leases == ["held"]


async def test_a_failed_release_stands_beside_the_failure() -> None:
    def hook(call: FakeCall) -> None:
        if call.name in ("step", "close"):
            raise CRASHED

    trace = orjson.loads((await World(hook=hook).run()).line)
    assert trace["error"]["stage"] == "environment_step_1"
    assert trace["error"]["cleanup_errors"] == ["EnvironmentCallError: crash"]


async def test_a_close_that_hangs_is_given_up_on() -> None:
    world = World(hook=at("close", lambda: asyncio.sleep(60)), close_timeout_s=0.05)
    finished = await asyncio.wait_for(world.run(), 20)
    trace = orjson.loads(finished.line)
    assert (trace["status"], trace["error"]["stage"]) == ("completed", "cleanup")


async def hang(request: ModelRequest) -> ModelOutput:
    await asyncio.sleep(60)
    raise AssertionError("was not stopped")


async def test_the_episode_has_a_deadline_of_its_own() -> None:
    world = World(script(shopper, hang), episode_timeout_s=0.1)
    trace = await asyncio.wait_for(world.trace(), 20)
    assert (trace["error"]["stage"], trace["error"]["kind"], trace["error"]["retryable"]) == ("model_step_2", "episode_timeout", True)
    assert len(trace["steps"]) == 1


async def test_the_deadline_starts_at_the_answer_of_the_reset() -> None:
    slow_reset = at("reset", lambda: asyncio.sleep(0.4))
    assert (await World(hook=slow_reset, episode_timeout_s=0.3).trace())["status"] == "completed"


@pytest.mark.parametrize(
    ("call", "kind", "stage"), [("step", "environment_unavailable", "environment_step_1"), ("reset", "reset_timeout", "reset")]
)
async def test_a_users_environment_that_hangs_is_bounded(call: str, kind: str, stage: str) -> None:
    world = World(hook=at(call, lambda: asyncio.sleep(60)), step_timeout_s=0.01, reset_timeout_s=0.01)
    trace = await asyncio.wait_for(world.trace(), 20)
    assert (trace["error"]["kind"], trace["error"]["stage"]) == (kind, stage)


async def test_a_time_out_error_of_a_users_class_is_not_our_deadline() -> None:
    trace = await World(hook=at("step", TimeoutError("theirs"))).trace()
    assert (trace["error"]["kind"], trace["error"]["type"]) == ("internal", "TimeoutError")


async def test_cancelling_releases_first_and_gives_no_trace() -> None:
    world = World(hang)
    task = asyncio.create_task(world.run())
    await until(lambda: world.model.asked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.leases == ["held", "ended"]


async def test_a_second_cancel_does_not_stop_the_release() -> None:
    world = World(hang, at("close", lambda: asyncio.sleep(0.1)))
    task = asyncio.create_task(world.run())
    await until(lambda: world.model.asked)
    task.cancel()
    await until(lambda: "close" in calls_of(world))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: world.leases == ["held", "ended"])


async def test_a_fenced_runtime_makes_no_call_any_more() -> None:
    world = World()

    def fence(request: ModelRequest) -> ModelOutput:
        world.fenced = True
        return shopper(request)

    world.model.turn = fence
    with pytest.raises(FencedError):
        await world.run()
    assert calls_of(world) == ["reset"]
    assert world.leases == ["held"]


async def test_events_tell_the_story_in_order() -> None:
    world = World()
    await world.run()
    assert [kind for kind, _ in world.events] == ["reset", *["model", "action", "environment"] * 4, "end"]


async def test_a_broken_listener_costs_nothing() -> None:
    def broken(kind: str, what: JsonObject) -> None:
        raise RuntimeError("display")

    world = World()
    episode = world.environment.open(JOB, SERVER, lambda *lease: None, lambda: None)
    finished = await world.runtime.run(
        JOB, 1, episode, endpoint=None, server=SERVER, environment_identity={}, pinned=EnvironmentIdentity(), on_event=broken
    )
    assert finished.status == "completed"


async def test_one_runtime_plays_many_episodes_at_once() -> None:
    world = World()
    world.environment.slots = 4
    jobs = [EpisodeJob(n, 0, n, "val") for n in range(20)]
    finished = await asyncio.gather(*(world.run(job) for job in jobs))
    assert [f.episode_id for f in finished] == [j.episode_id for j in jobs]
    assert {f.status for f in finished} == {"completed"}
    assert world.environment.held == {}


@pytest.mark.parametrize("bad", [{"max_steps": 0}, {"tool_schema": "other"}])
def test_settings_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        RuntimeSettings(**bad)


async def test_what_calls_took_rides_beside_the_line_and_is_not_in_it() -> None:
    finished = await World().run()
    trace = orjson.loads(finished.line)
    (model_s, turns), (environment_s, steps) = finished.figures["model_s"], finished.figures["environment_s"]
    assert turns == [0] * len(trace["steps"]) and model_s == pytest.approx(0.0015 * len(turns))
    assert len(steps) == len(trace["steps"]) and 0 < environment_s < trace["duration_ms"] / 1e3
    assert finished.figures["endpoint"] == "http://model:8000/v1"
    assert "model_s" not in trace and b"environment_s" not in finished.line


async def test_a_call_of_the_environment_is_timed_when_it_is_answered() -> None:
    async def slow(call: FakeCall) -> None:
        if call.name == "step":
            await asyncio.sleep(0.045)
            if call.number == 1:
                raise EnvironmentCallError("gone", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)

    finished = await World(hook=slow).run()
    seconds, buckets = finished.figures["environment_s"]
    assert finished.status == "failed" and len(buckets) == 1, "the call that failed has no latency"
    assert seconds >= 0.04 and buckets[0] >= 3
