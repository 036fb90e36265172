"""What a death left behind, from a run's traces and a count of answers: arithmetic, and nothing that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rayeval.store import RunDirectory, iter_traces

WINDOW_S = 3.0
"""Over so long a rate is taken: some hundreds of answers."""

Mark = tuple[float, int]
"""A moment in seconds and the answers counted by then."""


def outlines(run_dir: RunDirectory) -> Iterator[dict[str, Any]]:
    """What is asked of a trace here, without its conversation."""
    for trace in iter_traces(run_dir):
        kept = {name: trace[name] for name in ("episode_id", "attempt", "status", "started_at")}
        yield {**kept, "stage": (trace["error"] or {}).get("stage")}


def missing_and_doubled(traces: Sequence[Mapping[str, Any]], planned: int) -> dict[str, int]:
    """Of ``planned`` episodes: those without a completed line, and completed lines beyond the first of an episode."""
    completed = Counter(trace["episode_id"] for trace in traces if trace["status"] == "completed")
    return {"missing": planned - len(completed), "doubled": sum(completed.values()) - len(completed)}


def again_s(traces: Sequence[Mapping[str, Any]], killed_at: float) -> list[float]:
    """For each attempt that was lost with an actor: seconds from the kill to the start of the next attempt of its episode, ascending.
    Raises RuntimeError for one that had none."""
    starts: dict[tuple[str, int], float] = {
        (trace["episode_id"], trace["attempt"]): datetime.fromisoformat(trace["started_at"]).timestamp() for trace in traces
    }
    lost = [(trace["episode_id"], trace["attempt"]) for trace in traces if trace["stage"] == "lost"]
    if never := [episode for episode, attempt in lost if (episode, attempt + 1) not in starts]:
        raise RuntimeError(f"{len(never)} episodes were lost with their actor and never ran again: {never[:5]}")
    return sorted(starts[episode, attempt + 1] - killed_at for episode, attempt in lost)


def rate(marks: Sequence[Mark], since: float, until: float) -> float:
    """Answers a second between the first look from ``since`` on and the first from ``until`` on. Raises RuntimeError when there are not
    two looks."""
    first = next((mark for mark in marks if mark[0] >= since), None)
    last = next((mark for mark in marks if mark[0] >= until), None)
    if first is None or last is None or last[0] <= first[0]:
        raise RuntimeError(f"no two counts of answers between {since:.1f} and {until:.1f}")
    return (last[1] - first[1]) / (last[0] - first[0])


def back_s(marks: Sequence[Mark], killed_at: float, wanted: float) -> float | None:
    """Seconds from the kill to the first look from which on, over ``WINDOW_S``, answers came at ``wanted`` a second; None: never."""
    for moment, _ in marks:
        if moment < killed_at:
            continue
        if moment + WINDOW_S > marks[-1][0]:
            return None
        if rate(marks, moment, moment + WINDOW_S) >= wanted:
            return moment - killed_at
    return None
