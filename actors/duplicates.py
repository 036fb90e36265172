"""Watches whether the repeats of a task are samples of their own (``rayeval.duplicates``), and says so once when they are not.

Bounded: it keeps ``_TASKS`` tasks of ``_EACH`` episodes, which is enough for a server's habit. The summary counts all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rayeval.duplicates import SHARE, Generations, alike_sentence, too_alike
from rayeval.schemas import EpisodeStatus, FinishedTrace

if TYPE_CHECKING:
    from actors.pool import RolloutPool

_TASKS, _EACH = 1024, 16
_EVERY_S = 5.0
_FEW_TASKS, _MANY_PAIRS = 3, 200
"""The episodes that end first are the short ones, and those of one easy task may well be alike: fewer tasks than this need more pairs,
and while there are few pairs the share must be clearly above the half that the summary asks for."""


class DuplicateWatch:
    """A governor; hand ``counted`` to the ledger."""

    def __init__(self) -> None:
        self._generations = Generations(max_tasks=_TASKS, max_per_task=_EACH)
        self._looked_at = 0
        self._next = 0.0
        self.told = False

    def counted(self, trace: FinishedTrace) -> None:
        """A trace is durable."""
        generation, task_id = trace.figures.get("generation"), trace.figures.get("task_id")
        if trace.status == EpisodeStatus.COMPLETED and isinstance(task_id, int) and generation is not None and not self.told:
            self._generations.add(task_id, generation)

    def look(self, pool: RolloutPool, now: float) -> None:
        if self.told or now < self._next or self._generations.pairs == self._looked_at:
            return
        self._next, self._looked_at = now + _EVERY_S, self._generations.pairs
        found = self._generations.to_json()
        pairs = found["pairs"]
        clearly = found["identical"] >= SHARE * pairs + math.sqrt(pairs)
        if too_alike(found) and clearly and (found["tasks_compared"] >= _FEW_TASKS or pairs >= _MANY_PAIRS):
            self.told = True
            pool.note("warning", alike_sentence(found))
