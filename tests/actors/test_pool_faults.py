"""Deaths, silence and places that are missing, as the pool's supervision meets them."""

import asyncio
from pathlib import Path

import pytest

from actors.health import SILENT_S, SLOW_S
from actors.member import Member, MemberState
from actors.messages import Order, Reply
from rayeval.environments.fake import FakeCall
from rayeval.schemas import ExitCode, Lease
from tests.actors.fields import Field, FragileHandle, completed, field
from tests.actors.plans import SHOP


async def slow(call: FakeCall) -> None:
    await asyncio.sleep(0.003)


async def started(f: Field, actors: int = 2) -> list[Member]:
    """The members, once all of them have said something."""
    await f.until(lambda: sum(m.last is not None and m.alive for m in f.pool.members.values()) == actors)
    return list(f.pool.members.values())


# ---- deaths in vain ---------------------------------------------------------------------------------------------------------------


def stillborn(handle: FragileHandle) -> None:
    handle.dies_at_birth = True


@pytest.mark.parametrize("fate", [stillborn, FragileHandle.die])
async def test_actors_that_all_die_before_an_episode_ends_drain_the_run(tmp_path: Path, fate: object) -> None:
    async with field(tmp_path, tasks=60) as f:
        f.prepare = fate  # type: ignore[assignment]
        assert await f.run() == ExitCode.STOPPED
        assert "10 actors died one after the other and no episode ended between them" in (f.pool.reason or "")
        assert len(f.handles) <= 12
        assert f.queue.out == 0 and not completed(f)


async def test_deaths_between_which_episodes_end_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.pool.MIN_DEATHS_IN_VAIN", 3)
    async with field(tmp_path, tasks=24, actors=1, slots=2, hook=slow) as f:
        running = asyncio.create_task(f.run())
        for _ in range(6):
            done = f.ledger.done
            await f.until(lambda: running.done() or f.ledger.done > done)  # noqa: B023 (called in this turn)
            victim = next(h for h in reversed(f.handles) if h.spec.slots == 2)  # not one that runs a suspect alone
            victim.die()
            await f.until(lambda: running.done() or victim.killed)  # noqa: B023
        assert await running is None
        assert f.pool.replaced == 6 and len(completed(f)) == 24


async def test_a_slot_that_a_dead_actors_reset_took_is_missed_before_its_share_is_dealt_again(tmp_path: Path) -> None:
    waited: list[str] = []

    async def look(call: FakeCall) -> None:
        if call.name == "reset" and f.world.taken(SHOP) >= f.world.slots:
            waited.append(call.job.episode_id)
        if call.name == "step":
            await gate.wait()

    gate = asyncio.Event()
    async with field(tmp_path, hook=look) as f:
        f.world.slots = 4
        running = asyncio.create_task(f.run())
        victim, _ = await started(f)
        await f.until(lambda: len(f.world.held) == 4)
        f.world.held["nobody"] = Lease(SHOP, 9, "nobody")  # what an answer that nobody reads leaves behind
        victim.handle.die()  # type: ignore[attr-defined]
        await f.until(lambda: f.pool.replaced == 1)
        assert f.pool.dealer.admission[SHOP] == 3
        gate.set()
        await running
        assert len(completed(f)) == 12 and not waited


async def test_leases_that_come_and_go_while_a_server_is_asked_are_no_news(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=60, hook=slow) as f:
        f.world.slots = f.pool.dealer.admission[SHOP] = f.pool.admission._observed[SHOP] = 4
        running = asyncio.create_task(f.run())
        await started(f)
        lowest = 4
        while not running.done():
            await f.pool.admission.look_again(f.pool)
            lowest = min(lowest, f.pool.dealer.admission[SHOP])
        assert await running is None and lowest == 4


# ---- silence ----------------------------------------------------------------------------------------------------------------------


