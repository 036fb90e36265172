import asyncio
from typing import Any

import pytest

from actors.broker import FENCE_MARGIN_S, IDLE_S, SETTLE_S, SILENT_S, Answer, Report, RunSpec, SlotBroker
from rayeval.environments import FakeEnvironment
from rayeval.exceptions import EnvironmentCallError
from rayeval.schemas import ErrorKind, Lease
from tests.waiting import until

SERVER = "fake://shop"
FENCE_S = 20.0


class Clock:
    """A monotonic clock that a test moves; the broker looks every half second, as it does by itself."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shop(FakeEnvironment):
    """Its releases fail while it is ``down``."""

    down = False

    async def release(self, lease: Lease) -> None:
        if self.down:
            raise EnvironmentCallError("no answer", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)
        await super().release(lease)

    async def aclose(self) -> None:
        """Shared with the test."""


class Run:
    """A run's side of the protocol, without a pool."""

    def __init__(self, broker: SlotBroker, name: str, weight: int = 1) -> None:
        self.broker, self.run_id = broker, name
        self.spec = RunSpec(name, weight, FENCE_S, {}, False, (SERVER,))
        self.number = self.applied = self.quota = self.notes_seen = 0
        self.incarnation: str | None = None
        self.known = False

    def say(self, want: int, *, slots: int = 16, taken: int | None = None, **more: Any) -> Answer:
        self.number += 1
        answer = self.broker.take(
            Report(
                self.run_id,
                self.number,
                self.incarnation,
                self.applied,
                wants={SERVER: want},
                taken={SERVER: self.quota if taken is None else taken},
                slots={SERVER: slots},
                spec=None if self.known else self.spec,
                **more,
            )
        )
        if answer.quotas is None:
            self.known = False
            return answer
        self.known, self.incarnation = True, answer.incarnation
        self.applied, self.quota = answer.number, answer.quotas.get(SERVER, 0)
        return answer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shop() -> Shop:
    return Shop((SERVER,), options={"slots": 16})


@pytest.fixture
def broker(clock: Clock, shop: Shop) -> SlotBroker:
    return SlotBroker(clock=clock, build=lambda _: shop)


def pass_(broker: SlotBroker, clock: Clock, seconds: float, *alive: tuple[Run, int]) -> None:
    """Let time pass; runs in ``alive`` go on reporting what they want."""
    until_ = clock.now + seconds
    while clock.now < until_:
        clock.now += 0.5
        for run, want in alive:
            run.say(want)
        broker.look()


def leases(shop: Shop, count: int) -> list[Lease]:
    """Leases that the shop counts."""
    made = [Lease(SERVER, i, f"lease-{i}") for i in range(count)]
    shop.held |= {lease.lease_id: lease for lease in made}
    return made


async def test_nothing_is_dealt_until_runs_had_time_to_say_what_they_hold(broker: SlotBroker, clock: Clock) -> None:
    new, old = Run(broker, "new"), Run(broker, "old")
    old.quota = 12  # from a broker that is gone
    assert not new.say(16).settled
    old.say(16)
    assert (new.quota, old.quota) == (0, 12)
    pass_(broker, clock, SETTLE_S + 0.5, (new, 16), (old, 16))
    pass_(broker, clock, 1, (old, 16), (new, 16))
    assert (new.quota, old.quota) == (8, 8)


async def test_quotas_follow_weight_and_demand(broker: SlotBroker, clock: Clock) -> None:
    training, evaluation = Run(broker, "training", weight=3), Run(broker, "evaluation")
    both = ((training, 16), (evaluation, 16))
    pass_(broker, clock, SETTLE_S + 2, *both)
    assert (training.quota, evaluation.quota) == (12, 4)
    pass_(broker, clock, 2, (training, 2), (evaluation, 16))
    assert (training.quota, evaluation.quota) == (2, 14)


async def test_a_run_that_another_broker_knew_is_asked_to_say_everything(broker: SlotBroker, clock: Clock) -> None:
    run = Run(broker, "run")
    run.known, run.incarnation = True, "an earlier one"
    assert run.say(4).quotas is None
    assert run.say(4).quotas == {SERVER: 0}


async def test_a_report_that_was_overtaken_changes_nothing(broker: SlotBroker, clock: Clock) -> None:
    run = Run(broker, "run")
    pass_(broker, clock, SETTLE_S + 1, (run, 4))
    run.number -= 2
    assert run.say(16).quotas is None
    assert (await broker.status())["runs"]["run"]["quotas"] == {SERVER: 4}


