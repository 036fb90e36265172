"""Resets that outlive their caller: kept, answered late, refused late, never answered."""

from __future__ import annotations

import asyncio

import pytest

from rayeval.environments import EnvironmentTimeouts, ShopSimulator
from rayeval.exceptions import EnvironmentCallError
from rayeval.schemas import EpisodeJob, ErrorKind
from rayeval.transport import AiohttpTransport, FakeTransport, HttpResponse, SentRequest
from tests.environments.shop_server import ShopServer
from tests.environments.shops import JOB, QUICK, RELEASED, RESET, URL, Leases, free, ok, simulator
from tests.waiting import until


async def test_a_reset_on_a_full_pool_times_out_for_its_caller_and_lives_on() -> None:
    leases, late, reaped = Leases(), Leases(), []
    async with ShopServer(slots=1) as server, simulator(server) as shop:
        shop.on_reset_reaped(reaped.append)
        holder = shop.open(JOB, server.url, leases, free)
        await holder.reset()
        waiting = shop.open(EpisodeJob(4, 0, 1, "val"), server.url, late, free)
        with pytest.raises(EnvironmentCallError) as raised:
            await waiting.reset()
        assert raised.value.kind is ErrorKind.RESET_TIMEOUT
        assert raised.value.retryable
        await waiting.close()
        assert shop.pending_resets(server.url) == 1
        assert late.words == []
        await holder.close()
        await until(lambda: late.words == ["held", "ended"])
        await until(lambda: reaped == [server.url])
        assert shop.pending_resets(server.url) == 0
        assert server.free == {0}
        assert server.count("reset") == 2


async def test_a_cancelled_reset_lives_on_too() -> None:
    late = Leases()
    patient = EnvironmentTimeouts(reset_timeout_s=60, step_timeout_s=5, release_timeout_s=1, drain_timeout_s=5)
    async with ShopServer(slots=1) as server, simulator(server, timeouts=patient) as shop:
        holder = shop.open(JOB, server.url, Leases(), free)
        await holder.reset()
        waiting = shop.open(JOB, server.url, late, free)
        task = asyncio.create_task(waiting.reset())
        await until(lambda: server.count("reset") == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await waiting.close()
        assert shop.pending_resets(server.url) == 1
        await holder.close()
        await shop.aclose()  # waits for the late answer and its release
        assert late.words == ["held", "ended"]
        assert server.free == {0}
        assert shop.unanswered_resets() == {}


async def test_a_reset_cancelled_in_the_turn_of_its_answer_is_released() -> None:
    leases = Leases()
    answered = asyncio.Event()

    async def handler(sent: SentRequest) -> HttpResponse:
        if b"release" in (sent.body or b""):
            return RELEASED
        answered.set()
        return ok(**RESET)

    shop = ShopSimulator([URL], transport=FakeTransport(handler), timeouts=QUICK)
    episode = shop.open(JOB, URL, leases, free)
    task = asyncio.create_task(episode.reset())
    await answered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await episode.close()
    await shop.aclose()
    assert leases.words == ["held", "ended"]


async def test_a_late_refusal_frees_the_place_without_a_lease() -> None:
    late = Leases()
    async with ShopServer(slots=1) as server, simulator(server) as shop:
        holder = shop.open(JOB, server.url, Leases(), free)
        await holder.reset()
        waiting = shop.open(EpisodeJob(999, 0, 1, "val"), server.url, late, free)
        with pytest.raises(EnvironmentCallError):
            await waiting.reset()
        await holder.close()
        await until(lambda: shop.pending_resets(server.url) == 0)
        assert late.words == []


async def test_aclose_is_bounded_and_says_which_resets_were_never_answered() -> None:
    hasty = EnvironmentTimeouts(reset_timeout_s=1.0, drain_timeout_s=0.1)
    async with ShopServer(slots=1) as server:
        shop = ShopSimulator([server.url], transport=AiohttpTransport(), timeouts=hasty)
        await shop.open(JOB, server.url, Leases(), free).reset()
        for _ in range(2):
            with pytest.raises(EnvironmentCallError):
                await shop.open(JOB, server.url, Leases(), free).reset()
        await asyncio.wait_for(shop.aclose(), 20)
        await shop.aclose()
        assert shop.unanswered_resets() == {server.url: 2}
        with pytest.raises(RuntimeError):
            shop.open(JOB, server.url, Leases(), free)
