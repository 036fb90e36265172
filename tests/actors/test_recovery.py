import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from actors.burial import process_space
from actors.recovery import capacities, clear_exclusive, living_capacities, recover, unaccounted
from rayeval.environments import FakeEnvironment
from rayeval.exceptions import EndpointsOutError, EnvironmentCallError
from rayeval.schemas import ErrorKind, Lease, ServerCapacity
from rayeval.store import LeaseJournal, RunDirectory, load_journal

SERVERS = ("http://a", "http://b")


def quiet(level: str, text: str) -> None: ...


async def held(world: FakeEnvironment, journal: LeaseJournal, actor: str, n: int) -> list[Lease]:
    leases = [await world.acquire(SERVERS[k % 2]) for k in range(n)]
    for lease in leases:
        journal.held(actor, lease)
    return leases


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def dead_pid() -> int:
    return max(psutil.pids()) + 100_000


async def test_leases_of_a_dead_actor_are_released_and_written_down(run_dir: RunDirectory) -> None:
    world = FakeEnvironment(SERVERS)
    journal = LeaseJournal(run_dir.leases)
    journal.actor("1-actor-001", "n", "h", process_space(), dead_pid(), time.time())
    await held(world, journal, "1-actor-001", 6)
    found = await recover(world, run_dir, journal, 3600.0, quiet)
    assert (found.actors, found.released, found.unreleased) == (1, 6, 0)
    assert not world.held
    state = load_journal(run_dir.leases)
    assert not state.held and state.actors["1-actor-001"].gone
    again = await recover(world, run_dir, journal, 3600.0, quiet)
    assert again.actors == 0
    journal.close()


async def test_an_actor_on_another_machine_gets_its_fence_first(run_dir: RunDirectory) -> None:
    world = FakeEnvironment(SERVERS)
    journal = LeaseJournal(run_dir.leases)
    journal.actor("1-actor-001", "n", "elsewhere", "another-boot", psutil.Process().pid, psutil.Process().create_time())
    await held(world, journal, "1-actor-001", 1)
    notes: list[str] = []
    began = time.monotonic()
    found = await recover(world, run_dir, journal, 0.1, lambda level, text: notes.append(text))
    assert time.monotonic() - began >= 0.1
    assert found.released == 1 and not world.held
    assert "other machines" in notes[0]
    journal.close()


async def test_a_lease_that_cannot_be_released_stays_in_the_journal(run_dir: RunDirectory) -> None:
    class Stuck(FakeEnvironment):
        async def release(self, lease: Lease) -> None:
            raise EnvironmentCallError("no answer", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)

    world = Stuck(SERVERS)
    journal = LeaseJournal(run_dir.leases)
    journal.actor("1-actor-001", "n", "h", process_space(), dead_pid(), time.time())
    await held(world, journal, "1-actor-001", 2)
    found = await recover(world, run_dir, journal, 0.0, quiet)
    assert (found.released, found.unreleased) == (0, 2)
    state = load_journal(run_dir.leases)
    assert len(state.held) == 2 and not state.actors["1-actor-001"].gone
    journal.close()


async def test_slots_that_the_journal_does_not_name_are_counted(run_dir: RunDirectory) -> None:
    world = FakeEnvironment(SERVERS)
    leases = [await world.acquire("http://a") for _ in range(3)]
    assert await unaccounted(world, Counter({"http://a": 1})) == {"http://a": 2}
    assert await unaccounted(world, Counter({"http://a": 3})) == {}
    assert len(leases) == 3


async def test_an_exclusive_server_is_emptied_also_of_what_comes_late() -> None:
    class Late(FakeEnvironment):
        looks = 0

        async def capacity(self) -> list[ServerCapacity]:
            self.looks += 1
            if self.looks == 2:
                await self.acquire("http://b")  # a reset that was under way is answered between two looks
            return await super().capacity()

    world = Late(SERVERS)
    await world.acquire("http://a")
    notes: list[str] = []
    assert await clear_exclusive(world, lambda level, text: notes.append(text)) == 2
    assert not world.held
    assert notes == ["2 environment leases were held by nobody and have been released"]


async def test_a_server_that_does_not_answer_is_named() -> None:
    class Gone(FakeEnvironment):
        async def capacity(self) -> list[ServerCapacity]:
            raise EnvironmentCallError("http://b: no connection", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)

    with pytest.raises(EndpointsOutError, match="http://b: no connection"):
        await capacities(Gone(SERVERS))
    assert await living_capacities(Gone(SERVERS), SERVERS) == []
