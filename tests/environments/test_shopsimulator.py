from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from rayeval.environments import Environment, EnvironmentEpisode, EnvironmentTimeouts, ShopSimulator
from rayeval.exceptions import ConfigurationError, EnvironmentCallError, FencedError, ReplyLostError
from rayeval.schemas import EnvironmentIdentity, ErrorKind
from rayeval.transport import FakeTransport, HttpResponse, SentRequest
from tests.environments.shop_server import ShopServer
from tests.environments.shops import (
    JOB,
    LEASE_FIELDS,
    PAGE,
    QUICK,
    RELEASED,
    RESET,
    URL,
    Leases,
    answering,
    episode_on,
    failing,
    free,
    ok,
    simulator,
)
from tests.waiting import until


async def test_it_is_an_environment(server: ShopServer) -> None:
    async with simulator(server) as shop:
        assert isinstance(shop, Environment)
        assert isinstance(shop.open(JOB, server.url, Leases(), free), EnvironmentEpisode)
        assert shop.identity() == {"adapter": "shopsimulator_http", "persona": False, "interaction_mode": "single_turn"}


async def test_a_purchase_from_reset_to_release(server: ShopServer) -> None:
    leases = Leases()
    async with simulator(server, persona=True) as shop:
        episode = shop.open(JOB, server.url + "/", leases, free)
        reset = await episode.reset()
        assert episode.lease is not None
        page = await episode.step("search[风扇]")
        bought = await episode.step("click[buy now]")
        await episode.close()
        await episode.close()
    assert server.seen[0] == {
        "action": "reset",
        "idx": 3,
        "if_persona": True,
        "include_private_goal": False,
        "interaction_mode": "single_turn",
    }
    assert reset["user_persona"] == {"user_id": "u-01"}
    assert reset["idx"] == 3
    hidden = {"env_idx", "lease_id", "private_task_instruction", "goal_options", "reason_key", "goal"}
    assert not hidden & reset.keys()
    assert not {"env_idx", "lease_id"} & (page.keys() | bought.keys())
    assert (page["done"], bought["done"], bought["goal"]) == (False, True, {"task_id": 3})
    assert leases.words == ["held", "ended"]
    assert episode.lease is None
    assert server.count("release_one") == 1
    assert server.free == {0, 1}


@pytest.mark.parametrize("reason", ["action_limit", "generation_length"])
async def test_terminate_gives_the_reason_asked_for(server: ShopServer, reason: str) -> None:
    async with simulator(server) as shop:
        episode = shop.open(JOB, server.url, Leases(), free)
        await episode.reset()
        assert (await episode.terminate(reason))["termination_reason"] == reason
        await episode.close()


async def test_terminate_with_another_reason_in_the_answer_fails() -> None:
    end = ok(**PAGE, done=True, reward=0.0, termination_reason="action_limit")
    episode = episode_on(answering(ok(**RESET), end))
    await episode.reset()
    with pytest.raises(EnvironmentCallError, match="generation_length"):
        await episode.terminate("generation_length")


HTML = HttpResponse(500, {}, b"<!doctype html><title>500</title>")


@pytest.mark.parametrize(
    ("answer", "kind", "retryable"),
    [
        (ReplyLostError("gone"), ErrorKind.ENVIRONMENT_UNAVAILABLE, True),
        (HTML, ErrorKind.ENVIRONMENT_ERROR, True),
        (HttpResponse(405, {}, b"<!doctype html>"), ErrorKind.ENVIRONMENT_REFUSED, False),
        (HttpResponse(503, {}, b"busy"), ErrorKind.ENVIRONMENT_UNAVAILABLE, True),
        (HttpResponse(200, {}, b"not json"), ErrorKind.ENVIRONMENT_ERROR, True),
        (HttpResponse(200, {}, b"[]"), ErrorKind.ENVIRONMENT_ERROR, True),
        (HttpResponse(200, {}, b'{"result": "ok"}'), ErrorKind.ENVIRONMENT_ERROR, True),
        (failing(200, "No JSON data provided"), ErrorKind.ENVIRONMENT_ERROR, True),
        (failing(400, "unsupported action: 'bogus'"), ErrorKind.ENVIRONMENT_REFUSED, False),
        (failing(500, "'unknown or inactive task_id 9999'"), ErrorKind.ENVIRONMENT_REFUSED, False),
        (failing(500, "task idx must be an integer"), ErrorKind.ENVIRONMENT_REFUSED, False),
        (failing(500, "unsupported interaction_mode 'duet'; choose one"), ErrorKind.ENVIRONMENT_REFUSED, False),
        (failing(500, "'NoneType' object is not subscriptable"), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "observation": 5}), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "observation_state": []}), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "observation_state": {}}), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "task_instruction": None}), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "env_idx": True}), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "lease_id": ""}), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**RESET, instruction="old"), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**{**RESET, "idx": 4}), ErrorKind.ENVIRONMENT_ERROR, True),
    ],
)
async def test_a_bad_reset_answer(answer: HttpResponse | Exception, kind: ErrorKind, retryable: bool) -> None:
    transport = answering(answer)
    with pytest.raises(EnvironmentCallError) as raised:
        await episode_on(transport).reset()
    assert (raised.value.kind, raised.value.retryable) == (kind, retryable)
    assert URL in str(raised.value)
    assert len(transport.requests) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "retryable"),
    [
        (ReplyLostError("gone"), ErrorKind.ENVIRONMENT_UNAVAILABLE, True),
        (failing(409, "stale or invalid lease for environment 1"), ErrorKind.LEASE_LOST, True),
        (failing(500, "engine crash"), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**PAGE), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**PAGE, done=1), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**PAGE, done=True, reward=None), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**PAGE, done=True, reward=True), ErrorKind.ENVIRONMENT_ERROR, True),
        (ok(**PAGE, done=False, action_feedback="fine"), ErrorKind.ENVIRONMENT_ERROR, True),
    ],
)
async def test_a_step_is_sent_once_whatever_comes_back(answer: HttpResponse | Exception, kind: ErrorKind, retryable: bool) -> None:
    transport = answering(ok(**RESET), answer)
    episode = episode_on(transport)
    await episode.reset()
    with pytest.raises(EnvironmentCallError) as raised:
        await episode.step("search[x]")
    assert (raised.value.kind, raised.value.retryable) == (kind, retryable)
    assert len(transport.requests) == 2


