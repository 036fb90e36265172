from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest

from rayeval.environments import FakeCall
from rayeval.environments.fake import ENVIRONMENT_VERSION, OBSERVATION_VERSION, REWARD_VERSION
from rayeval.exceptions import ConfigurationError, EnvironmentCallError
from rayeval.hashing import canonical_trace
from rayeval.models.base import ModelRequest
from rayeval.runtime import RuntimeSettings
from rayeval.schemas import (
    EnvironmentIdentity,
    EpisodeJob,
    ErrorKind,
    JsonObject,
    ModelOutput,
    ModelRetry,
    ProtocolError,
    ToolCall,
    Trace,
)
from tests.helpers.turns import JOB, SERVER, OneSkill, World, calls_of, made, said, script, shopper


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
