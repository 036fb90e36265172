"""A ShopSimulator whose loop can be blocked from outside: the marker file named in ``environment.options`` says for how many seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayeval.environments import EnvironmentTimeouts, ShopSimulator
from rayeval.environments.base import LeaseListener
from rayeval.environments.shopsimulator import ShopEpisode
from rayeval.schemas import EpisodeJob
from rayeval.transport import AiohttpTransport


class BlockingShop(ShopSimulator):
    def __init__(
        self, base_urls: Sequence[str], *, persona: bool, options: Mapping[str, Any], timeouts: EnvironmentTimeouts, **_: Any
    ) -> None:
        super().__init__(base_urls, transport=AiohttpTransport(), persona=persona, timeouts=timeouts)
        self._marker = Path(options["marker"])

    def open(self, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> ShopEpisode:
        if self._marker.exists():
            claimed = self._marker.with_suffix(f".{os.getpid()}")
            try:
                self._marker.rename(claimed)
            except FileNotFoundError:
                pass  # another actor took it
            else:
                time.sleep(float(claimed.read_text()))  # the point: the work loop stands still
        return super().open(job, server, on_lease, guard)
