import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.messages import Assignment, Order, Reply
from actors.pacing import ResetPacer
from actors.rollout import RolloutActor
from rayeval.config import load_config
from rayeval.environments import FakeEnvironment
from rayeval.environments.fake import FakeCall
from rayeval.schemas import EpisodeJob, Lease
from tests.actors.plans import SHOP, write_config
from tests.actors.specs import spec
from tests.actors.worlds import KIND, new_world

DEADLINE_S = 20.0


def job(task: int) -> EpisodeJob:
    return EpisodeJob(task, 0, task + 1, "train")


def assignments(*tasks: int) -> tuple[Assignment, ...]:
    return tuple(Assignment(job(t), 1, "http://model.invalid/v1") for t in tasks)


class Stage:
    """An actor and the driver's side of its exchanges."""

    def __init__(self, root: Path, world: FakeEnvironment, **changes: Any) -> None:
        overrides = {"environment.kind": KIND, "environment.options": {"world": root.name}}
        config = load_config(write_config(root, overrides=overrides)).config.model_dump(mode="json")
        self.world = world
        self.actor = RolloutActor(spec(config, **changes), own_process=False)
        self.orders = 0
        self.replies: dict[int, Reply] = {}
        self.quota = 4

    async def exchange(self, **order: Any) -> Reply:
        self.orders += 1
        given: dict[str, Any] = {"quotas": {SHOP: self.quota}, "flush_s": 0.01, "lease_flush_s": 0.01, "idle_s": 0.2}
        made = Order(self.orders, max(self.replies, default=0), **{**given, **order})
        reply = await asyncio.wait_for(self.actor.exchange(made), DEADLINE_S)
        for each in (*reply.missed, reply):
            self.replies[each.number] = each
        return reply

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await self.exchange()

    def finished(self) -> list[str]:
        return [r.episode_id for reply in self.replies.values() for r in reply.records]

    def returned(self) -> list[str]:
        return [e for reply in self.replies.values() for e in reply.returned]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Stage] = []

    async def build(hook: Any = None, **changes: Any) -> Stage:
        world = new_world(tmp_path.name, (SHOP,), hook=hook)
        stage = Stage(tmp_path, world, **changes)
        await stage.actor.start()
        made.append(stage)
        return stage

    yield build
    for each in made:
        await asyncio.wait_for(each.actor.stop(0), 60.0)


def stuck(call: FakeCall) -> Any:
    """A hook: the first step of every episode never ends."""
    return asyncio.sleep(3600.0) if call.name == "step" else None


async def test_every_job_ends_in_one_trace_and_every_lease_in_a_release(stage: Any) -> None:
    s = await stage()
    await s.exchange(assignments=assignments(*range(10)))
    await s.until(lambda: len(s.finished()) == 10)
    assert sorted(s.finished()) == [job(t).episode_id for t in range(10)]
    await s.until(lambda: sum(c.event == "ended" for r in s.replies.values() for c in r.leases) == 10)
    assert not s.world.held
    for reply in s.replies.values():
        for record, text in zip(reply.records, reply.lines, strict=True):
            line = orjson.loads(text)
            assert (line["episode_id"], line["attempt"], line["status"]) == (record.episode_id, 1, record.status)


async def test_episodes_on_a_server_never_pass_the_quota(stage: Any) -> None:
    most = 0

    async def count(call: FakeCall) -> None:
        nonlocal most
        most = max(most, len(s.world.held))
        await asyncio.sleep(0.002)

    s = await stage(count, slots=64)
    s.quota = 3
    await s.exchange(assignments=assignments(*range(20)))
    await s.until(lambda: len(s.finished()) == 20)
    assert most == 3
    assert all(r.taken[SHOP] <= 3 for r in s.replies.values())


async def test_without_a_quota_nothing_starts(stage: Any) -> None:
    s = await stage()
    s.quota = 0
    reply = await s.exchange(assignments=assignments(1, 2))
    assert reply.queued == 2 and reply.in_flight == 0 and not s.world.calls


async def test_a_smaller_quota_holds_what_runs_and_starts_no_more(stage: Any) -> None:
    s = await stage(stuck)
    await s.exchange(assignments=assignments(*range(6)))
    await s.until(lambda: len(s.world.held) == 4)
    s.quota = 1
    reply = await s.exchange()
    assert reply.taken[SHOP] == 4 and reply.queued == 2


async def test_only_the_newest_exchange_waits(stage: Any) -> None:
    s = await stage()
    older = asyncio.create_task(s.exchange(idle_s=60.0))
    await asyncio.sleep(0.05)
    newer = asyncio.create_task(s.exchange(idle_s=0.2))
    first = await asyncio.wait_for(older, DEADLINE_S)
    assert not newer.done() or first.number < (await newer).number
    assert (await asyncio.wait_for(newer, DEADLINE_S)).order == 2


async def test_an_unacknowledged_reply_is_sent_again_when_asked_for(stage: Any) -> None:
    s = await stage()
    await s.exchange(assignments=assignments(0))
    await s.until(lambda: len(s.finished()) == 1)
    lost = dict(s.replies)
    s.replies.clear()
    s.actor._outbox.add_returned("a late word")
    reply = await s.exchange()
    assert reply.missed == [] and s.finished() == []
    s.replies.clear()
    await s.exchange(resend=True)
    kept = [n for n in s.replies if n in lost]
    assert all(s.replies[n] == lost[n] for n in kept)


