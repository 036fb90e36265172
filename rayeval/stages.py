"""Where an episode stands, as far as somebody who watches a run wants to know.

The runtime writes one attribute of an ``EpisodeMark`` at each turn, the text that its trace would give as ``error.stage``; whoever watches
reads it when it likes. No clock is read and nothing is counted on the way.
"""

from __future__ import annotations

STAGES = ("queued", "pacing", "resetting", "model", "environment", "releasing")
"""In the order in which an episode comes through them.

queued       in its actor, waiting for a slot (the driver's own queue is not among them)
pacing       has a slot, and waits until its server may be asked for one more reset
resetting    the reset is sent and not answered; also on a server that is full
model        a model call, with its retries and with waiting for leave to make it
environment  a step, or the environment's own end of the episode
releasing    over, and giving its slot back
"""

_BY_STEP = {"model": "model", "environment": "environment", "policy_termination": "environment"}
_ONCE = {
    "queued": "queued",
    "pacing": "pacing",
    "reset": "resetting",
    "skill_selection": "resetting",
    "action_limit_termination": "environment",
    "release": "releasing",
}


class EpisodeMark:
    """The place of one episode."""

    __slots__ = ("stage",)

    def __init__(self, stage: str = "pacing") -> None:
        self.stage = stage


def read_stage(stage: str) -> tuple[str, int]:
    """``model_step_3`` -> (``model``, 3): one of ``STAGES``, and the step from 1 or 0 outside of one. A text of no known form counts as
    ``environment``, for nothing else runs code that is not ours."""
    head, mark, number = stage.rpartition("_step_")
    if mark and head in _BY_STEP and number.isdecimal():
        return _BY_STEP[head], int(number)
    return _ONCE.get(stage, "environment"), 0