async def test_a_reset_has_no_read_time_out_and_a_step_has() -> None:
    transport = answering(ok(**RESET), ok(**PAGE, done=False))
    episode = episode_on(transport)
    await episode.reset()
    await episode.step("search[x]")
    assert [sent.timeout_s for sent in transport.requests] == [None, QUICK.step_timeout_s]


async def test_a_step_without_an_answer_ends_after_its_time_out() -> None:
    async def handler(sent: SentRequest) -> HttpResponse:
        if b'"interact"' in (sent.body or b""):
            await asyncio.sleep(60)
        return ok(**RESET)

    transport = FakeTransport(handler)
    shop = ShopSimulator([URL], transport=transport, timeouts=EnvironmentTimeouts(step_timeout_s=0.05))
    episode = shop.open(JOB, URL, Leases(), free)
    await episode.reset()
    with pytest.raises(EnvironmentCallError) as raised:
        await episode.step("search[x]")
    assert raised.value.kind is ErrorKind.ENVIRONMENT_UNAVAILABLE
    assert len(transport.requests) == 2


async def test_the_lease_of_a_malformed_reset_is_held_and_released() -> None:
    leases = Leases()
    transport = answering(ok(**LEASE_FIELDS, observation=None), RELEASED)
    episode = episode_on(transport, leases)
    with pytest.raises(EnvironmentCallError):
        await episode.reset()
    assert leases.words == ["held"]
    await episode.close()
    assert leases.words == ["held", "ended"]
    assert orjson.loads(transport.requests[1].body or b"") == {"action": "release_one", **LEASE_FIELDS}


async def test_409_on_release_means_gone() -> None:
    leases = Leases()
    episode = episode_on(answering(ok(**RESET), failing(409, "stale or invalid lease for environment 1")), leases)
    await episode.reset()
    await episode.close()
    assert leases.words == ["held", "ended"]


async def test_a_release_is_tried_again_after_a_lost_reply_and_a_500() -> None:
    leases = Leases()
    transport = answering(ok(**RESET), ReplyLostError("gone"), failing(500, "oops"), RELEASED)
    episode = episode_on(transport, leases)
    await episode.reset()
    await episode.close()
    assert leases.words == ["held", "ended"]
    assert len(transport.requests) == 4


async def test_a_release_that_never_works_leaves_the_lease_held_and_can_be_tried_again() -> None:
    leases = Leases()
    works = False

    def handler(sent: SentRequest) -> HttpResponse:
        if b"reset" in (sent.body or b""):
            return ok(**RESET)
        if works:
            return RELEASED
        raise ReplyLostError("gone")

    episode = episode_on(FakeTransport(handler), leases)
    await episode.reset()
    with pytest.raises(EnvironmentCallError, match="release_one"):
        await episode.close()
    assert leases.words == ["held"]
    assert episode.lease is not None
    works = True
    await episode.close()
    assert leases.words == ["held", "ended"]


async def test_a_refused_release_is_not_repeated() -> None:
    transport = answering(ok(**RESET), failing(400, "release_one requires a valid env_idx and lease_id"))
    episode = episode_on(transport)
    await episode.reset()
    with pytest.raises(EnvironmentCallError):
        await episode.close()
    assert len(transport.requests) == 2


async def test_close_without_a_reset_sends_nothing() -> None:
    transport = answering(RELEASED)
    await episode_on(transport).close()
    assert transport.requests == []


