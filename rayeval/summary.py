"""From traces to ``summary.json``: one small contribution a trace (``figures``), added up exactly (``moments``), so that the sums of a run
depend neither on the order its traces were written in, nor on how they were grouped before merging.

Two views of one file, kept apart:

verdicts   one for each episode (its last valid line): what is scored, what failed for good
lines      every attempt, the thrown-away ones too: what the run cost and where it hurt
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayeval.costs import Prices, prices_of_run
from rayeval.duplicates import Generations, should_differ
from rayeval.exceptions import InputError
from rayeval.figures import TOKEN_FIELDS, figures_of
from rayeval.moments import Moments
from rayeval.schemas import (
    FOREIGN_TRACE_SCHEMAS,
    SUMMARY_SCHEMA,
    TRACE_SCHEMA,
    ErrorKind,
    JsonObject,
    Termination,
)

if TYPE_CHECKING:
    from rayeval.store import RunDirectory
    from rayeval.store.reading import TraceScanner

READABLE_SCHEMAS = FOREIGN_TRACE_SCHEMAS | {TRACE_SCHEMA}


@dataclass(slots=True)
class Aggregate:
    """Sums of figures. ``merge`` is associative and commutative; nothing here depends on order."""

    reward: Moments = field(default_factory=Moments)
    components: dict[str, Moments] = field(default_factory=dict)
    steps: Moments = field(default_factory=Moments)
    duration_ms: Moments = field(default_factory=Moments)
    completed: Counter[str] = field(default_factory=Counter)
    """Sums over completed episodes: episodes, actions, protocol errors, tokens ..."""
    terminations: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Failed episodes by exception type."""
    failed_kinds: Counter[str] = field(default_factory=Counter)
    """Failed episodes by ``ErrorKind``."""
    samples: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For each kind of failure one failed episode and its message: of those there are, the first by id."""
    quarantined: set[str] = field(default_factory=set)
    """Episode ids that killed an actor of their own."""
    lines: Counter[str] = field(default_factory=Counter)
    """Sums over every attempt."""
    line_kinds: Counter[str] = field(default_factory=Counter)
    model_retries: Counter[str] = field(default_factory=Counter)
    generations: Generations | None = None
    """Given where repeats should differ (``duplicates.should_differ``)."""

    def add(self, figures: Mapping[str, Any]) -> None:
        """Count the verdict of one episode; call it once an episode."""
        if not figures["completed"]:
            self.errors[figures["error_type"]] += 1
            self.failed_kinds[figures["error_kind"]] += 1
            self._sample(figures["error_kind"], (str(figures["episode_id"]), figures.get("error_message") or ""))
            if figures["error_kind"] == ErrorKind.QUARANTINED:
                self.quarantined.add(str(figures["episode_id"]))
            return
        if figures["reward"] is not None:
            self.reward.add(figures["reward"])
        for name, value in figures["components"].items():
            self.components.setdefault(name, Moments()).add(value)
        self.steps.add(float(figures["steps"]))
        if figures["duration_ms"] is not None:
            self.duration_ms.add(figures["duration_ms"])
        self.terminations[figures["termination"]] += 1
        self.completed["episodes"] += 1
        self.completed["resampled_episodes"] += figures["resampled"] > 0
        self.completed["unreadable_episodes"] += figures["unreadable"] > 0
        if self.generations is not None and figures["generation"] is not None and isinstance(figures["task_id"], int):
            self.generations.add(figures["task_id"], figures["generation"])
        _count_work(self.completed, figures)

    def add_line(self, figures: Mapping[str, Any]) -> None:
        """Count one attempt, whatever became of it."""
        self.lines["lines"] += 1
        if not figures["completed"]:
            self.lines["failed_lines"] += 1
            self.line_kinds[figures["error_kind"]] += 1
        self.lines["lost"] += figures["lost"]
        self.lines["cleanup_failed"] += figures["cleanup_failed"]
        for code in (Termination.GENERATION_LENGTH, Termination.CONTEXT_OVERFLOW):
            self.lines[code.value] += figures["policy_failures"].get(code, 0)
        self.model_retries.update(figures["model_retries"])
        _count_work(self.lines, figures)

    def _sample(self, kind: str, sample: tuple[str, str]) -> None:
        self.samples[kind] = min(sample, self.samples.get(kind, sample))

    def merge(self, other: Aggregate) -> None:
        """Take in the sums of ``other``, which is not changed."""
        for mine, theirs in (
            (self.reward, other.reward),
            (self.steps, other.steps),
            (self.duration_ms, other.duration_ms),
        ):
            mine.merge(theirs)
        for name, moments in other.components.items():
            self.components.setdefault(name, Moments()).merge(moments)
        for counts, more in (
            (self.completed, other.completed),
            (self.terminations, other.terminations),
            (self.errors, other.errors),
            (self.failed_kinds, other.failed_kinds),
            (self.lines, other.lines),
            (self.line_kinds, other.line_kinds),
            (self.model_retries, other.model_retries),
        ):
            counts.update(more)
        for kind, sample in other.samples.items():
            self._sample(kind, sample)
        self.quarantined |= other.quarantined
        if other.generations is not None:
            self.generations = self.generations or Generations()
            self.generations.merge(other.generations)

    def to_summary(self, planned: int, not_run: int, prices: Prices | None = None) -> JsonObject:
        """The groups of the summary. ``planned`` and ``not_run`` are counted from the plan, the rest from traces: they must agree.
        The cost is that of every attempt.

        Raises InputError when planned != completed + failed + not_run.
        """
        completed, failed = self.completed["episodes"], self.errors.total()
        if planned != completed + failed + not_run:
            raise InputError(
                "counts",
                f"planned {planned}, completed {completed}, failed {failed}, not run {not_run}",
                "these do not add up: the traces hold episodes that the manifest does not plan; "
                "give the run directory its own traces.jsonl and manifest.json",
            )
        done, lines = self.completed, self.lines
        success = self.components.get("r_success")
        missing = planned - self.reward.count
        return {
            "counts": {
                "requested": planned,
                "trace_files": completed + failed,
                "completed": completed,
                "failed": failed,
                "not_run": not_run,
                "scored": self.reward.count,
                "coverage": _rate(completed, planned),
                "coverage_of_attempted": _rate(completed, completed + failed),
            },
            "primary": {
                "reward_mean": self.reward.mean(),
                "reward_sem": self.reward.sem(),
                "success_rate": success.mean() if success else None,
            },
            "bounds": {
                "reward_mean_low": self.reward.mean(missing, 0),
                "reward_mean_high": self.reward.mean(missing, 1),
                "excluded": missing,
            },
            "reward_components": {name: m.mean() for name, m in sorted(self.components.items())},
            "behavior": {
                "steps_mean": self.steps.mean(),
                "model_steps": done["steps"],
                "protocol_errors": done["protocol_errors"],
                "protocol_error_rate": _rate(done["protocol_errors"], done["steps"]),
                "policy_failures": done["policy_failures"],
                "policy_failure_rate": _rate(done["policy_failures"], done["steps"]),
                "invalid_actions": done["invalid_actions"],
                "total_actions": done["actions"],
                "invalid_action_rate": _rate(done["invalid_actions"], done["actions"]),
                "termination_reasons": _sorted_counts(self.terminations),
            },
            "cost": {
                "duration_ms_mean": self.duration_ms.mean(),
                "tokens": {name: done[name] for name in TOKEN_FIELDS},
                **_cost(lines, completed, prices),
            },
            "duplicates": None if self.generations is None else self.generations.to_json(),
            "errors": _sorted_counts(self.errors),
            "failed_by_kind": _sorted_counts(self.failed_kinds),
            "failure_samples": {kind: {"episode_id": e, "message": text} for kind, (e, text) in sorted(self.samples.items())},
            "quarantined": sorted(self.quarantined),
            "resampled": {"steps": done["resampled"], "episodes": done["resampled_episodes"]},
            "unreadable_answers": {"steps": done["unreadable"], "episodes": done["unreadable_episodes"]},
            "attempts": {
                "lines": lines["lines"],
                "failed_lines": lines["failed_lines"],
                "by_kind": _sorted_counts(self.line_kinds),
                "lost": lines["lost"],
                "cleanup_failed": lines["cleanup_failed"],
                "model_steps": lines["steps"],
                "total_actions": lines["actions"],
                "invalid_actions": lines["invalid_actions"],
                "protocol_errors": lines["protocol_errors"],
                "policy_failures": lines["policy_failures"],
                "generation_length": lines["generation_length"],
                "context_overflow": lines["context_overflow"],
                "resampled_steps": lines["resampled"],
                "model_retries": _sorted_counts(self.model_retries),
                "tokens": {name: lines[name] for name in TOKEN_FIELDS},
            },
        }


def _cost(lines: Mapping[str, int], completed: int, prices: Prices | None) -> JsonObject:
    """Money for every attempt, and that for each completed episode; null without prices."""
    if prices is None:
        return {"amount": None, "currency": None, "per_episode": None}
    amount = prices.of(lines)
    return {"amount": amount, "currency": prices.currency, "per_episode": amount / completed if completed else None}


def _count_work(counts: Counter[str], figures: Mapping[str, Any]) -> None:
    for name in ("steps", "actions", "invalid_actions", "protocol_errors", "unreadable", "resampled"):
        counts[name] += figures[name]
    counts["policy_failures"] += sum(figures["policy_failures"].values())
    counts["cached_tokens"] += figures["cached_tokens"]
    counts.update(figures["tokens"])


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _sorted_counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts) if counts[name]}


def summarize_run(run_dir: RunDirectory, extras: Mapping[str, Any] | None = None) -> JsonObject:
    """Summarize what is on disk; the run may be live. ``extras``: further groups that the run knows and its traces do not, such as
    ``{"unaccounted_leases": {"http://shop:5700": 2}}``.

    One pass, with a word an episode in memory; a foreign file in which an episode has lines after its completed one takes a second.
    Raises InputError for a manifest that is missing or damaged and for traces that are not this plan's.
    """
    from rayeval.plan import plan_of_manifest

    manifest = run_dir.read_manifest()
    plan = plan_of_manifest(manifest)
    aggregate, verdicts, skipped = _collect(run_dir, should_differ(plan))
    not_run = sum(1 for job in plan.jobs() if job.episode_id not in verdicts)
    summary: JsonObject = {
        "schema": SUMMARY_SCHEMA,
        "run": run_dir.name,
        "fingerprint": manifest.get("plan_fingerprint"),
        "skipped": skipped,
        **aggregate.to_summary(plan.job_count, not_run, prices_of_run(run_dir)),
    }
    for name, group in (extras or {}).items():
        if name in summary:
            raise ValueError(f"extras may not replace the group {name!r}")
        summary[name] = group
    return summary


def _aggregate(comparing: bool) -> Aggregate:
    return Aggregate(generations=Generations() if comparing else None)


def _collect(run_dir: RunDirectory, comparing: bool) -> tuple[Aggregate, set[str], int]:
    """-> sums, the episodes that have a verdict, lines that could not be read."""
    import orjson

    from rayeval.store.reading import TraceScanner

    scanner = TraceScanner(run_dir.traces, run_dir.receipts)
    aggregate = _aggregate(comparing)
    done: set[str] = set()
    foreign_done: set[str] = set()
    failed: dict[str, JsonObject] = {}
    contested: dict[str, JsonObject] = {}
    for line in scanner:
        figures = figures_of(orjson.loads(line.raw))
        aggregate.add_line(figures)
        episode_id = line.episode_id
        if episode_id in done:
            # After our own completed line nothing counts; among foreign ones the last does.
            if line.foreign and episode_id in foreign_done:
                contested[episode_id] = figures
        elif figures["completed"]:
            failed.pop(episode_id, None)
            done.add(episode_id)
            if line.foreign:
                foreign_done.add(episode_id)
            aggregate.add(figures)
        else:
            failed[episode_id] = figures
    if contested:
        aggregate = _without(scanner, contested.keys(), comparing)
        for figures in contested.values():
            aggregate.add(figures)
    for figures in failed.values():
        aggregate.add(figures)
    return aggregate, done | failed.keys(), scanner.bad_lines


def _without(scanner: TraceScanner, left_out: Collection[str], comparing: bool) -> Aggregate:
    """All lines, and the verdicts of completed episodes but those ``left_out``."""
    import orjson

    aggregate = _aggregate(comparing)
    done: set[str] = set()
    for line in scanner:
        figures = figures_of(orjson.loads(line.raw))
        aggregate.add_line(figures)
        if figures["completed"] and line.episode_id not in left_out and line.episode_id not in done:
            done.add(line.episode_id)
            aggregate.add(figures)
    return aggregate
