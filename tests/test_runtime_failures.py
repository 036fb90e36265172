"""What fails in an episode: stages and kinds, deadlines, releases, cancellation, the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rayeval.environments import FakeCall
from rayeval.environments.fake import ENVIRONMENT_VERSION, OBSERVATION_VERSION
from rayeval.exceptions import EnvironmentCallError, FencedError, ModelCallError
from rayeval.models.base import ModelRequest
from rayeval.schemas import (
    EnvironmentIdentity,
    ErrorKind,
    JsonObject,
    ModelOutput,
    ModelRetry,
    ProtocolError,
    Skill,
)
from tests.helpers.turns import OneSkill, Turn, World, calls_of, said, script, shopper
from tests.waiting import until

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