async def test_a_cancelled_close_still_releases(server: ShopServer) -> None:
    leases = Leases()

    async def slow(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["action"] == "release_one":
            await asyncio.sleep(0.1)
        return None

    server.override = slow
    async with simulator(server) as shop:
        episode = shop.open(JOB, server.url, leases, free)
        await episode.reset()
        closing = asyncio.create_task(episode.close())
        await until(lambda: server.count("release_one") == 1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert leases.words == ["held", "ended"]
    assert server.count("release_one") == 1


async def test_the_guard_runs_before_each_request_that_acts_and_never_before_a_release(server: ShopServer) -> None:
    checks = 0

    def guard() -> None:
        nonlocal checks
        checks += 1
        assert len(server.seen) == checks - 1

    async with simulator(server) as shop:
        episode = shop.open(JOB, server.url, Leases(), guard)
        await episode.reset()
        await episode.step("search[x]")
        await episode.terminate("action_limit")
        await episode.close()
    assert checks == 3
    assert server.count("release_one") == 1


@pytest.mark.parametrize("call", ["reset", "step", "terminate"])
async def test_a_fenced_process_sends_nothing(server: ShopServer, call: str) -> None:
    fenced = False

    def guard() -> None:
        if fenced:
            raise FencedError("no longer ours")

    async with simulator(server) as shop:
        episode = shop.open(JOB, server.url, Leases(), guard)
        if call != "reset":
            await episode.reset()
        sent = len(server.seen)
        fenced = True
        with pytest.raises(FencedError):
            await {"reset": episode.reset, "step": lambda: episode.step("x"), "terminate": lambda: episode.terminate("action_limit")}[
                call
            ]()
        assert len(server.seen) == sent
        await episode.close()
    assert len(server.free) == 2


async def test_one_object_serves_several_servers(server: ShopServer) -> None:
    async with ShopServer(slots=5) as other, simulator(server, other) as shop:
        capacity = await shop.capacity()
        assert [(c.server, c.slots, c.free) for c in capacity] == [(server.url, 2, 2), (other.url, 5, 5)]
        assert capacity[0].identity == EnvironmentIdentity("shopsimulator-paper-aligned-v8", "shopping-observation-v7", None)
        episode = shop.open(JOB, other.url, Leases(), free)
        await episode.reset()
        assert (server.seen, len(other.free)) == ([], 4)
        await episode.close()


@pytest.mark.parametrize("body", [b"{}", b"<html>", b'{"ready": false, "environment_slots": 2, "free_slots": 2}'])
async def test_capacity_names_the_server_that_gives_none(body: bytes) -> None:
    shop = ShopSimulator([URL], transport=answering(HttpResponse(200, {}, body)))
    with pytest.raises(EnvironmentCallError, match=r"shop\.test"):
        await shop.capacity()


async def test_release_and_release_all_work_for_leases_of_others(server: ShopServer) -> None:
    async with simulator(server) as shop:
        leases = Leases()
        for _ in range(2):
            await shop.open(JOB, server.url, leases, free).reset()
        await shop.release(leases.events[0][1])
        await shop.release(leases.events[0][1])
        assert len(server.free) == 1
        await shop.release_all(server.url)
        assert len(server.free) == 2


async def test_an_episode_is_used_once(server: ShopServer) -> None:
    async with simulator(server) as shop:
        episode = shop.open(JOB, server.url, Leases(), free)
        with pytest.raises(RuntimeError):
            await episode.step("search[x]")
        await episode.reset()
        with pytest.raises(RuntimeError):
            await episode.reset()
        await episode.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"result": {"error": f"no lease {LEASE_FIELDS['lease_id']} here"}}, "HTTP 409: no lease *** here"),
        ({"sent": LEASE_FIELDS}, "HTTP 409 without a result object: 68 bytes, an object with sent"),
    ],
)
async def test_a_lease_id_that_a_server_repeats_stays_out_of_errors(body: dict[str, Any], said: str) -> None:
    episode = episode_on(answering(ok(**RESET), HttpResponse(409, {}, orjson.dumps(body)), RELEASED))
    await episode.reset()
    with pytest.raises(EnvironmentCallError) as lost:
        await episode.step("click[a]")
    assert str(lost.value).endswith(said)
    await episode.close()


async def test_a_password_in_the_address_stays_out_of_errors() -> None:
    shop = ShopSimulator(["http://me:secret@shop.test"], transport=answering(failing(500, "oops")), timeouts=QUICK)
    with pytest.raises(EnvironmentCallError) as raised:
        await shop.open(JOB, shop.servers[0], Leases(), free).reset()
    assert "secret" not in str(raised.value)


def test_time_outs_are_above_zero() -> None:
    with pytest.raises(ConfigurationError, match="reset_timeout_s"):
        EnvironmentTimeouts(reset_timeout_s=0)
