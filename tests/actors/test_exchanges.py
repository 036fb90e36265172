import asyncio
import time
from pathlib import Path

import pytest

from actors.exchanges import Exchanges
from actors.handles import ActorGoneError
from actors.member import Member, MemberState
from actors.messages import Order, Reply
from tests.actors.fields import Field, FragileHandle, completed, field


def exchanges(f: Field, slack_s: float = 60.0) -> Exchanges:
    return Exchanges(
        f.pool.phase,
        ledger=f.ledger,
        dispatch=f.pool.dispatch,
        replies=f.pool._replies,
        note=lambda level, text: f.notes.append((level, text)),
        slack_s=slack_s,
    )


class Silent(FragileHandle):
    """Takes an order and never answers."""

    async def exchange(self, order: Order) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError


def known(f: Field, kind: type[FragileHandle] = Silent) -> Member:
    """A member of the pool whose actor never answers."""
    handle = kind(f.pool._make_spec("actor-001", 2))
    member = f.pool.members[handle.spec.actor_id] = Member(handle.spec, handle, state=MemberState.WORKING)
    f.pool.dealer.join(member.actor_id, 2)
    return member


async def test_an_exchange_without_a_reply_is_the_actors_end(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        member = known(f)
        with pytest.raises(ActorGoneError, match=r"no reply for 0\.05 s"):
            await asyncio.wait_for(exchanges(f, slack_s=0.05).serve(member), 10.0)


async def test_nudges_are_no_sign_of_life(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        member = known(f)

        async def nudging() -> None:
            while True:
                member.nudge.set()
                await asyncio.sleep(0.02)

        nudges = asyncio.create_task(nudging())
        with pytest.raises(ActorGoneError, match=r"no reply for 0\.1 s"):
            await asyncio.wait_for(exchanges(f, slack_s=0.1).serve(member), 10.0)
        nudges.cancel()


async def test_a_reply_that_is_there_when_a_stopped_driver_goes_on_counts(tmp_path: Path) -> None:
    class Late(FragileHandle):
        async def exchange(self, order: Order) -> Reply:
            await asyncio.sleep(0.0)
            time.sleep(0.2)  # noqa: ASYNC251 (the driver stands still)
            await asyncio.sleep(0.05)
            f.pool.phase.closing = True
            return Reply(1, order.number)

    async with field(tmp_path) as f:
        member = known(f, Late)
        await asyncio.wait_for(exchanges(f, slack_s=0.1).serve(member), 10.0)
        assert member.acknowledged == 1


async def test_it_ends_when_the_pool_closes_and_leaves_no_call_open(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        member = known(f)
        before = asyncio.all_tasks()
        serving = asyncio.create_task(exchanges(f).serve(member))
        await asyncio.sleep(0.01)
        f.pool.phase.closing = True
        member.nudge.set()
        await asyncio.wait_for(serving, 10.0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def test_never_more_than_two_exchanges_are_open_at_an_actor(tmp_path: Path) -> None:
    open_now: dict[str, int] = {}
    most: dict[str, int] = {}

    class Counting(FragileHandle):
        async def exchange(self, order: Order) -> Reply:
            name = self.spec.actor_id
            open_now[name] = open_now.get(name, 0) + 1
            most[name] = max(most.get(name, 0), open_now[name])
            try:
                return await super().exchange(order)
            finally:
                open_now[name] -= 1

    async with field(tmp_path, tasks=40, handle=Counting) as f:
        await f.run()
        assert len(completed(f)) == 40
        assert len(most) == 2 and all(1 <= n <= 2 for n in most.values())


async def test_a_lost_reply_is_asked_for_again_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    resent: list[int] = []

    class Losing(FragileHandle):
        async def exchange(self, order: Order) -> Reply:
            if order.resend:
                resent.append(order.number)
            elif not resent and order.number == 2:
                self.lose_a_reply()
            return await super().exchange(order)

    async with field(tmp_path, tasks=30, actors=1, handle=Losing) as f:
        await f.run()
        assert resent, "it was never asked for again"
        assert set(completed(f).values()) == {1} and len(completed(f)) == 30
        assert f.noted("a reply was lost on the way, asking again") and not f.noted("is lost with")


async def test_cancelled_it_leaves_no_task_behind(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        before = asyncio.all_tasks()
        serving = asyncio.create_task(exchanges(f).serve(known(f)))
        await asyncio.sleep(0.01)
        serving.cancel()
        await asyncio.wait([serving], timeout=10.0)
        await asyncio.sleep(0)
        assert serving.cancelled() and asyncio.all_tasks() == before
