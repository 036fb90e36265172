"""What happens after an actor is declared dead, and to the leases of an owner found dead.

Declared dead is not dead: after its raylet's end an actor's process may run on. So its slots stay taken until it cannot act any more:
* where the driver sees its pid (same kernel, same pid namespace), that process, known by its start time, is killed and waited for;
* in the driver's own process (``LocalHandle``) its right ended with its handle, and there is nothing to kill;
* elsewhere, ``fence_s`` after the last moment a renewal can have reached it, it has stopped by itself (``freshness.py``).
Only then are its leases released and its jobs run again.

Whose deed was it? A job that is lost twice with its actor is suspected of ending it. Actors that die at one moment, and those of a node
that is gone, were ended by something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil

from rayeval.environments import Environment
from rayeval.schemas import Lease
from rayeval.store import process_space as process_space

_KILL_WAIT_S = 10.0
_RELEASE_S = 30.0
_START_TOLERANCE_S = 0.05


def process_lives(pid: int, start_time: float) -> bool:
    """Whether that very process runs (or is stopped); a zombie does not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - start_time) < _START_TOLERANCE_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


async def kill_process(pid: int, start_time: float) -> bool:
    """SIGKILL that very process and wait for its end. -> whether it is gone."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while process_lives(pid, start_time):
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
    return True


async def fence(*, here: bool, pid: int, start_time: float, last_renewal: float, fence_s: float, margin_s: float = 1.0) -> None:
    """Return once the process can act no more. ``last_renewal`` on this process's monotonic clock, as late as it may have been."""
    if here and pid == os.getpid():
        return
    if here and await kill_process(pid, start_time):
        return
    await asyncio.sleep(max(0.0, last_renewal + fence_s + margin_s - time.monotonic()))


def in_company(died_at: float, others: Iterable[float | None], within_s: float) -> bool:
    """Whether one of the other actors, too, was declared dead within ``within_s`` of this moment (None: it lives)."""
    return any(other is not None and abs(other - died_at) <= within_s for other in others)


async def release_leases(environment: Environment, leases: Iterable[Lease], on_ended: Callable[[Lease], None]) -> list[Lease]:
    """Release what a dead owner held, sixteen at a time. -> those that could not be released."""
    gate = asyncio.Semaphore(16)
    kept: list[Lease] = []

    async def one(lease: Lease) -> None:
        async with gate:
            try:
                async with asyncio.timeout(_RELEASE_S):
                    await environment.release(lease)
            except Exception:  # also whatever a user's class raises: what it holds is told, and the other leases are released
                kept.append(lease)
            else:
                on_ended(lease)

    await asyncio.gather(*(one(lease) for lease in leases))
    return kept
