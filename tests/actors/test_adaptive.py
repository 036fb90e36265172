from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adaptive import Adaptive, episodes_wanted
from actors.messages import Reply
from tests.actors.fields import MODEL, Field, field

SHOP_SLOTS_MANY = 10_000


def say(f: Field, limits: tuple[int, int, int], in_flight: int, **more: object) -> None:
    """What every actor reports from now on."""
    for member in f.pool.members.values():
        reply = Reply(1, 1)
        reply.limits, reply.in_flight = {MODEL: limits}, in_flight
        for name, value in more.items():
            setattr(reply, name, value)
        member.last = reply


async def started(f: Field) -> None:
    """Actors that work, in a pool that does not run."""
    for _ in range(f.pool.settings.actors):
        f.pool.bear(2)
    await f.until(lambda: all(m.alive for m in f.pool.members.values()))
    for server in f.pool.dealer.admission:
        f.pool.dealer.admission[server] = SHOP_SLOTS_MANY


async def ended(f: Field) -> None:
    f.pool.phase.closing = True
    await f.pool._close()


def test_a_quarter_more_than_the_limit_and_those_that_are_elsewhere() -> None:
    assert episodes_wanted([(32, 32, 8)], 45) == 41 + 5
    assert episodes_wanted([(8, 8, 0)], 8) == 16  # nobody waits: the limit may be growing
    assert episodes_wanted([(8, 8, 3), (16, 16, 4)], 31) == 11 + 21
    assert episodes_wanted([], 5) == 5


@given(st.integers(1, 4096), st.integers(0, 4096))
def test_enough_episodes_for_the_limit_whatever_is_elsewhere(limit: int, elsewhere: int) -> None:
    wanted = episodes_wanted([(limit, limit, 1)], limit + 1 + elsewhere)
    assert limit + elsewhere < wanted <= 1.25 * limit + 2 + elsewhere


async def test_slots_follow_the_limits_once_a_second(tmp_path: Path) -> None:
    async with field(tmp_path, actors=2, slots=16) as f:
        await started(f)
        governor = Adaptive()
        say(f, (10, 10, 3), 13)
        governor.look(f.pool, 100.0)
        assert f.pool.slots == 28
        assert sorted(m.slots for m in f.pool.members.values()) == [14, 14]
        say(f, (8, 8, 3), 11)
        governor.look(f.pool, 100.5)
        assert f.pool.slots == 28
        governor.look(f.pool, 101.0)
        assert f.pool.slots == 22
        say(f, (8, 8, 3), 11)
        await ended(f)


async def test_slots_stay_within_servers_actors_and_the_cap(tmp_path: Path) -> None:
    async with field(tmp_path, actors=2, slots=200) as f:
        await started(f)
        say(f, (300, 300, 10), 310)
        Adaptive(per_actor=100).look(f.pool, 1.0)
        assert f.pool.slots == 200
        Adaptive(most=150).look(f.pool, 1.0)
        assert f.pool.slots == 150
        f.pool.dealer.admission = dict.fromkeys(f.pool.dealer.admission, 60)
        Adaptive().look(f.pool, 1.0)
        assert f.pool.slots == 60
        f.pool.dealer.admission = dict.fromkeys(f.pool.dealer.admission, SHOP_SLOTS_MANY)
        Adaptive().look(f.pool, 1.0)
        assert f.pool.slots == 120  # at most doubled in one move
        lowered = Adaptive()
        lowered.most = 119
        lowered.look(f.pool, 1.0)
        assert f.pool.slots == 119
        await ended(f)


@pytest.mark.parametrize("trouble", ["out", "pauses"])
async def test_slots_stay_while_an_endpoint_is_away(tmp_path: Path, trouble: str) -> None:
    async with field(tmp_path, actors=1, slots=16) as f:
        await started(f)
        say(f, (8, 0, 0), 16, **{trouble: {MODEL: 3.0}})
        Adaptive().look(f.pool, 1.0)
        assert f.pool.slots == 16
        await ended(f)


async def test_endpoints_get_episodes_in_proportion_to_what_they_bear(tmp_path: Path) -> None:
    async with field(tmp_path, actors=1, slots=16) as f:
        f.pool.dispatch.endpoint_weights = {MODEL: 3.0}
        assert f.pool.dispatch._weighed_load(MODEL) == pytest.approx(1 / 3)
