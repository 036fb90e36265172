"""A summary in words and columns. Plain text; the command line makes it safe for a terminal when it prints it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayeval.costs import money
from rayeval.duplicates import alike_sentence, too_alike


def percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def figure(value: float | None, digits: int = 4) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def mean_with_sem(primary: Mapping[str, Any]) -> str:
    """``0.4210 ± 0.0312 (SEM)``; without a standard error that part is left out, and no reward is ``n/a``."""
    mean, sem = primary["reward_mean"], primary["reward_sem"]
    return figure(mean) if mean is None or sem is None else f"{mean:.4f} ± {sem:.4f} (SEM)"


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """Coverage and reward; failures by kind (or that there are none); with prices the cost; what makes the figures doubtful."""
    counts, primary = summary["counts"], summary["primary"]
    first = (
        f"{counts['completed']} of {counts['requested']} episodes completed ({percent(counts['coverage'])}), "
        f"reward {mean_with_sem(primary)}, success {percent(primary['success_rate'])}"
    )
    excluded = counts["failed"] + counts["not_run"]
    more = [*_cost_line(summary["cost"]), *_alike_line(summary)]
    if excluded == 0:
        return [first, "no failures", *more]
    kinds = ", ".join(f"{kind} {n}" for kind, n in summary["failed_by_kind"].items())
    parts = [f"{counts['failed']} failed" + (f" ({kinds})" if kinds else "")]
    if counts["not_run"]:
        parts.append(f"{counts['not_run']} not run")
    second = ", ".join(parts)
    bounds = summary["bounds"]
    if bounds["reward_mean_low"] is not None:
        low, high = bounds["reward_mean_low"], bounds["reward_mean_high"]
        second += f"; reward between {low:.4f} and {high:.4f} with these at 0 and at 1"
    return [first, second, *more]


def _cost_line(cost: Mapping[str, Any]) -> list[str]:
    """Nothing without prices."""
    amount, each = cost.get("amount"), cost.get("per_episode")
    if amount is None:
        return []
    per = "" if each is None else f", {money(each, cost['currency'])} a completed episode"
    return [f"cost {money(amount, cost['currency'])} over all attempts{per}"]


def _alike_line(summary: Mapping[str, Any]) -> list[str]:
    """Nothing while the repeats of a task differ; else why they should not be counted as repeats."""
    found = summary.get("duplicates")
    if not found or not too_alike(found):
        return []
    return [f"warning: {alike_sentence(found)}"]


def next_commands(run: Path, config: Path, failed: int, options: Sequence[str] = ()) -> list[str]:
    """Commands to paste after a run. ``options``: words that a retry must repeat, or it means another plan."""
    commands = [f"rayeval summarize {shlex.quote(str(run))}", f"rayeval verify {shlex.quote(str(run))}"]
    if failed:
        commands.append(shlex.join(["rayeval", "run", str(config), *options, "--retry-failed"]))
    return commands


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The whole summary for people."""
    counts, behavior, cost, attempts = (summary[name] for name in ("counts", "behavior", "cost", "attempts"))
    lines = [f"run          {summary['run']}", f"fingerprint  {summary['fingerprint']}", *verdict_lines(summary), ""]
    rows: list[tuple[str, str]] = [
        (
            "episodes",
            f"{counts['requested']} planned = {counts['completed']} completed + {counts['failed']} failed + "
            f"{counts['not_run']} not run; {counts['scored']} scored",
        ),
        (
            "coverage",
            f"{percent(counts['coverage'])} of planned, {percent(counts['coverage_of_attempted'])} of attempted",
        ),
        *((name, figure(mean)) for name, mean in summary["reward_components"].items()),
        ("steps", f"{figure(behavior['steps_mean'], 2)} a completed episode, {behavior['model_steps']} in all"),
        (
            "protocol errors",
            f"{behavior['protocol_errors']} ({percent(behavior['protocol_error_rate'])} of model steps)",
        ),
        (
            "policy failures",
            f"{behavior['policy_failures']} ({percent(behavior['policy_failure_rate'])} of model steps)",
        ),
        ("invalid actions", f"{behavior['invalid_actions']} ({percent(behavior['invalid_action_rate'])} of actions)"),
        ("terminations", _counts(behavior["termination_reasons"])),
        ("tokens", ", ".join(f"{name.removesuffix('_tokens')} {n}" for name, n in cost["tokens"].items())),
        ("duration", _seconds(cost["duration_ms_mean"])),
        ("errors", _counts(summary["errors"])),
        *([("quarantined", ", ".join(summary["quarantined"]))] if summary.get("quarantined") else []),
        (
            "attempts",
            f"{attempts['lines']} lines, {attempts['failed_lines']} failed ({_counts(attempts['by_kind'])}), {attempts['lost']} lost",
        ),
        ("model retries", _counts(attempts["model_retries"])),
    ]
    resampled = summary["resampled"]
    if resampled["steps"]:
        rows.append(("resampled", f"{resampled['steps']} steps in {resampled['episodes']} episodes after a lost answer"))
    alike = summary.get("duplicates")
    if alike and alike["pairs"]:
        rows.append(("identical", f"{alike['identical']} of {alike['pairs']} pairs of episodes of one task ({percent(alike['share'])})"))
    held = sum((summary.get("unaccounted_leases") or {}).values())
    if held:
        rows.append(("leases", f"{held} held by nobody; see rayeval leases doctor"))
    if summary["skipped"]:
        rows.append(("skipped", f"{summary['skipped']} lines that could not be read"))
    width = max(len(name) for name, _ in rows)
    return lines + [f"{name:<{width}}  {text}" for name, text in rows]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items()) or "none"


def _seconds(milliseconds: float | None) -> str:
    return "n/a" if milliseconds is None else f"{milliseconds / 1000:.1f} s a completed episode"
