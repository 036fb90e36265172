"""``plan`` and ``run``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rayeval.cli.options import (
    ConfigArgument,
    FailFastOption,
    JsonOption,
    LimitOption,
    MaxFailedOption,
    NoResumeOption,
    RetryFailedOption,
    RetryQuarantinedOption,
    SameWeightsOption,
    SetOption,
    TaskOption,
    WhereOption,
)
from rayeval.cli.output import error_object, write_error, write_json, write_link, write_out
from rayeval.cli.signals import verdict_first
from rayeval.exceptions import InputError
from rayeval.schemas import ExitCode, JsonObject

if TYPE_CHECKING:
    from actors.engine import RunOutcome
    from rayeval.config import LoadedConfig
    from rayeval.plan import Plan, Selection

PLAN_SCHEMA = "rayeval-plan-v1"
_FIRST_JOBS = 5


def plan(
    config: ConfigArgument,
    set_: SetOption = None,
    limit: LimitOption = None,
    task: TaskOption = None,
    where: WhereOption = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="List every job.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a configuration means: episodes, hashes, fingerprint, disk. Makes no call."""
    from rayeval.cli.doctor import disk_needed, nearest_existing

    loaded, planned = planned_with(config, set_ or (), selection_of(limit, task, where))
    place = loaded.config.experiment.output_dir
    disk = {"needed_bytes": disk_needed(planned.job_count), "free_bytes": shutil.disk_usage(nearest_existing(place)).free}
    if as_json:
        write_json(_plan_object(loaded, planned, disk, jobs))
        return
    _print_notes(loaded)
    write_out("\n".join(_plan_lines(loaded, planned, disk)))
    if jobs:
        write_out("\n".join(f"{job.episode_id}  seed {job.seed}" for job in planned.jobs()))


def _plan_object(loaded: LoadedConfig, planned: Plan, disk: JsonObject, with_jobs: bool) -> JsonObject:
    answer: JsonObject = {
        "schema": PLAN_SCHEMA,
        "experiment": planned.experiment,
        "config": str(loaded.path),
        "run_dir": str(loaded.config.experiment.output_dir / planned.experiment),
        "fingerprint": planned.fingerprint,
        "split": planned.split,
        "split_version": planned.split_version,
        "role": planned.role,
        "persona": planned.persona,
        "selection": planned.words or None,
        "counts": {"tasks": len(planned.task_ids), "repeats": planned.repeats, "jobs": planned.job_count},
        "hashes": _hashes(planned),
        "first_jobs": [_job(job) for _, job in zip(range(_FIRST_JOBS), planned.jobs(), strict=False)],
        "disk": disk,
        "notes": list(loaded.notes),
        "semantic": planned.semantic,
    }
    if with_jobs:
        answer["jobs"] = [_job(job) for job in planned.jobs()]
    return answer


def _job(job: Any) -> JsonObject:
    return {"episode_id": job.episode_id, **job._asdict()}


def _hashes(planned: Plan) -> JsonObject:
    semantic = planned.semantic
    return {
        "system_prompt_sha256": semantic["prompt"]["system_prompt_sha256"],
        "skill_bank_sha256": semantic["skills"].get("bank_sha256"),
        "split_sha256": semantic["tasks"]["split_sha256"],
        "jobs_sha256": planned.jobs_sha256,
    }


def _plan_lines(loaded: LoadedConfig, planned: Plan, disk: JsonObject) -> list[str]:
    hashes = _hashes(planned)
    version = f" ({planned.split_version})" if planned.split_version else ""
    tasks = f"{len(planned.task_ids)} tasks x {planned.repeats}" if planned.task_ids else "listed"
    lines = [
        f"experiment   {planned.experiment}",
        f"fingerprint  {planned.fingerprint}",
        f"episodes     {planned.job_count} ({tasks}) of split {planned.split}{version}, role {planned.role or 'none'}",
        f"persona      {'yes' if planned.persona else 'no'}",
    ]
    if planned.words:
        lines.append(f"selection    {planned.words}")
    model = loaded.config.model
    return [
        *lines,
        f"model        {model.name}, temperature {model.temperature}, max_tokens {model.max_tokens}",
        f"prompt       {hashes['system_prompt_sha256']}",
        f"skills       {hashes['skill_bank_sha256'] or 'none'}",
        f"split        {hashes['split_sha256']}",
        f"jobs         {hashes['jobs_sha256']}",
        f"disk         about {disk['needed_bytes'] / 1e9:.2f} GB needed, {disk['free_bytes'] / 1e9:.1f} GB free",
        f"directory    {loaded.config.experiment.output_dir / planned.experiment}",
        "first jobs   " + ", ".join(job.episode_id for _, job in zip(range(_FIRST_JOBS), planned.jobs(), strict=False)),
    ]


def planned_with(config: Path, overrides: Sequence[str], selection: Selection) -> tuple[LoadedConfig, Plan]:
    """A configuration and its plan. Raises InputError."""
    from rayeval.config import load_config
    from rayeval.plan import make_plan

    loaded = load_config(config, overrides)
    return loaded, make_plan(loaded, selection)