async def test_a_silent_actor_is_lost_and_its_jobs_run_again(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        silent, other = await started(f)
        assert silent.vitals is not None
        silent.vitals.answered_at -= SILENT_S + 5.0
        await f.until(lambda: silent.state == MemberState.ENDED)
        assert f.noted(f"{silent.actor_id} is lost") and not f.noted(f"{other.actor_id} is lost")
        assert await running is None
        assert len(completed(f)) == 40 and set(completed(f).values()) == {1}


async def test_a_driver_that_stood_still_judges_nobody(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        members = await started(f)
        # what a driver finds that was stopped for a minute: its last look and every answer are old
        f.pool._looked_at -= 60.0
        for member in members:
            assert member.vitals is not None
            member.vitals.answered_at -= 60.0
        assert await running is None
        assert f.pool.replaced == 0 and f.ledger.lost == 0 and len(f.handles) == 2
        assert len(completed(f)) == 40


async def test_an_actor_whose_loop_is_late_gets_no_new_jobs_until_it_has_caught_up(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=2400, hook=slow) as f:
        running = asyncio.create_task(f.run())
        late, other = await started(f)
        assert late.vitals is not None and isinstance(late.handle, FragileHandle)
        late.handle.tick_age_s = late.vitals.tick_age_s = SLOW_S + 1.0
        await f.until(lambda: running.done() or (late.state == MemberState.SLOW and not late.jobs))
        done = f.ledger.done
        await f.until(lambda: running.done() or f.ledger.done >= done + 20)
        assert not running.done() and not late.jobs and other.jobs
        late.handle.tick_age_s = late.vitals.tick_age_s = 0.0
        await f.until(lambda: running.done() or len(late.jobs) > 0)
        assert late.state == MemberState.WORKING and f.ledger.lost == 0
        f.pool.drain("seen enough", ExitCode.STOPPED)
        await running


async def test_an_actor_whose_loop_stands_still_is_lost(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        blocked, _ = await started(f)
        assert blocked.vitals is not None and isinstance(blocked.handle, FragileHandle)
        blocked.handle.tick_age_s = blocked.vitals.tick_age_s = SILENT_S + 1.0
        await f.until(lambda: blocked.handle.killed)  # type: ignore[attr-defined]
        assert await running is None
        assert f.pool.replaced == 1 and len(completed(f)) == 40 and set(completed(f).values()) == {1}


async def test_what_a_lost_actor_says_before_it_is_buried_is_dropped_and_counted(tmp_path: Path) -> None:
    """Stopped, declared dead, and continued."""
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        member, _ = await started(f)
        assert isinstance(member.handle, FragileHandle) and member.vitals is not None
        kept: list[Reply] = []
        exchange = member.handle.exchange

        async def stopped(order: Order) -> Reply:
            reply = await exchange(order)
            if reply.records and member.held:
                kept.append(reply)
                await f.until(lambda: not member.alive)
            return reply

        member.handle.exchange = stopped  # type: ignore[method-assign]
        await f.until(lambda: bool(kept))
        async with f.world._freed:  # no lease can be released, so it is not buried
            late = f.ledger.late
            member.vitals.answered_at -= SILENT_S + 5.0
            await f.until(lambda: member.state != MemberState.WORKING)
            assert member.state == MemberState.DEAD
            jobs = dict(member.jobs)
            f.pool._replies.take(member, kept[0])
            assert member.jobs == jobs and f.ledger.late == late + len(kept[0].records)
        assert await running is None
        assert len(completed(f)) == 40 and set(completed(f).values()) == {1}
        assert f.ledger.lost == len(jobs)


# ---- places -----------------------------------------------------------------------------------------------------------------------


async def test_an_actor_that_cannot_be_replaced_leaves_its_slots_to_the_others_until_there_is_a_place_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.pool.ASK_ACTOR_EVERY_S", 0.5)
    most = 0
    async with field(tmp_path, tasks=2400, hook=slow) as f:

        async def count(call: FakeCall) -> None:
            nonlocal most
            most = max(most, len(f.world.held))
            await asyncio.sleep(0.003)

        f.world.hook = count
        running = asyncio.create_task(f.run())
        dead, other = await started(f)
        f.prepare = lambda handle: setattr(handle, "unplaceable", True)
        dead.handle.die()  # type: ignore[attr-defined]
        await f.until(lambda: running.done() or len(other.jobs) >= 4)
        await f.until(lambda: running.done() or len(f.handles) >= 5)  # asked for again, in vain
        asked = len(f.handles)
        f.prepare = lambda handle: None
        await f.until(lambda: running.done() or (len(f.handles) > asked and bool(f.handles[-1].running())))
        assert not running.done()
        newest = next(m for m in f.pool.members.values() if m.handle is f.handles[-1])
        await f.until(lambda: running.done() or (newest.slots, other.slots) == (2, 2))
        done = f.ledger.done
        await f.until(lambda: running.done() or f.ledger.done >= done + 8)  # those beyond the smaller share have ended
        most = 0
        await f.until(lambda: running.done() or f.ledger.done >= done + 24)
        assert not running.done() and 0 < most <= 4
        f.pool.drain("seen enough", ExitCode.STOPPED)
        await running
        assert not f.world.held
