"""What a bad day is held to, read from the run's own files, the servers' figures and their request log."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from actors.engine import RunOutcome
from rayeval.store import RunDirectory, canonical_hash_of_run, iter_traces

ENV_SLOTS = 64
FENCE_S = 15.0
_FENCE_MARGIN_S = 1.0
"""What the driver waits beyond ``fence_s`` before it uses a dead actor's slots."""


@dataclass
class Death:
    """One strike at actors."""

    what: str
    at: float
    """Unix time."""
    actor_ids: list[str]
    pids: list[int]
    resets_in_flight: int
    """Resets that these very actors had sent and not read the answer of."""


@dataclass
class Report:
    """What happened."""

    outcome: RunOutcome | None = None
    deaths: list[Death] = field(default_factory=list)
    peak_leases: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """For each life of the server: (most resets that waited at once because every slot was taken, resets that the dead left unanswered). A
    server hands out no lease beyond its slots; one who asks for more than there are shows by resets that wait."""
    held_at_end: int = -1
    nodes: set[str] = field(default_factory=set)
    blocked: str | None = None
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Findings:
    """Collects in ``wrong`` what is not as promised, and in ``figures`` what was measured."""

    def __init__(self, report: Report, notes: list[tuple[float, str]], run_dir: Path, log: Path) -> None:
        self.report, self.notes, self.run_dir = report, notes, run_dir
        self.wrong: list[str] = list(report.problems)
        self.figures: dict[str, Any] = {}
        self.lines = list(iter_traces(RunDirectory(run_dir)))
        self.requests = [(float(when), action, lease) for when, action, _, lease, _ in map(str.split, log.read_text().splitlines())]
        self.owner: dict[str, str] = {}
        """Lease id -> actor id."""
        for line in (run_dir / "leases.jsonl").read_bytes().splitlines():
            record = orjson.loads(line)
            if record["kind"] == "held":
                self.owner[record["lease"][2]] = record["actor"]

    def expect(self, holds: bool, words: str) -> None:
        """Note ``words`` where something does not hold."""
        if not holds:
            self.wrong.append(words)

    def exactly_once(self, episodes: int) -> None:
        """Every episode has one completed line."""
        completed = Counter(t["episode_id"] for t in self.lines if t["status"] == "completed")
        self.figures["completed"] = len(completed)
        most = max(completed.values(), default=0)
        self.expect(len(completed) == episodes and most == 1, f"{len(completed)} of {episodes} completed, most often {most} times")

    def same_hash(self, calm: str) -> None:
        """The traces are those of the undisturbed run."""
        self.expect(canonical_hash_of_run(RunDirectory(self.run_dir)) == calm, "the canonical hash differs from the undisturbed run's")

    def leases(self) -> None:
        """Never more than there are slots, counting those who ask for one: only a reset that the dead left unanswered may make one wait."""
        report = self.report
        self.expect(report.peak_leases <= ENV_SLOTS, f"{report.peak_leases} leases at the peak, {ENV_SLOTS} slots")
        for waited, left in report.waiting:
            self.expect(waited <= left, f"{waited} resets waited on a full server, and the dead had left {left} unanswered")
        self.expect(report.held_at_end == 0, f"{report.held_at_end} leases held at the end")

    def deaths(self, expected: list[str]) -> None:
        """The strikes came, and each met actors with a reset of their own in flight."""
        found = [death.what for death in self.report.deaths]
        self.expect(found == expected, f"deaths {found} instead of {expected}")
        for death in self.report.deaths:
            self.expect(bool(death.actor_ids), f"the {death.what} had no actor")
            self.expect(death.resets_in_flight > 0, f"no reset of the {death.what}'s actors was in flight")

    def back_in_time(self, slack_s: float = 10.0) -> None:
        """Each death lost attempts, and all of them began again within ``fence_s`` + ``slack_s`` of it; those that an earlier death had
        lost as well are suspects and run alone, one after the other, so only their number is told."""
        by_episode: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for trace in self.lines:
            by_episode[trace["episode_id"]].append(trace)
        waits: dict[int, list[float]] = defaultdict(list)
        alone: list[float] = []
        for traces in by_episode.values():
            traces.sort(key=lambda t: t["attempt"])
            losses = 0
            for before, after in itertools.pairwise(traces):
                if (before.get("error") or {}).get("stage") == "lost":
                    losses += 1
                    gone = datetime.fromisoformat(before["ended_at"]).timestamp()
                    again = datetime.fromisoformat(after["started_at"]).timestamp()
                    earlier = [k for k, death in enumerate(self.report.deaths) if death.at <= gone]
                    self.expect(bool(earlier), f"{before['episode_id']} was lost before any death")
                    if earlier:
                        (waits[earlier[-1]] if losses == 1 else alone).append(again - self.report.deaths[earlier[-1]].at)
        self.figures["ran_again_after_s"] = [round(max(waits[k]), 1) if waits[k] else None for k in range(len(self.report.deaths))]
        self.figures["suspects_ran_alone_after_s"] = [round(s, 1) for s in sorted(alone)]
        self.figures["attempts_lost"] = [len(waits[k]) for k in range(len(self.report.deaths))]
        for k, death in enumerate(self.report.deaths):
            self.expect(bool(waits[k]), f"the {death.what}'s death lost no attempt")
            worst = max(waits[k], default=0.0)
            self.expect(worst <= FENCE_S + slack_s, f"the {death.what}'s episodes ran again up to {worst:.1f} s after its death")

    def declared(self, actor_id: str) -> float | None:
        """When the driver declared it dead and stopped renewing it, in unix time."""
        return next((at for at, text in self.notes if text.startswith(f"{actor_id} is lost")), None)

    def fenced(self, left_alive_s: float | None = None) -> None:
        """No actor of a lost node acts later than ``fence_s`` after the last renewal it can have had. With ``left_alive_s`` one at least
        acts that long after it was declared dead: else there was nothing to fence."""
        acted: dict[str, float] = defaultdict(float)
        for when, action, lease in self.requests:
            if action == "interact" and lease in self.owner:
                acted[self.owner[lease]] = max(acted[self.owner[lease]], when)
        after = {}
        for death in self.report.deaths:
            for actor_id in death.actor_ids if death.what == "raylet" else ():
                declared = self.declared(actor_id)
                if declared is None:
                    self.wrong.append(f"{actor_id} was never declared dead")
                    continue
                after[actor_id] = acted[actor_id] - declared
                late = after[actor_id] > FENCE_S + _FENCE_MARGIN_S
                self.expect(not late, f"{actor_id} acted {after[actor_id]:.1f} s after it was declared dead")
        self.expect(bool(after), "no actor of a lost node was looked at")
        self.figures["last_act_after_declared_dead_s"] = {name: round(s, 1) for name, s in after.items()}
        if left_alive_s is not None:
            self.expect(max(after.values(), default=0.0) >= left_alive_s, f"no actor acted {left_alive_s:g} s after it was declared dead")