def selection_of(limit: int | None, task: str | None, where: str | None) -> Selection:
    """The options that choose episodes."""
    from rayeval.plan import Selection

    return Selection(limit=limit, task=task, where=where)


def _print_notes(loaded: LoadedConfig) -> None:
    for note in loaded.notes:
        write_error(f"note: {note}")


def run(
    config: ConfigArgument,
    set_: SetOption = None,
    limit: LimitOption = None,
    task: TaskOption = None,
    where: WhereOption = None,
    display: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Option("--display", metavar="MODE", help="auto, rich, plain, json or none (also RAYEVAL_DISPLAY)."),
    ] = None,
    max_failed: MaxFailedOption = None,
    fail_fast: FailFastOption = False,
    retry_failed: RetryFailedOption = False,
    retry_quarantined: RetryQuarantinedOption = False,
    same_weights: SameWeightsOption = False,
    no_resume: NoResumeOption = False,
    show: Annotated[bool, typer.Option("--show", help="Print episodes as they happen, one at a time, into a run of their own.")] = False,
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--address", metavar="ADDRESS", help="Ray cluster to join; default: RAY_ADDRESS, else one is started."),
    ] = None,
    runs_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--runs-dir", metavar="DIR", help="Where the run's directory lies, over experiment.output_dir."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Run the plan of a configuration, or go on with it."""
    from rayeval.cli.display import choose_mode, configure_logging, make_display

    mode = choose_mode(display, os.environ, sys.stderr.isatty())
    configure_logging(mode)
    overrides = overrides_of(set_, max_failed, no_resume)
    if runs_dir is not None:
        overrides.append(f"experiment.output_dir={_quoted(str(runs_dir.absolute()))}")
    selection = selection_of(limit, task, where)
    loaded, planned = planned_with(config, overrides, selection)
    if show:
        # Another name is another plan; its jobs and seeds are the same, for these depend on experiment.seed.
        name = f"{planned.experiment}-show-{planned.fingerprint[:8]}"
        extra = [f"experiment.name={_quoted(name)}", "execution.concurrency=1", "execution.actors=1"]
        loaded, planned = planned_with(config, [*overrides, *extra], selection)
    if retry_failed and no_resume:
        raise InputError("--retry-failed", None, "needs what the run directory holds; leave out --no-resume")
    _print_notes(loaded)

    # Ray is loaded here and not before: a wrong configuration is told in a tenth of a second.
    from actors.engine import RunRequest
    from actors.engine import run as run_plan

    request = RunRequest(
        loaded=loaded,
        plan=planned,
        run_dir=loaded.config.experiment.output_dir / planned.experiment,
        retry_failed=retry_failed,
        retry_quarantined=retry_quarantined,
        fail_fast=fail_fast,
        same_weights=same_weights,
        address=address,
        show=show,
        argv=tuple(sys.argv),
    )
    repeated = [word for text in set_ or () for word in ("--set", text)]
    is_job = bool(os.environ.get("RAYEVAL_SUBMISSION_ID"))
    place = "--output-dir" if is_job else "--runs-dir"  # who reads a job's log goes on from elsewhere, by submit
    chosen = {"--limit": limit, "--task": task, "--where": where, place: runs_dir}
    repeated += [word for name, value in chosen.items() if value is not None for word in (name, str(value))]
    with verdict_first():
        outcome = run_plan(request, make_display(mode, os.environ))
        _tell(outcome, config, [*repeated, "--show"] if show else repeated, as_json, "submit" if is_job else "run")
    return ExitCode(outcome.exit_code)


def overrides_of(set_: Sequence[str] | None, max_failed: str | None, no_resume: bool) -> list[str]:
    """``--set`` and the options that stand for one."""
    overrides = list(set_ or ())
    if max_failed is not None:
        overrides.append(f"execution.max_failed={_quoted(max_failed) if '%' in max_failed else max_failed}")
    if no_resume:
        overrides.append("execution.resume=false")
    return overrides


def _quoted(text: str) -> str:
    """A text as a YAML string, for an override."""
    import json

    return json.dumps(text)


def _tell(outcome: RunOutcome, config: Path, options: Sequence[str], as_json: bool, verb: str) -> None:
    """The verdict, where it lies, and what to type next; with --json the summary alone."""
    from rayeval.summary_text import next_commands, verdict_lines

    summary = outcome.summary
    if as_json:
        # Without a summary the display has said why; the one object on stdout is then the error.
        write_json(summary or error_object(outcome.exit_code, None, None, outcome.reason or "no summary"))
        return
    if outcome.reason:
        write_out(f"ended: {outcome.reason}")
    failed = not_run = 0
    if summary is not None:
        write_out("\n".join(verdict_lines(summary)))
        failed, not_run = summary["counts"]["failed"], summary["counts"]["not_run"]
    write_link("run: ", outcome.run_dir)
    for command in next_commands(outcome.run_dir, config, failed, options, not_run, verb=verb):
        write_out(f"  {command}")
