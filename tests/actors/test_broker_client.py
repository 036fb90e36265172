import asyncio
import contextlib
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.broker import MODEL as MODEL_SLOTS
from actors.broker import Answer, BrokerGoneError, Report, RunSpec, SlotBroker
from actors.broker_client import LOST_S, BrokerClient, spread
from rayeval.environments.fake import FakeCall
from tests.actors.fields import MODEL, Field, field
from tests.actors.plans import SHOP

SLOTS = 16


class Link:
    """The way of several runs to one broker in this process; a test cuts it or puts another broker at its end."""

    def __init__(self) -> None:
        self.cut = False
        self.reports: list[tuple[float, Report]] = []
        self.start_broker()

    def start_broker(self) -> None:
        self.broker = SlotBroker()
        self.broker._settled_at = 0.0

    async def sync(self, report: Report, timeout_s: float) -> Answer:
        await asyncio.sleep(0)
        if self.cut:
            raise BrokerGoneError("no way there")
        self.reports.append((time.monotonic(), report))
        return await self.broker.sync(report)


class Traffic:
    """A hook: calls take ``pace`` seconds; what is held at once, and resets that find the server full, are counted."""

    def __init__(self) -> None:
        self.pace = 0.03
        self.world: Any = None
        self.peak = self.waited = 0

    def __call__(self, call: FakeCall) -> Any:
        if call.name == "reset":
            self.waited += self.world.taken(SHOP) >= SLOTS
        self.peak = max(self.peak, self.world.taken(SHOP))
        return asyncio.sleep(self.pace)


@contextlib.asynccontextmanager
async def two_runs(root: Path, link: Link, *, tasks: int = 60, **options: Any) -> Any:
    """Two fields that share one world of 16 slots and a broker; -> (fields, traffic)."""
    traffic = Traffic()
    async with (
        field(root / "a" / "shared", tasks=tasks, slots=SLOTS, hook=traffic) as first,
        field(root / "b" / "shared", tasks=tasks, slots=SLOTS, hook=traffic) as second,
    ):
        world = traffic.world = second.world
        world.slots = SLOTS
        first.world = first.pool.environment = world
        for f, name in ((first, "training"), (second, "evaluation")):
            f.client = client_of(f, link, name, **options)
        yield (first, second), traffic


def client_of(f: Field, link: Link, name: str, model_slots: int | None = None) -> BrokerClient:
    spec = RunSpec(name, 1, 30.0, f.config, False, (SHOP,))
    client = BrokerClient(link, spec, {SHOP: SLOTS}, {MODEL: model_slots} if model_slots else {})
    client.attach(f.pool)
    f.pool._governors.append(client)
    return client


async def run(f: Field) -> None:
    try:
        assert await f.run() is None
    finally:
        await f.client.aclose(f.pool)


@pytest.fixture
def link() -> Iterator[Link]:
    yield Link()


def test_what_is_wanted_is_spread_by_slots_and_asked_elsewhere_when_a_server_does_not_give() -> None:
    slots = {"a": 16, "b": 16}
    assert spread(16, slots, {}) == {"a": 8, "b": 8}
    assert spread(16, slots, {"a": 4, "b": 8}) == {"a": 8, "b": 12}
    assert spread(16, slots, {"a": 4, "b": 12}) == {"a": 8, "b": 12}
    assert spread(16, slots, {"a": 8, "b": 12}) == {"a": 8, "b": 8}
    assert spread(0, slots, {"a": 8}) == {"a": 0, "b": 0}
    assert spread(100, slots, {}) == {"a": 16, "b": 16}
    assert spread(4, {}, {}) == {}


