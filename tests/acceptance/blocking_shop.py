"""A ShopSimulator that a bad day can be timed by, through files named in ``environment.options``.

``marker``: while it is there, the next episode opened blocks its actor's loop for the seconds written in it.
``resets``: a directory that holds one file ``PID-N`` for each reset under way; those of a dead pid are the resets it left unanswered.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayeval.environments import EnvironmentEpisode, EnvironmentTimeouts, ShopSimulator
from rayeval.environments.base import LeaseListener
from rayeval.schemas import EpisodeJob, JsonObject, Lease
from rayeval.transport import AiohttpTransport


class MarkedEpisode:
    """Tells of its reset by a file."""

    def __init__(self, episode: EnvironmentEpisode, mark: Path) -> None:
        self._episode, self._mark = episode, mark

    @property
    def lease(self) -> Lease | None:
        return self._episode.lease

    async def reset(self) -> JsonObject:
        self._mark.touch()
        try:
            return await self._episode.reset()
        finally:
            self._mark.unlink()

    async def step(self, action: str) -> JsonObject:
        return await self._episode.step(action)

    async def terminate(self, reason: str) -> JsonObject:
        return await self._episode.terminate(reason)

    async def close(self) -> None:
        await self._episode.close()


class BlockingShop(ShopSimulator):
    def __init__(
        self, base_urls: Sequence[str], *, persona: bool, options: Mapping[str, Any], timeouts: EnvironmentTimeouts, **_: Any
    ) -> None:
        super().__init__(base_urls, transport=AiohttpTransport(), persona=persona, timeouts=timeouts)
        self._marker = Path(options["marker"])
        self._resets = Path(options["resets"])
        self._numbers = itertools.count()

    def open(self, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> EnvironmentEpisode:  # type: ignore[override]
        if self._marker.exists():
            claimed = self._marker.with_suffix(f".{os.getpid()}")
            try:
                self._marker.rename(claimed)
            except FileNotFoundError:
                pass  # another actor took it
            else:
                time.sleep(float(claimed.read_text()))  # the point: the work loop stands still
        return MarkedEpisode(super().open(job, server, on_lease, guard), self._resets / f"{os.getpid()}-{next(self._numbers)}")