async def test_a_drain_gives_queued_jobs_back_and_lets_running_ones_end(stage: Any) -> None:
    gate = asyncio.Event()

    async def hold(call: FakeCall) -> None:
        if call.name == "step":
            await gate.wait()

    s = await stage(hold)
    await s.exchange(assignments=assignments(*range(6)))
    await s.until(lambda: len(s.world.held) == 4)
    await s.exchange(give_back=True)
    await s.until(lambda: len(s.returned()) == 2)
    gate.set()
    await s.until(lambda: len(s.finished()) == 4)
    await s.exchange(assignments=assignments(9))
    await s.until(lambda: job(9).episode_id in s.returned())


async def test_a_cancelled_episode_is_given_back_and_released(stage: Any) -> None:
    s = await stage(stuck)
    await s.exchange(assignments=assignments(*range(6)))
    await s.until(lambda: len(s.world.held) == 4)
    await s.exchange(cancel=("*",))
    await s.until(lambda: len(s.returned()) == 6)
    assert not s.world.held and not s.finished()


async def test_an_episode_cancelled_before_its_first_step_is_given_back_too(stage: Any) -> None:
    s = await stage()
    await asyncio.gather(s.exchange(assignments=assignments(0, 1)), s.exchange(cancel=("*",)))
    await s.until(lambda: len(s.returned()) == 2)
    reply = await s.exchange()
    assert reply.in_flight == 0 and reply.taken[SHOP] == 4


async def test_an_environment_that_cannot_open_fails_the_attempt_not_the_actor(stage: Any) -> None:
    s = await stage()
    s.world.open = None  # a defect of a user's class
    await s.exchange(assignments=assignments(0))
    await s.until(lambda: len(s.finished()) == 1)
    (record,) = [r for reply in s.replies.values() for r in reply.records]
    assert (record.status, record.error_kind) == ("failed", "internal")


async def test_a_lapsed_actor_starts_nothing_and_lets_go(stage: Any) -> None:
    s = await stage(stuck)
    await s.exchange(assignments=assignments(*range(6)))
    await s.until(lambda: len(s.world.held) == 4)
    before = len(s.world.calls)
    s.actor.revoke("it was declared dead")
    await s.until(lambda: not s.world.held)
    await s.exchange(assignments=assignments(8))
    assert {c.name for c in s.world.calls[before:]} <= {"close"}
    assert not s.finished()


async def test_stopping_releases_everything_and_hands_out_the_last_words(stage: Any) -> None:
    s = await stage(stuck)
    await s.exchange(assignments=assignments(*range(4)))
    await s.until(lambda: len(s.world.held) == 4)
    last = await asyncio.wait_for(s.actor.stop(max(s.replies)), 60.0)
    assert sorted(e for r in (*last.missed, last) for e in r.returned) == [job(t).episode_id for t in range(4)]
    assert not s.world.held


async def test_waiting_for_something_to_say_renews_nothing(stage: Any) -> None:
    s = await stage()
    call = asyncio.create_task(s.exchange(idle_s=0.1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    until = s.actor._fresh._until
    await call
    assert s.actor._fresh._until == until


async def test_leases_of_two_servers_may_be_named_alike(stage: Any) -> None:
    s = await stage()
    here, there = Lease("http://a.invalid", 0, "1"), Lease("http://b.invalid", 0, "1")
    for event, lease in (("held", here), ("held", there), ("ended", here)):
        s.actor._on_lease(("nobody", 1), event, lease)
    assert (s.actor._used(here.server), s.actor._used(there.server)) == (0, 1)
    s.actor._on_lease(("nobody", 1), "ended", there)


async def test_a_reset_that_its_environment_does_not_bound_ends_its_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.rollout._RESET_SLACK_S", 0.05)
    world = new_world(tmp_path.name, (SHOP,), hook=lambda call: asyncio.sleep(3600.0) if call.name == "reset" else None)
    s = Stage(tmp_path, world)
    s.actor._spec.config["execution"]["reset_timeout_s"] = 0.05
    await s.actor.start()
    await s.exchange(assignments=assignments(0))
    await s.until(lambda: len(s.finished()) == 1)
    (record,) = [r for reply in s.replies.values() for r in reply.records]
    assert (record.status, record.error_kind, record.retryable) == ("failed", "reset_timeout", True)
    await asyncio.wait_for(s.actor.stop(0), 60.0)


async def test_resets_are_spaced_after_a_burst() -> None:
    pacer = ResetPacer(100.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(16 + 20):
            await pacer.wait("shop")
    assert loop.time() - began >= 0.15


async def test_an_answer_lets_the_next_reset_go() -> None:
    pacer = ResetPacer(0.01)
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(16):
            await pacer.wait("shop")
        late = [asyncio.ensure_future(pacer.wait("shop")) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in late)
        for _ in range(5):
            pacer.answered("shop")
        await asyncio.gather(*late)
        assert late[0].done()
    await pacer.wait("another shop")
