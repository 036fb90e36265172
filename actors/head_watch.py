"""Whether Ray itself is there: the head of the cluster (its GCS), and the processes of a Ray that this driver started.

A driver whose head is gone is ended by Ray's own core after a while (``cluster.RECONNECT_S``), in the middle of whatever it does and with
an exit code of Ray's. So the driver looks by itself, and drains long before: actors and driver talk without the head, so what is finished
is still written and slots are given back. A Ray of this driver's own comes back by nobody's hand, so its end drains at once.

Invariants: one look at a time; a look is one TCP connection, bounded by ``asking.CONNECT_S``.
Closing rule: none; the looks are the pool's tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil
import ray

from actors.asking import takes_connections
from rayeval.schemas import ExitCode

if TYPE_CHECKING:
    from actors.pool import RolloutPool

GONE_S = 30.0
"""No connection for so long: drain. A head that is restarted with its state (GCS fault tolerance) is usually back sooner."""
_EVERY_S = 5.0
_RAYS = ("gcs_server", "raylet")


class HeadWatch:
    """A governor. ``address``: ``host:port`` of the GCS; ``own``: the processes without which a Ray that this one started is none."""

    def __init__(self, address: str, gone_s: float = GONE_S, every_s: float = _EVERY_S, own: Sequence[psutil.Process] = ()) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._gone_s, self._every_s = gone_s, every_s
        self._looked_at: float | None = None
        self._answered_at: float | None = None
        self._looking = False
        self._told = False
        self._own = [(process, process.name()) for process in own]

    def look(self, pool: RolloutPool, now: float) -> None:
        gone = next((name for process, name in self._own if not _lives(process)), None)
        if gone is not None and not pool.phase.draining:
            pool.drain(f"the Ray that this run started on this machine has ended: its {gone} is gone", ExitCode.STOPPED, grace_s=0.0)
        if self._answered_at is None:
            self._answered_at = now
        if self._looking or (self._looked_at is not None and now - self._looked_at < self._every_s):
            return
        self._looking, self._looked_at = True, now
        pool.start(self._ask(pool), "head")

    async def _ask(self, pool: RolloutPool) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await self._answers()
        finally:
            self._looking = False
        now = loop.time()
        if answers:
            if self._told:
                pool.note("info", "the head of the Ray cluster answers again")
            self._answered_at, self._told = now, False
            return
        silent = now - (self._answered_at if self._answered_at is not None else now)
        where = f"the head of the Ray cluster ({self._host}:{self._port})"
        if not self._told:
            self._told = True
            pool.note("warning", f"{where} does not answer: no actor can be replaced meanwhile")
        if silent >= self._gone_s and not pool.phase.draining:
            pool.drain(f"{where} has been gone for {silent:.0f} s", ExitCode.STOPPED, grace_s=0.0)

    async def _answers(self) -> bool:
        return await takes_connections(f"{self._host}:{self._port}")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def head_watch(private: bool) -> HeadWatch | None:
    """The watch of the Ray this process is in; None where its head's address is not told. ``private``: this process started it."""
    with contextlib.suppress(Exception):  # whatever Ray makes of the question, or a process that ends as it is looked at
        own = [child for child in psutil.Process().children() if child.name() in _RAYS] if private else []
        return HeadWatch(ray.get_runtime_context().gcs_address, own=own)
    return None
