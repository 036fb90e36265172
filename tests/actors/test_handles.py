"""The same actor behind both handles; what Ray makes of its end."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.handles import ActorFaultError, ActorGoneError, LocalHandle, RayHandle
from actors.messages import ActorSpec, Assignment, Order
from rayeval.config import load_config
from rayeval.exceptions import ConfigurationError
from rayeval.schemas import EpisodeJob
from tests.actors.plans import SHOP, write_config
from tests.actors.specs import spec

DEADLINE_S = 60.0


def fake_spec(root: Path, **config: Any) -> ActorSpec:
    """An actor over an environment of its own."""
    return spec(load_config(write_config(root, overrides=config)).config.model_dump(mode="json"))


def order(number: int, *tasks: int) -> Order:
    assignments = tuple(Assignment(EpisodeJob(t, 0, t, "train"), 1, "http://model.invalid/v1") for t in tasks)
    return Order(number, number - 1, assignments, {SHOP: 4}, flush_s=0.02, idle_s=1.0)


async def episodes(handle: LocalHandle | RayHandle, n: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        number = 1
        while len(found) < n:
            reply = await handle.exchange(order(number, *range(n)) if number == 1 else order(number))
            found += [r.episode_id for r in reply.records]
            number += 1
    return sorted(found)


async def test_a_local_actor_runs_episodes_until_it_is_killed(tmp_path: Path) -> None:
    handle = LocalHandle(fake_spec(tmp_path))
    info = await handle.start(DEADLINE_S)
    assert info.pid == os.getpid()
    assert len(await episodes(handle, 3)) == 3
    assert handle.ping(1.0) is not None
    waiting = asyncio.create_task(handle.exchange(order(100)))
    await asyncio.sleep(0.05)
    handle.kill()
    with pytest.raises(ActorGoneError):
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert handle.ping(1.0) is None


@pytest.mark.ray
async def test_an_actor_on_ray_says_where_it_lives_and_answers_pings_beside_its_work(tmp_path: Path, ray_session: None) -> None:
    handle = RayHandle(fake_spec(tmp_path))
    info = await handle.start(DEADLINE_S)
    assert info.pid != os.getpid()
    assert abs(psutil.Process(info.pid).create_time() - info.start_time) < 0.05
    assert len(info.node_id) > 20
    waiting = asyncio.create_task(handle.exchange(Order(1, 0, idle_s=3.0)))
    ping = await asyncio.to_thread(handle.ping, 10.0)
    assert ping is not None and ping.tick_age_s < 5.0
    assert not (await asyncio.wait_for(waiting, DEADLINE_S)).records
    last = await handle.stop(1, DEADLINE_S)
    assert last is not None and not last.records
    handle.kill()


@pytest.mark.ray
async def test_a_killed_process_is_a_gone_actor_and_answers_no_ping(tmp_path: Path, ray_session: None) -> None:
    handle = RayHandle(fake_spec(tmp_path))
    info = await handle.start(DEADLINE_S)
    assert len(await episodes(handle, 2)) == 2
    waiting = asyncio.create_task(handle.exchange(Order(100, 0, idle_s=50.0)))
    await asyncio.sleep(0.2)
    os.kill(info.pid, signal.SIGKILL)
    with pytest.raises(ActorGoneError):
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert await asyncio.to_thread(handle.ping, 5.0) is None
    assert await handle.stop(0, DEADLINE_S) is None
    handle.kill()


@pytest.mark.ray
async def test_wrong_input_that_only_the_actor_can_find_comes_back_as_what_it_is(tmp_path: Path, ray_session: None) -> None:
    config = fake_spec(tmp_path, **{"model.provider": "openai_chat", "model.api_key_env": "NO_SUCH_KEY_HERE"})
    handle = RayHandle(config)
    with pytest.raises(ConfigurationError, match="NO_SUCH_KEY_HERE"):
        await handle.start(DEADLINE_S)
    handle.kill()


async def test_a_defect_in_a_local_actor_is_a_fault_as_it_is_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def defective(_order: Order) -> None:
        raise ZeroDivisionError("a defect")

    handle = LocalHandle(fake_spec(tmp_path))
    await handle.start(DEADLINE_S)
    monkeypatch.setattr(handle._actor, "exchange", defective)
    with pytest.raises(ActorFaultError, match="ZeroDivisionError: a defect"):
        await handle.exchange(order(1))
    await handle.stop(0, DEADLINE_S)
