from __future__ import annotations

import asyncio

import pytest

from rayeval.environments import Environment, EnvironmentEpisode, EnvironmentTimeouts, FakeCall, FakeEnvironment
from rayeval.environments.pages import reset_fault, step_fault, terminal_fault
from rayeval.exceptions import ConfigurationError, EnvironmentCallError
from rayeval.schemas import EpisodeJob, ErrorKind, JsonObject, Lease

JOB = EpisodeJob(4, 0, 1, "val")
SERVER = "fake://shop"


def ignore(word: str, lease: Lease) -> None:
    """A listener that does not care."""


def opened(environment: FakeEnvironment, job: EpisodeJob = JOB) -> EnvironmentEpisode:
    return environment.open(job, SERVER, ignore, lambda: None)


async def test_it_keeps_the_protocol_and_the_keys_of_results() -> None:
    environment = FakeEnvironment()
    episode = opened(environment)
    assert isinstance(environment, Environment)
    assert isinstance(episode, EnvironmentEpisode)
    assert reset_fault(await episode.reset()) is None
    assert step_fault(await episode.step("search[x]")) is None
    assert terminal_fault(await episode.terminate("action_limit")) is None
    await episode.close()
    assert [c.name for c in environment.calls] == ["reset", "step", "terminate", "close"]


@pytest.mark.parametrize(("product", "reward"), [(41, 1.0), (40, 0.0)])
async def test_the_right_product_is_worth_one(product: int, reward: float) -> None:
    episode = opened(FakeEnvironment())
    await episode.reset()
    results: list[JsonObject] = []
    for action in ("search[x]", f"click[9000000000{product}]", "click[buy now]", "click[颜色=白]", "click[buy now]"):
        results.append(await episode.step(action))
    assert [r["action_feedback"]["valid"] for r in results] == [True, True, False, True, True]
    assert (results[-1]["done"], results[-1]["reward"], results[-1]["reward_detail"]["r_strict"]) == (True, reward, reward)
    with pytest.raises(EnvironmentCallError):
        await episode.step("search[x]")


async def test_it_ends_at_its_action_limit() -> None:
    episode = opened(FakeEnvironment(options={"action_limit": 2}))
    await episode.reset()
    assert (await episode.step("nonsense"))["done"] is False
    assert (await episode.step("click[x]"))["termination_reason"] == "action_limit"


async def test_slots_are_waited_for_and_given_back() -> None:
    environment = FakeEnvironment(options={"slots": 1}, timeouts=EnvironmentTimeouts(reset_timeout_s=0.05))
    first, second = opened(environment), opened(environment)
    await first.reset()
    assert (await environment.capacity())[0].free == 0
    with pytest.raises(EnvironmentCallError) as raised:
        await second.reset()
    assert raised.value.kind is ErrorKind.RESET_TIMEOUT
    environment.timeouts = EnvironmentTimeouts(reset_timeout_s=10)
    third = asyncio.create_task(opened(environment).reset())
    await asyncio.sleep(0)
    await first.close()
    await third
    await environment.release_all(SERVER)
    assert environment.held == {}


async def test_the_hook_counts_calls_over_attempts() -> None:
    def hook(call: FakeCall) -> JsonObject | None:
        if call.name == "reset" and call.number == 0:
            raise EnvironmentCallError("first one fails", ErrorKind.ENVIRONMENT_ERROR, True)
        return None

    environment = FakeEnvironment(hook=hook)
    with pytest.raises(EnvironmentCallError):
        await opened(environment).reset()
    await opened(environment).reset()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="action_limit"):
        FakeEnvironment(options={"slot": 1})
