"""``submit``: a run as a job of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rayeval.cli.following import AddressOption, PatienceOption, end_job, follow_job
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
from rayeval.cli.output import write_error, write_json, write_out
from rayeval.exceptions import InputError
from rayeval.schemas import ExitCode, JsonObject

if TYPE_CHECKING:
    from rayeval.config import LoadedConfig
    from rayeval.job_server import JobServer
    from rayeval.plan import Plan
    from rayeval.submission import JobSpec

SUBMISSION_SCHEMA = "rayeval-submission-v1"


def submit(
    config: ConfigArgument,
    output_dir: Annotated[
        str, typer.Option("--output-dir", metavar="DIR", help="Absolute, as the driver's node sees it: where the run's directory lies.")
    ],
    address: AddressOption = None,
    set_: SetOption = None,
    limit: LimitOption = None,
    task: TaskOption = None,
    where: WhereOption = None,
    max_failed: MaxFailedOption = None,
    fail_fast: FailFastOption = False,
    retry_failed: RetryFailedOption = False,
    retry_quarantined: RetryQuarantinedOption = False,
    same_weights: SameWeightsOption = False,
    no_resume: NoResumeOption = False,
    working_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--working-dir", metavar="DIR", help="What is uploaded; default: the current directory."),
    ] = None,
    env: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--env", metavar="NAME=VALUE", help="A variable of the job; no secret. May be repeated."),
    ] = None,
    env_from: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--env-from", metavar="NAME", help="Send this variable's value; all who may read the cluster's jobs can read it."),
    ] = None,
    entrypoint_num_cpus: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--entrypoint-num-cpus", metavar="N", min=0.0, help="CPUs of the driver: it may then run on any node."),
    ] = None,
    entrypoint_resources: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--entrypoint-resources", metavar="JSON", help="Custom resources of the driver, such as '{\"driver\": 1}'."),
    ] = None,
    python: Annotated[str, typer.Option("--python", metavar="COMMAND", help="Python on the cluster.")] = "python",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print the job's log and end with its exit code.")] = True,
    patience: PatienceOption = 300.0,
    as_json: JsonOption = False,
) -> int:
    """Run a configuration as a job of a Ray cluster, or go on with it there."""
    from rayeval.cli.running import overrides_of, planned_with, selection_of
    from rayeval.job_server import JobServer, job_address, known_token
    from rayeval.submission import checked_env, checked_output_dir, checked_working_dir, entrypoint

    if retry_failed and no_resume:
        raise InputError("--retry-failed", None, "needs what the run directory holds; leave out --no-resume")
    url = job_address(address)
    overrides = overrides_of(set_, max_failed, no_resume)
    loaded, planned = planned_with(config, overrides, selection_of(limit, task, where))
    root = checked_working_dir(working_dir, config)
    place = checked_output_dir(output_dir, root)
    absolute, files = _check_files(loaded, root, overrides)
    notes = [*loaded.notes, *(f"{key} is an absolute path: it is read from the cluster's own files, not uploaded" for key in absolute)]
    variables = checked_env(env or (), env_from or (), os.environ)
    key = loaded.config.model.api_key_env
    if key is not None and key not in variables:
        notes.append(f"the key is read from {key} of the cluster's nodes; --env-from {key} would send yours")
    flags = {"-x": fail_fast, "--retry-failed": retry_failed, "--retry-quarantined": retry_quarantined, "--same-weights": same_weights}
    chosen: Mapping[str, Any] = {"--limit": limit, "--task": task, "--where": where}
    words = [f"--set={text}" for text in overrides]
    words += [f"{name}={value}" for name, value in chosen.items() if value is not None]
    words += [name for name, given in flags.items() if given]
    files["CONFIG"] = Path(os.path.normpath(config.absolute())).relative_to(root).as_posix()
    command = entrypoint(python, files["CONFIG"], place, words)
    resources = _resources(entrypoint_resources)
    for note in notes:
        write_error(f"note: {note}")

    async def go() -> tuple[JobSpec, JsonObject]:
        from rayeval.submission import id_prefix, make_job, next_id

        async with JobServer(url, known_token()) as server:
            await server.greet()
            spec = make_job(
                next_id(id_prefix(planned.fingerprint, place), await server.jobs(), url),
                loaded,
                planned,
                working_dir=root,
                output_dir=place,
                command=command,
                env=variables,
                auth_mode=server.auth_mode,
                nonce=secrets.token_hex(8),
                num_cpus=entrypoint_num_cpus,
                resources=resources,
            )
            await _send(spec, server, files)
        return spec, _told(spec, planned, url)

    try:
        spec, answer = asyncio.run(go())
    except KeyboardInterrupt:
        write_error("interrupted while the job was sent: `ray job list` says whether it was taken; while it runs this command is refused")
        raise
    write_error(f"submitted {spec.submission_id}: {planned.job_count} episodes into {spec.metadata['rayeval_run_dir']}")
    if not follow:
        from rayeval.submission import follow_command, stop_command

        if as_json:
            write_json(answer)
        else:
            write_out(f"{spec.submission_id}\n  {follow_command(spec.submission_id, url)}\n  {stop_command(spec.submission_id, url)}")
        return ExitCode.OK
    log_to = sys.stderr if as_json else sys.stdout
    sent = [variables[name] for name in env_from or ()]
    end = follow_job(url, spec.submission_id, patience_s=patience, log_to=log_to, secrets=sent)
    return end_job(end, answer, as_json)


def _check_files(loaded: LoadedConfig, root: Path, overrides: list[str]) -> tuple[list[str], dict[str, str]]:
    """Every file that the configuration names goes with the upload, or is the cluster's own. -> keys of the latter; the others by key,
    relative to ``root``."""
    from rayeval.submission import absolute_path_keys, inside, referenced_files

    absolute = absolute_path_keys(loaded, overrides)
    return absolute, {key: inside(root, key, path) for key, path in referenced_files(loaded, absolute).items()}


def _resources(text: str | None) -> dict[str, float] | None:
    import json

    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    numbers = isinstance(value, dict) and all(isinstance(n, (int, float)) and not isinstance(n, bool) and n >= 0 for n in value.values())
    if not numbers:
        raise InputError("--entrypoint-resources", text, 'give a JSON object of numbers, such as {"driver": 1}')
    return {str(name): float(number) for name, number in value.items()}


async def _send(spec: JobSpec, server: JobServer, files: Mapping[str, str]) -> None:
    from actors.jobs import send  # Ray is loaded here: a wrong configuration, address or a job that runs is told before

    await send(spec, server, files)


def _told(spec: JobSpec, planned: Plan, address: str) -> JsonObject:
    return {
        "schema": SUBMISSION_SCHEMA,
        "submission_id": spec.submission_id,
        "address": address,
        "run": planned.experiment,
        "run_dir": spec.metadata["rayeval_run_dir"],
        "fingerprint": planned.fingerprint,
        "planned": planned.job_count,
        "status": "PENDING",
        "exit_code": None,
        "reason": None,
    }