async def test_two_runs_share_a_server_and_both_come_to_their_end(tmp_path: Path, link: Link) -> None:
    async with two_runs(tmp_path, link) as ((first, second), traffic):
        both = asyncio.gather(run(first), run(second))
        await first.until(lambda: first.pool.dealer.admission[SHOP] == 8 == second.pool.dealer.admission[SHOP])
        await first.until(lambda: len(first.pool.held()) > 0 < len(second.pool.held()))
        traffic.pace = 0.005
        await both
        assert first.ledger.done == second.ledger.done == 60
        assert 8 < traffic.peak <= SLOTS and not traffic.waited
        assert not traffic.world.held
        assert (await link.broker.status())["runs"] == {}
        times = [at for at, report in link.reports if report.run_id == first.client._run_id and not report.leaving]
        assert all(later - earlier > 0.2 for earlier, later in pairwise(times[1:]))  # at most four a second


async def test_a_new_broker_learns_from_its_runs_and_nothing_is_given_twice(tmp_path: Path, link: Link) -> None:
    async with two_runs(tmp_path, link, tasks=150) as ((first, second), traffic):
        both = asyncio.gather(run(first), run(second))
        await first.until(lambda: first.pool.dealer.admission[SHOP] == 8 == second.pool.dealer.admission[SHOP])
        link.cut = True
        await asyncio.sleep(0.3)
        assert first.pool.dealer.admission[SHOP] == 8 == second.pool.dealer.admission[SHOP]
        link.broker = SlotBroker()  # deals nothing new for five seconds
        link.cut = False
        await first.until(lambda: link.broker._runs.keys() == {first.client._run_id, second.client._run_id})
        await first.until(lambda: any("started anew" in text for _, text in first.notes))
        assert link.broker._shares.outstanding(SHOP) <= SLOTS
        traffic.pace = 0.005
        await both
        assert first.ledger.done == second.ledger.done == 150
        assert traffic.peak <= SLOTS and not traffic.waited


async def test_a_run_without_a_broker_admits_nothing_and_one_that_lost_it_keeps_its_quota(tmp_path: Path, link: Link) -> None:
    async with field(tmp_path, tasks=40, slots=SLOTS) as f:
        link.cut = True
        client = client_of(f, link, "run")
        now = time.monotonic()

        async def look(at: float) -> None:
            client.look(f.pool, now + at)
            await asyncio.sleep(0.01)

        for at in (0.0, 0.5, 1.0):
            await look(at)
        assert f.pool.dealer.admission[SHOP] == 0
        link.cut = False
        for at in (2.0, 2.5, 3.0):
            await look(at)
        assert f.pool.dealer.admission[SHOP] == SLOTS
        link.cut = True
        for at in (5.0, 10.0, 3.5 + LOST_S, 5.0 + LOST_S, 10.0 + LOST_S):
            await look(at)
        assert f.pool.dealer.admission[SHOP] == SLOTS
        assert [text for level, text in f.notes if "has not answered" in text and level == "warning"] != []
        link.cut = False
        for at in (12.0, 14.0, 16.0):
            await look(at + LOST_S)
        assert ("info", "the slot broker answers again") in f.notes
        assert link.reports[-1][1].held == []


async def test_a_paused_run_gives_up_what_it_does_not_use(tmp_path: Path, link: Link) -> None:
    async with two_runs(tmp_path, link, tasks=150) as ((first, second), traffic):
        both = asyncio.gather(run(first), run(second))
        await first.until(lambda: first.pool.dealer.admission[SHOP] == 8 == second.pool.dealer.admission[SHOP])
        first.pool.pause(True)
        await first.until(lambda: second.pool.dealer.admission[SHOP] == SLOTS)
        first.pool.pause(False)
        await first.until(lambda: first.pool.dealer.admission[SHOP] == 8)
        traffic.pace = 0.005
        await both
        assert first.ledger.done == 150


async def test_episodes_at_a_model_endpoint_stay_within_its_slots_over_all_runs(tmp_path: Path, link: Link) -> None:
    async with two_runs(tmp_path, link, tasks=20, model_slots=5) as ((first, second), traffic):
        traffic.pace = 0.01
        await asyncio.gather(run(first), run(second))
        assert first.ledger.done == second.ledger.done == 20
        assert 3 < traffic.peak <= 5
        assert MODEL_SLOTS + MODEL in link.reports[0][1].slots
