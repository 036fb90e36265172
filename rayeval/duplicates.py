"""Are the repeats of a task really different samples?

A server that ignores ``seed``, or does not sample at all, gives the same episode again under every seed: the repeats then say nothing
new, and standard errors worked out from them are too small. Here episodes of one task are compared in pairs, each by a hash of all
that the model generated (text, reasoning, tool calls; not the ids a server makes up).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rayeval.schemas import JsonObject

if TYPE_CHECKING:
    from rayeval.plan import Plan

MIN_PAIRS = 20
SHARE = 0.5
"""From here on identical pairs are a finding: half of them, of no fewer than ``MIN_PAIRS``. A model that is sure of itself repeats short
episodes now and then; a server that ignores seeds repeats nearly all."""


def generation_of(models: Iterable[Mapping[str, Any]]) -> str | None:
    """The ``steps[].model`` of one episode -> 16 hex digits; None for an episode in which the model said nothing."""
    return generation_hash([part for model in models for part in generated_by(model)])


def generated_by(model: Mapping[str, Any]) -> list[str]:
    """All that one ``steps[].model`` holds of the model's own, for ``generation_hash``."""
    parts = ["\x1e", str(model.get("content") or ""), "\x1f", str(model.get("reasoning") or "")]
    calls = model.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            raw = call.get("raw_arguments")
            parts += ("\x1f", str(call.get("name")), "\x1f", raw if isinstance(raw, str) else str(call.get("arguments")))
    return parts


def generation_hash(parts: Sequence[str]) -> str | None:
    """16 hex digits for what all turns of an episode generated, in order; None for none."""
    if not parts:
        return None
    return blake2b("".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def should_differ(plan: Plan) -> bool:
    """Whether repeats are sampled under seeds of their own: temperature above 0, more than one repeat, seeds sent."""
    model = plan.semantic.get("model")
    if not isinstance(model, dict) or plan.repeats < 2 or not model.get("send_seed", True):
        return False
    temperature = model.get("temperature")
    return isinstance(temperature, (int, float)) and temperature > 0


def too_alike(found: Mapping[str, Any]) -> bool:
    """Whether ``Generations.to_json()`` says that repeats are no samples of their own."""
    return bool(found["pairs"] >= MIN_PAIRS and found["identical"] >= SHARE * found["pairs"])


def alike_sentence(found: Mapping[str, Any]) -> str:
    """The finding in words."""
    return (
        f"{100 * found['share']:.0f} % of {found['pairs']} pairs of episodes of one task are the same although their seeds differ "
        "and temperature is above 0: the model server seems to ignore seed or sampling, and repeats add nothing"
    )


@dataclass(slots=True)
class Generations:
    """Hashes of completed episodes by task. Eight bytes an episode; the order in which they came does not matter.

    Full (``max_tasks``, ``max_per_task``; 0: no bound) it takes no more: what it has stands for the rest.
    """

    max_tasks: int = 0
    max_per_task: int = 0
    pairs: int = 0
    """Pairs of episodes of one task."""
    _by_task: dict[int, array[int]] = field(default_factory=dict)

    def add(self, task_id: int, generation: str) -> None:
        """One episode; call it once an episode."""
        known = self._by_task.get(task_id)
        if known is None:
            if self.max_tasks and len(self._by_task) >= self.max_tasks:
                return
            known = self._by_task[task_id] = array("Q")
        if self.max_per_task and len(known) >= self.max_per_task:
            return
        self.pairs += len(known)
        known.append(int(generation, 16))

    def merge(self, other: Generations) -> None:
        """Take in the episodes of ``other``, which is not changed."""
        for task_id, theirs in other._by_task.items():
            mine = self._by_task.setdefault(task_id, array("Q"))
            self.pairs += (len(mine) + len(theirs)) * (len(mine) + len(theirs) - 1) // 2 - len(mine) * (len(mine) - 1) // 2
            mine.extend(theirs)

    def to_json(self) -> JsonObject:
        """``tasks_compared`` and ``episodes_compared`` (those with another one of their task), ``pairs`` of them, how many of these are
        ``identical``, and the ``share``; null without a pair."""
        tasks = episodes = identical = 0
        for known in self._by_task.values():
            if len(known) > 1:
                tasks += 1
                episodes += len(known)
                identical += sum(n * (n - 1) // 2 for n in Counter(known).values())
        return {
            "tasks_compared": tasks,
            "episodes_compared": episodes,
            "pairs": self.pairs,
            "identical": identical,
            "share": identical / self.pairs if self.pairs else None,
        }