async def test_a_silent_run_is_frozen_and_speaks_again(broker: SlotBroker, clock: Clock) -> None:
    silent, other = Run(broker, "silent"), Run(broker, "other")
    pass_(broker, clock, SETTLE_S + 2, (silent, 6), (other, 16))
    pass_(broker, clock, SILENT_S + 1, (other, 16))
    assert (await broker.status())["runs"]["silent"]["state"] == "silent"
    assert other.quota == 10
    silent.say(16)
    pass_(broker, clock, 2, (silent, 16), (other, 16))
    assert (silent.quota, other.quota) == (8, 8)


async def test_slots_of_a_lapsed_run_serve_the_others_once_its_leases_are_released(broker: SlotBroker, clock: Clock, shop: Shop) -> None:
    dead, other = Run(broker, "dead"), Run(broker, "other")
    pass_(broker, clock, SETTLE_S + 2, (dead, 16), (other, 16))
    dead.say(16, held=leases(shop, 7), resetting={SERVER: 1})
    shop.held["unnamed"] = Lease(SERVER, 15, "unnamed")
    pass_(broker, clock, FENCE_S + FENCE_MARGIN_S, (other, 16))
    assert len(shop.held) == 8 and other.quota == 8
    pass_(broker, clock, 1, (other, 16))
    await until(lambda: list(shop.held) == ["unnamed"])
    await until(lambda: other.say(16) and other.quota == 16)
    await until(lambda: len(other.say(16).notes) == 2)  # it fell silent; it is over
    note = other.say(16).notes[-1][1]
    assert "7 of its 7 leases were released" in note and "up to 1 more cannot be named" in note
    assert "dead" not in (await broker.status())["runs"]
    assert dead.say(16).quotas is None


async def test_leases_that_cannot_be_released_stay_taken(broker: SlotBroker, clock: Clock, shop: Shop) -> None:
    dead, other = Run(broker, "dead"), Run(broker, "other")
    pass_(broker, clock, SETTLE_S + 2, (dead, 16), (other, 16))
    dead.say(16, held=leases(shop, 5))
    shop.down = True
    pass_(broker, clock, FENCE_S + FENCE_MARGIN_S + 1, (other, 16))
    await until(lambda: other.say(16) and other.quota == 11)
    assert len(shop.held) == 5


async def test_a_run_that_leaves_is_forgotten_and_what_it_could_not_release_is_released(
    broker: SlotBroker, clock: Clock, shop: Shop
) -> None:
    run, other = Run(broker, "run"), Run(broker, "other")
    pass_(broker, clock, SETTLE_S + 2, (run, 16), (other, 16))
    run.say(0, held=leases(shop, 2))
    assert other.say(16).others == {SERVER: 2}
    run.say(0, leaving=True)
    await until(lambda: not shop.held)
    await until(lambda: other.say(16) and other.quota == 16)


async def test_lease_changes_add_up(broker: SlotBroker, shop: Shop) -> None:
    run = Run(broker, "run")
    first, second, third = leases(shop, 3)
    run.say(4, held=[first, second])
    run.say(4, held=[third], ended=[first])
    run.say(4, held=[third])  # said twice
    assert (await broker.status())["runs"]["run"]["held"] == 2
    run.known = False
    run.say(4, held=[third])  # everything
    assert (await broker.status())["runs"]["run"]["held"] == 1


async def test_time_in_which_the_broker_did_not_run_is_held_against_nobody(broker: SlotBroker, clock: Clock) -> None:
    run = Run(broker, "run")
    pass_(broker, clock, SETTLE_S + 1, (run, 16))
    clock.now += 300.0
    broker.look()
    assert (await broker.status())["runs"]["run"]["state"] == "live"


async def test_a_broker_without_runs_ends(clock: Clock) -> None:
    ended: list[bool] = []
    broker = SlotBroker(clock=clock, on_idle=lambda: ended.append(True))
    run = Run(broker, "run")
    pass_(broker, clock, IDLE_S + 5, (run, 1))
    assert not ended
    run.say(0, leaving=True)
    pass_(broker, clock, IDLE_S - 1)
    assert not ended
    pass_(broker, clock, 2)
    assert ended


async def test_an_environment_that_cannot_be_made_costs_the_run_its_place(clock: Clock, shop: Shop) -> None:
    def fail(spec: RunSpec) -> Any:
        raise ImportError("no such class")

    broker = SlotBroker(clock=clock, build=fail)
    dead, other = Run(broker, "dead"), Run(broker, "other")
    pass_(broker, clock, SETTLE_S + 2, (dead, 16), (other, 16))
    dead.say(16, held=leases(shop, 5))
    pass_(broker, clock, FENCE_S + FENCE_MARGIN_S + 1, (other, 16))
    await asyncio.sleep(0)
    assert "cannot be released here (ImportError: no such class)" in (await broker.status())["notes"][-1]
    other.say(16)
    assert other.quota == 16
