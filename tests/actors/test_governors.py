import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayeval.environments.fake import FakeCall
from rayeval.exceptions import EnvironmentCallError
from rayeval.schemas import ErrorKind, ExitCode, Lease
from tests.actors.fields import Field, field
from tests.actors.plans import SHOP

OTHER = "http://other.invalid"


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What looks every few seconds looks all the time."""
    monkeypatch.setattr("actors.governors.ASK_EVERY_S", 0.05)
    monkeypatch.setattr("actors.servers.ASK_EVERY_S", 0.05)
    monkeypatch.setattr("actors.queue.RETRY_BASE_S", 0.1)
    yield


def take(f: Field, count: int) -> list[str]:
    """Somebody else takes slots of the server."""
    leases = [Lease(SHOP, n, f"theirs-{n}") for n in range(count)]
    f.world.held.update({lease.lease_id: lease for lease in leases})
    return [lease.lease_id for lease in leases]


async def leave(f: Field, lease_ids: list[str]) -> None:
    for lease_id in lease_ids:
        await f.world.give_back(f.world.held[lease_id])


def ours(f: Field) -> int:
    return sum(not lease_id.startswith("theirs") for lease_id in f.world.held)


# ---- Admission --------------------------------------------------------------------------------------------------------------------


async def test_admission_falls_to_what_others_leave_and_rises_when_they_go(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def hold(call: FakeCall) -> None:
        if call.name == "step":
            await gate.wait()

    async with field(tmp_path, tasks=20, hook=hold) as f:
        f.world.slots = 4
        theirs = take(f, 3)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.pool.dealer.admission[SHOP] == 1 and ours(f) == 1)
        assert f.noted(f"environment {SHOP}: 1 of 4 slots are open to this run")
        await leave(f, theirs)
        await f.until(lambda: f.pool.dealer.admission[SHOP] == 4 and ours(f) == 4)
        gate.set()
        assert await running is None
        assert f.ledger.done == 20 and f.ledger.retries == 0 and not f.world.held


async def test_a_server_that_stays_full_of_others_drains_the_run_and_is_named(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, stall_timeout_s=0.5) as f:
        f.world.slots = 4
        take(f, 4)
        assert await f.run() == ExitCode.STOPPED
        assert f.pool.reason == f"no reset was answered for 0.5 s: {SHOP} is full or stuck"
        assert f.pool.dealer.admission[SHOP] == 0
        assert f.queue.waiting == 8 and f.ledger.failed == f.ledger.lost == f.ledger.done == 0


async def test_an_answer_now_and_then_is_no_stall(tmp_path: Path) -> None:
    async def trickle(call: FakeCall) -> None:
        if call.name == "reset" and call.job.task_id == 0:
            await f.until(lambda: f.ledger.done == 11)
        elif call.name == "reset":
            await asyncio.sleep(0.2)

    async with field(tmp_path, tasks=12, actors=1, slots=2, hook=trickle, stall_timeout_s=1.2) as f:
        assert await f.run() is None
        assert f.ledger.done == 12


async def test_time_in_which_the_run_is_paused_is_no_stall(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, stall_timeout_s=1.0) as f:
        f.world.slots = 4
        theirs = take(f, 4)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.pool.dealer.admission[SHOP] == 0)
        f.pool.pause(True)
        await asyncio.sleep(1.5)
        assert f.pool.reason is None
        await leave(f, theirs)
        f.pool.pause(False)
        assert await running is None
        assert f.ledger.done == 8


async def test_a_ceiling_bounds_a_server_until_it_is_lifted(tmp_path: Path) -> None:
    most: dict[bool, int] = {True: 0, False: 0}
    capped = True

    async def count(call: FakeCall) -> None:
        most[capped] = max(most[capped], ours(f))
        await asyncio.sleep(0.005)

    async with field(tmp_path, tasks=400, hook=count) as f:
        f.pool.admission.set_ceiling(f.pool, SHOP, 2)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 12)
        capped = False
        f.pool.admission.set_ceiling(f.pool, SHOP, None)
        assert f.pool.dealer.admission[SHOP] == f.world.slots
        await f.until(lambda: most[False] == 4)
        f.pool.drain("seen enough", ExitCode.STOPPED)
        await running
        assert most[True] == 2


async def test_a_ceiling_never_admits_more_than_the_server_has(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        f.pool.admission.set_ceiling(f.pool, SHOP, 10_000)
        assert f.pool.dealer.admission[SHOP] == f.world.slots
        f.pool.admission.set_ceiling(f.pool, SHOP, -1)
        assert f.pool.dealer.admission[SHOP] == 0


async def test_a_refused_server_stays_refused_whatever_its_ceiling(tmp_path: Path) -> None:
    async with field(tmp_path, servers=(SHOP, OTHER)) as f:
        f.pool.refuse_server(OTHER, "another version")
        f.pool.admission.set_ceiling(f.pool, OTHER, 8)
        assert f.pool.dealer.admission == {SHOP: f.world.slots, OTHER: 0}
        assert f.pool.reason is None
        f.pool.refuse_server(SHOP, "another version")
        assert f.pool.exit_code == ExitCode.STOPPED


# ---- Outages ----------------------------------------------------------------------------------------------------------------------


class Outage:
    """A hook: while ``down`` the world neither answers calls nor looks at its slots."""

    def __init__(self) -> None:
        self.down = False

    async def __call__(self, call: FakeCall) -> None:
        if self.down and call.name != "close":
            raise EnvironmentCallError("connection refused", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)
        await asyncio.sleep(0.004)

    def attach(self, f: Field) -> None:
        ask = f.world.capacity

        async def capacity() -> Any:
            if self.down:
                raise EnvironmentCallError("connection refused", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)
            return await ask()

        f.world.capacity = capacity  # type: ignore[method-assign]


async def test_while_nothing_answers_dispatch_waits_and_nothing_counts_against_attempts(tmp_path: Path) -> None:
    outage = Outage()
    async with field(tmp_path, tasks=40, hook=outage, attempts=1) as f:
        outage.attach(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 4)
        outage.down = True
        await f.until(lambda: f.noted("dispatch waits") and f.queue.out == 0)
        assert f.noted(f"dispatch waits: no answer from {SHOP}")
        calls = len(f.world.calls)
        await asyncio.sleep(0.6)  # longer than the delay after which a lost attempt is tried again
        assert len(f.world.calls) == calls
        outage.down = False
        assert await running is None
        assert f.noted("servers answer again") and f.ledger.done == 40 and f.ledger.failed == 0


async def test_an_outage_that_lasts_too_long_drains_the_run_and_is_named(tmp_path: Path) -> None:
    outage = Outage()
    async with field(tmp_path, tasks=40, hook=outage, attempts=1, endpoint_outage_s=0.5) as f:
        outage.attach(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 4)
        outage.down = True
        assert await running == ExitCode.STOPPED
        assert (f.pool.reason or "").startswith(f"no answer from {SHOP} for")
        assert f.ledger.failed == 0 and f.queue.waiting == 40 - f.ledger.done > 0


@pytest.mark.slow
async def test_an_outage_begins_anew_with_every_answer(tmp_path: Path) -> None:
    outage = Outage()
    async with field(tmp_path, tasks=400, hook=outage, attempts=1, endpoint_outage_s=1.5) as f:
        outage.attach(f)
        running = asyncio.create_task(f.run())
        for _ in range(3):
            outage.down = True
            await f.until(lambda: running.done() or bool(f.pool.dispatch.all_out()))
            await asyncio.sleep(0.7)
            outage.down = False
            await f.until(lambda: running.done() or not f.pool.dispatch.all_out())
            done = f.ledger.done
            await f.until(lambda: running.done() or f.ledger.done > done)  # noqa: B023 (called in this turn)
        assert f.pool.reason is None
        f.pool.drain("seen enough", ExitCode.SIGTERM)
        assert await running == ExitCode.SIGTERM
