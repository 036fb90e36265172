"""Where the episodes of one actor stand, told to the driver at most once a second and in few bytes.

Invariants: lives in the actor's work loop; an episode is there from ``begin`` to ``end``; counts of a view add up to the episodes that are
there and those that wait. Time spent in a stage is counted from the look at which it was first seen, so it is short by up to a second:
reading a clock at each turn would cost every step what only a view needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from actors.messages import ActorView, EpisodeView
from rayeval.stages import STAGES, EpisodeMark, read_stage

LOOK_EVERY_S = 1.0
OLDEST = 10
"""Episodes a view names."""


@dataclass(slots=True)
class Watched:
    """One running episode."""

    started: float
    """Monotonic, when it took its slot."""
    mark: EpisodeMark
    seen: str
    seen_at: float


class Whereabouts:
    """The running episodes, in the order in which they began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self.episodes: dict[str, Watched] = {}

    def begin(self, episode_id: str) -> EpisodeMark:
        """-> the mark that its runtime is to write."""
        now, mark = self._clock(), EpisodeMark()
        self.episodes[episode_id] = Watched(now, mark, mark.stage, now)
        return mark

    def end(self, episode_id: str) -> None:
        """It is over, whatever became of it."""
        self.episodes.pop(episode_id, None)

    def view(self, queued: int) -> ActorView | None:
        """What to tell, or None when the last view is less than a second old. ``queued``: episodes that wait for a slot."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + LOOK_EVERY_S
        stages = dict.fromkeys(STAGES, 0)
        stages["queued"] = queued
        for watched in self.episodes.values():
            stage = watched.mark.stage
            if stage is not watched.seen:  # each turn writes a text of its own, equal or not
                watched.seen, watched.seen_at = stage, now
            stages[read_stage(stage)[0]] += 1
        oldest = []
        for episode_id, watched in islice(self.episodes.items(), OLDEST):
            stage, step = read_stage(watched.seen)
            oldest.append(EpisodeView(episode_id, now - watched.started, stage, now - watched.seen_at, step))
        return ActorView(stages, tuple(oldest))
