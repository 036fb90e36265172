"""Requests that must outlive their caller: resets nobody waits for any more, and releases.

Invariants:

* A reset is sent once and never cancelled while the environment is open. Its caller may stop waiting; the request goes on.
* A caller that stops waiting says so in the turn of the loop in which it stops (no await between), answer or no answer; the reaper
  then calls ``release`` once there is one. ``release`` is one task for all who ask, so a ``close`` beside it sends nothing twice.
* ``pending(server)`` counts resets without a caller whose answer has not come: each may hold a slot that has no name yet. It goes
  down at the answer; from then on the lease listener's word counts.
* Tasks are owned here, from ``start`` to their end; their exceptions are read here or by the caller.

Closing: ``drain`` waits a bounded time, then cancels what is left. A reset cut off by it stays in ``pending``: on the server it may
still take a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from rayeval.exceptions import EpisodeError

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Reaper:
    """Owner of the requests of one environment object."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._must_end: set[asyncio.Task[Any]] = set()
        self._pending: Counter[str] = Counter()
        self.on_reaped: Callable[[str], None] | None = None
        """Called with the server's URL after an abandoned reset was answered and its lease, if any, was released or given up on."""

    def start(self, request: Coroutine[Any, Any, T], must_end: bool = False) -> asyncio.Task[T]:
        """Run a request as a task of its own. ``must_end``: ``drain`` waits for it (releases)."""
        task = asyncio.get_running_loop().create_task(request)
        owned = self._must_end if must_end else self._running
        owned.add(task)
        task.add_done_callback(owned.discard)
        task.add_done_callback(_read_exception)
        return task

    def abandon(self, server: str, reset: asyncio.Task[Any], release: Callable[[], Awaitable[None]]) -> None:
        """Nobody waits for ``reset`` any more: at its answer, ``release`` is called."""
        self._pending[server] += 1
        reaping = self.start(self._reap(server, reset, release), must_end=True)
        reaping.set_name(f"reap reset at {server}")

    def pending(self, server: str) -> int:
        return self._pending[server]

    def pending_by_server(self) -> Mapping[str, int]:
        return {server: n for server, n in self._pending.items() if n}

    async def drain(self, timeout_s: float) -> None:
        """Wait for reaped resets and releases, at most ``timeout_s``; then cancel every request that is left."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while self._must_end and (left_s := give_up - loop.time()) > 0:  # a late release may join while others end
            await asyncio.wait(set(self._must_end), timeout=left_s)
        left = self._must_end | self._running
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=timeout_s)

    async def _reap(self, server: str, reset: asyncio.Task[Any], release: Callable[[], Awaitable[None]]) -> None:
        await asyncio.wait({reset})  # the server sets no bound to a queued reset; drain does
        if reset.cancelled():
            return
        self._pending[server] -= 1
        try:
            await release()
        except EpisodeError as error:
            _log.warning("a slot of %s is held by a late reset and could not be released: %s", server, error)
        if self.on_reaped is not None:
            self.on_reaped(server)


def _read_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
