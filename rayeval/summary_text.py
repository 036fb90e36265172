"""A summary in words and columns. Plain text; the command line makes it safe for a terminal when it prints it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayeval.costs import money
from rayeval.duplicates import alike_sentence, too_alike

_LONG = 1e12
_UNREADABLE_SHARE = 0.01


def percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def figure(value: float | None, digits: int = 4) -> str:
    """``digits`` behind the point; a number too long to be read so is written with an exponent."""
    if value is None:
        return "n/a"
    return f"{value:.{digits}f}" if abs(value) < _LONG else f"{value:.{digits}e}"


def mean_with_sem(primary: Mapping[str, Any]) -> str:
    """``0.4210 ± 0.0312 (SEM)``; without a standard error that part is left out, and no reward is ``n/a``."""
    mean, sem = primary["reward_mean"], primary["reward_sem"]
    return figure(mean) if mean is None or sem is None else f"{figure(mean)} ± {figure(sem)} (SEM)"


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """Coverage and reward; failures by kind, each with a sample (or that there are none); with prices the cost; what makes the figures
    doubtful."""
    counts, primary = summary["counts"], summary["primary"]
    first = (
        f"{counts['completed']} of {counts['requested']} episodes completed ({percent(counts['coverage'])}), "
        f"reward {mean_with_sem(primary)}, success {percent(primary['success_rate'])}"
    )
    excluded = counts["failed"] + counts["not_run"]
    more = [*_cost_line(summary["cost"]), *_alike_line(summary), *_unreadable_line(summary), *_nobody_line(summary)]
    if excluded == 0:
        return [first, "no failures", *more]
    kinds = ", ".join(f"{_word(kind)} {n}" for kind, n in summary["failed_by_kind"].items())
    parts = [f"{counts['failed']} failed" + (f" ({kinds})" if kinds else "")]
    if counts["not_run"]:
        parts.append(f"{counts['not_run']} not run")
    second = ", ".join(parts)
    bounds = summary["bounds"]
    if bounds["reward_mean_low"] is not None:
        low, high = bounds["reward_mean_low"], bounds["reward_mean_high"]
        second += f"; reward between {figure(low)} and {figure(high)} with these at 0 and at 1"
    return [first, second, *_samples(summary), *more]


def _samples(summary: Mapping[str, Any]) -> list[str]:
    """For each kind of failure the words of one failed episode, in one line."""
    found = summary.get("failure_samples") or {}
    return [f"  {_word(kind)}, {sample['episode_id']}: {sample['message'] or 'no message'}" for kind, sample in found.items()]


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


def _unreadable_line(summary: Mapping[str, Any]) -> list[str]:
    """Nothing while next to all answers were a model's; else that the scores are not the policy's alone."""
    found, steps = summary.get("unreadable_answers"), summary["behavior"]["model_steps"]
    if not found or not steps or found["steps"] < _UNREADABLE_SHARE * steps:
        return []
    return [
        f"warning: {found['steps']} of {steps} answers were no chat completion (HTML, another JSON) and are scored as the policy's "
        f"protocol errors, in {found['episodes']} episodes: see what answers at model.base_url"
    ]


def _nobody_line(summary: Mapping[str, Any]) -> list[str]:
    """Nothing unless slots of its servers are taken that the run does not know of at its end."""
    found = {server: n for server, n in (summary.get("unaccounted_leases") or {}).items() if n}
    if not found:
        return []
    where = ", ".join(f"{n} at {server}" for server, n in found.items())
    return [f"warning: slots are taken that this run does not know of ({where}), by another run or by nobody: see rayeval leases doctor"]


def next_commands(run: Path, config: Path, failed: int, options: Sequence[str] = (), not_run: int = 0, *, verb: str = "run") -> list[str]:
    """Commands to paste after a run. ``options``: words that a further run must repeat, or it means another plan. While episodes are not
    run the same command is the one to type: it gives those that failed their attempts again too. ``verb``: ``submit`` for a job's run."""
    commands = [f"rayeval summarize {shlex.quote(str(run))}", f"rayeval verify {shlex.quote(str(run))}"]
    if not_run:
        commands.append(shlex.join(["rayeval", verb, str(config), *options]))
    elif failed:
        commands.append(shlex.join(["rayeval", verb, str(config), *options, "--retry-failed"]))
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
        *((_word(name), figure(mean)) for name, mean in summary["reward_components"].items()),
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
    return ", ".join(f"{_word(name)} {n}" for name, n in counts.items()) or "none"


def _word(name: str) -> str:
    """A name that a server gave, in one line."""
    return " ".join(name.split())[:80]


def _seconds(milliseconds: float | None) -> str:
    return "n/a" if milliseconds is None else f"{milliseconds / 1000:.1f} s a completed episode"
