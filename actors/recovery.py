"""Leases that outlived their driver: found in the journal, fenced, released; and those that nobody can name.

The server has no time-to-live, so a lease whose reset was never answered belongs to nobody. ``exclusive_environment`` says that no one
else uses the servers; then, and only then, such leases are ended by ``release_all``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from actors.burial import fence, process_space, release_leases
from rayeval.environments import Environment
from rayeval.exceptions import EndpointsOutError, EnvironmentCallError
from rayeval.schemas import ServerCapacity
from rayeval.store import JournalActor, LeaseJournal, RunDirectory, load_journal

_SETTLE_S = 0.25
"""A reset that was in flight when its client died is answered within a step's time; two equal looks this far apart count as settled."""
_SETTLE_LOOKS = 40
_CAPACITY_S = 10.0


@dataclass(slots=True)
class Recovered:
    """What a start found."""

    actors: int = 0
    """Earlier actors that had not ended in order."""
    released: int = 0
    unreleased: int = 0


async def capacities(environment: Environment) -> Sequence[ServerCapacity]:
    """Ask every server, bounded. Raises EndpointsOutError naming the one that does not answer."""
    try:
        async with asyncio.timeout(_CAPACITY_S):
            return await environment.capacity()
    except EnvironmentCallError as error:
        raise EndpointsOutError(f"environment: {error}") from error
    except TimeoutError:
        raise EndpointsOutError(f"environment: no answer to a look at its slots within {_CAPACITY_S:g} s") from None


async def living_capacities(environment: Environment, servers: Iterable[str]) -> list[ServerCapacity]:
    """Slots of the servers that answer; those that do not are left out."""
    ask_one: Callable[[str], Awaitable[ServerCapacity]] | None = getattr(environment, "server_capacity", None)
    asked = [ask_one(server) for server in servers] if ask_one is not None else []
    found: list[ServerCapacity] = []
    try:
        async with asyncio.timeout(_CAPACITY_S):
            if ask_one is None:
                return list(await environment.capacity())
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, ServerCapacity):
                    found.append(answer)
    except Exception:  # also whatever a user's class raises: one look less is no reason to end a run
        return []
    return found


async def recover(
    environment: Environment, run_dir: RunDirectory, journal: LeaseJournal, fence_s: float, note: Callable[[str, str], None]
) -> Recovered:
    """Fence every actor that an earlier driver left, then release what it held."""
    state = load_journal(run_dir.leases)
    found = Recovered()
    started = time.monotonic()
    left = [actor for actor in state.actors.values() if not actor.gone]
    if any(actor.boot_id != process_space() for actor in left):
        note("info", f"waiting up to {fence_s:g} s until actors on other machines have stopped by themselves")

    async def one(actor: JournalActor) -> None:
        # wall clocks of two machines differ: the whole fence from now on is waited elsewhere, the remembered rest here
        await fence(
            here=actor.boot_id == process_space(),
            pid=actor.pid,
            start_time=actor.start_time,
            last_renewal=started,
            fence_s=fence_s,
        )
        leases = state.held_by(actor.actor_id)
        kept = await release_leases(environment, leases, lambda lease: journal.ended(actor.actor_id, lease))
        found.released += len(leases) - len(kept)
        found.unreleased += len(kept)
        if not kept:
            journal.actor_gone(actor.actor_id)

    await asyncio.gather(*(one(actor) for actor in left))
    found.actors = len(left)
    return found


async def unaccounted(environment: Environment, held: Counter[str]) -> dict[str, int]:
    """For each server: slots taken beyond those in ``held``. Raises EndpointsOutError."""
    return {
        c.server: max(0, c.slots - c.free - held[c.server]) for c in await capacities(environment) if c.slots - c.free - held[c.server] > 0
    }


async def clear_exclusive(environment: Environment, note: Callable[[str, str], None]) -> int:
    """End every lease of servers that are ours alone; called while this run holds none. -> how many nobody could name.

    Looks again until nothing is held twice in a row: a reset that was in flight when its client died may still take a slot.
    """
    cleared = quiet = 0
    for _ in range(_SETTLE_LOOKS):
        taken = await unaccounted(environment, Counter())
        if not taken:
            quiet += 1
            if quiet == 2:
                break
        else:
            quiet = 0
            for server, n in taken.items():
                cleared += n
                try:
                    await environment.release_all(server)
                except EnvironmentCallError as error:
                    note("warning", f"environment {server}: release_all failed: {error}")
        await asyncio.sleep(_SETTLE_S)
    if cleared:
        note("info", f"{cleared} environment leases were held by nobody and have been released")
    return cleared
