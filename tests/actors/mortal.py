"""An environment whose first actor logs, prints and dies in the middle of an episode: what it said must be found afterwards."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rayeval.environments import FakeEnvironment
from rayeval.environments.base import LeaseListener
from rayeval.environments.fake import FakeEpisode
from rayeval.schemas import EpisodeJob

KIND = "tests.actors.mortal.MortalShop"
_log = logging.getLogger("my_shop")


class MortalShop(FakeEnvironment):
    """``options: {flag: PATH, task: N}``: the first actor that opens the task makes the file and dies."""

    def __init__(self, base_urls: Sequence[str] = (), persona: bool = False, options: Any = None, timeouts: Any = None) -> None:
        super().__init__(base_urls, persona, None, timeouts)
        self._flag, self._task = Path(options["flag"]), options["task"]

    def open(self, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> FakeEpisode:
        if job.task_id == self._task:
            _log.warning("about to open task %d, with the key hunter2secret", job.task_id)
            if not self._flag.exists():
                self._flag.touch()
                sys.stderr.write("Fatal: the shelf fell down (hunter2secret)\n")
                sys.stderr.flush()
                os._exit(3)
        return super().open(job, server, on_lease, guard)
