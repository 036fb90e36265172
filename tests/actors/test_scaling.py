import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from actors.member import MemberState
from actors.messages import Reply
from actors.scaling import Scaling
from tests.actors.fields import Field, FragileHandle, field
from tests.actors.test_adaptive import ended, started


def say(f: Field, *shares: float | None) -> None:
    for member, share in zip(f.pool.members.values(), shares, strict=False):
        reply = Reply(1, 1)
        reply.cpu_share = share
        member.last = reply


async def asked(f: Field) -> None:
    """Let the question for free CPUs be answered and a new actor start."""
    await f.until(lambda: not any(t.get_name() == "scaling" for t in f.pool._tasks))
    await f.until(lambda: all(m.state != MemberState.STARTING for m in f.pool.members.values()))


def free(cpus: int) -> Callable[[], Awaitable[int]]:
    async def answer() -> int:
        return cpus

    return answer


async def slow(call: object) -> None:
    await asyncio.sleep(0.01)


async def test_one_more_actor_once_one_has_been_busy_for_long(tmp_path: Path) -> None:
    async with field(tmp_path, actors=1, slots=8, tasks=300, hook=slow) as f:
        await started(f)
        governor = Scaling(free(3))
        for now, share in ((0.0, 0.9), (5.0, 0.7), (6.0, 0.95), (12.0, 0.95)):
            say(f, share)
            governor.look(f.pool, now)
            await asked(f)
            assert len(f.pool.members) == 1
        governor.look(f.pool, 16.0)
        await asked(f)
        assert len(f.pool.members) == 2
        governor.look(f.pool, 16.5)
        assert sorted(m.slots for m in f.pool.members.values()) == [4, 4]
        say(f, 0.95, 0.95)
        governor.look(f.pool, 17.0)
        governor.look(f.pool, 30.0)
        await asked(f)
        assert len(f.pool.members) == 2  # not so soon after the last one
        await ended(f)


async def test_no_actor_without_a_free_cpu_or_without_work_for_it(tmp_path: Path) -> None:
    async with field(tmp_path, actors=1, slots=8, tasks=2) as f:
        await started(f)
        say(f, 0.99)
        full = Scaling(free(0), busy_for_s=0.0)
        full.look(f.pool, 1.0)
        await asked(f)
        assert len(f.pool.members) == 1
        next(iter(f.pool.members.values())).last.in_flight = 50  # type: ignore[union-attr]
        Scaling(free(8), busy_for_s=0.0).look(f.pool, 1.0)
        await asked(f)
        assert len(f.pool.members) == 1
        await ended(f)


async def test_actors_full_of_episodes_get_another_one(tmp_path: Path) -> None:
    async with field(tmp_path, actors=1, slots=8, tasks=300, hook=slow) as f:
        await started(f)
        say(f, 0.1)
        Scaling(free(2), per_actor=9).look(f.pool, 1.0)
        await asked(f)
        assert len(f.pool.members) == 1
        Scaling(free(2), per_actor=8).look(f.pool, 1.0)
        await asked(f)
        assert len(f.pool.members) == 2
        await ended(f)


async def test_an_actor_that_cannot_be_placed_does_not_end_the_run(tmp_path: Path) -> None:
    def unplaceable(handle: FragileHandle) -> None:
        handle.unplaceable = True

    async with field(tmp_path, actors=1, slots=8, tasks=300, hook=slow) as f:
        await started(f)
        f.prepare = unplaceable
        for k in range(3):
            say(f, 0.99)
            governor = Scaling(free(2), busy_for_s=0.0)
            governor.look(f.pool, 100.0 * k)
            await asked(f)
            governor.look(f.pool, 100.0 * k + 1.0)
        assert len(f.handles) == 4
        assert f.pool.reason is None
        f.prepare = lambda handle: None
        await ended(f)


async def test_a_run_that_gets_an_actor_on_the_way_completes_every_episode_once(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=24, actors=1, slots=4, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 4)
        added = f.pool.add_actor()
        await f.until(lambda: f.pool.members[added].alive)
        f.pool.set_slots(f.pool.slots)
        await running
        assert f.ledger.done == 24
        assert not f.world.held
        assert {m.slots for m in f.pool.members.values()} == {2}
