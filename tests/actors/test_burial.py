import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from actors.burial import fence, in_company, kill_process, process_lives, release_leases
from rayeval.environments import FakeEnvironment
from rayeval.exceptions import EnvironmentCallError
from rayeval.schemas import ErrorKind, Lease


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def start_of(process: subprocess.Popen[bytes]) -> float:
    return psutil.Process(process.pid).create_time()


async def test_the_named_process_is_killed_and_gone(sleeper: subprocess.Popen[bytes]) -> None:
    started = start_of(sleeper)
    assert process_lives(sleeper.pid, started)
    assert await kill_process(sleeper.pid, started)
    assert not process_lives(sleeper.pid, started)


async def test_a_reused_pid_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    assert await kill_process(sleeper.pid, start_of(sleeper) - 100.0)
    assert sleeper.poll() is None


async def test_a_stopped_process_still_lives(sleeper: subprocess.Popen[bytes]) -> None:
    psutil.Process(sleeper.pid).suspend()
    assert process_lives(sleeper.pid, start_of(sleeper))
    assert await kill_process(sleeper.pid, start_of(sleeper))


async def test_here_the_fence_is_the_end_of_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    await fence(here=True, pid=sleeper.pid, start_time=start_of(sleeper), last_renewal=began, fence_s=3600.0)
    assert sleeper.wait(10.0) == -9


async def test_elsewhere_the_fence_is_time_and_nothing_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    await fence(here=False, pid=sleeper.pid, start_time=start_of(sleeper), last_renewal=began, fence_s=0.2, margin_s=0.1)
    assert time.monotonic() - began >= 0.3
    assert sleeper.poll() is None


async def test_an_actor_of_this_very_process_is_not_killed() -> None:
    own = psutil.Process()
    await fence(here=True, pid=os.getpid(), start_time=own.create_time(), last_renewal=time.monotonic(), fence_s=3600.0)


async def test_leases_that_cannot_be_released_are_told_and_the_rest_ends() -> None:
    class Stubborn(FakeEnvironment):
        async def release(self, lease: Lease) -> None:
            if lease.env_idx == 1:
                raise EnvironmentCallError("no", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)
            if lease.env_idx == 2:
                raise ZeroDivisionError  # a user's class
            await super().release(lease)

    leases = [Lease("shop", k, f"id-{k}") for k in range(40)]
    ended: list[Lease] = []
    assert await release_leases(Stubborn(("shop",)), leases, ended.append) == leases[1:3]
    assert sorted(ended) == [leases[0], *leases[3:]]


def test_company_is_another_death_at_about_the_same_moment() -> None:
    assert in_company(10.0, [None, 11.9], 2.0) and in_company(10.0, [8.0], 2.0)
    assert not in_company(10.0, [], 2.0) and not in_company(10.0, [None, 12.1, 7.9], 2.0)
