"""``logs``: what a run's driver and actors said, and coming back to a job."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rayeval.cli.following import AddressOption, PatienceOption, end_job, follow_job
from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunsDirOption
from rayeval.cli.output import write_json, write_out
from rayeval.exceptions import InputError
from rayeval.schemas import ExitCode, JsonObject

if TYPE_CHECKING:
    from rayeval.store import RunDirectory

LOGS_SCHEMA = "rayeval-logs-v1"
JOB_SCHEMA = "rayeval-submission-v1"
_POLL_S = 0.5
_JSON_LINES = 1000


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN|ID", help="A run: path, name or 'latest'; or the id of a submitted job.")],
    attempt: Annotated[
        Optional[int],  # noqa: UP045  typer reads the annotation at run time
        typer.Option("--attempt", metavar="N", min=1, help="Which start of the run; default: the newest."),
    ] = None,
    actor: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--actor", metavar="ID", help="The log of this actor (its id or the end of it), not the driver's."),
    ] = None,
    follow: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--follow/--no-follow", help="Go on until the run or job ends; default: for a job only."),
    ] = None,
    tail: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--tail", metavar="N", min=0, help="Only the last N lines of what is there."),
    ] = None,
    address: AddressOption = None,
    patience: PatienceOption = 300.0,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    as_json: JsonOption = False,
) -> int:
    """Print the log of a run, or follow a submitted job to its end and exit code."""
    from rayeval.submission import is_submission_id

    if run.startswith("raysubmit_"):
        hint = "is a job of `ray job submit`; its log: `ray job logs ID`. Give the id of one that `rayeval submit` sent (rayeval-...)"
        raise InputError("ID", run, hint)
    if address is None and (not is_submission_id(run) or (runs_dir / run / "manifest.json").is_file()):
        _run_logs(run, attempt, actor, bool(follow), tail, runs_dir, as_json)
        return ExitCode.OK
    if not is_submission_id(run):
        raise InputError("ID", run, "is no id of a submitted run (rayeval-<12 hex>-<n>); leave out --address for a run's own logs")
    for option, given in (("--attempt", attempt), ("--actor", actor)):
        if given is not None:
            raise InputError(option, given, "is for the logs in a run directory; leave it out for a job")
    return _job_logs(run, address, follow is not False, tail, patience, as_json)


def _run_logs(run: str, attempt: int | None, actor: str | None, follow: bool, tail: int | None, runs_dir: Path, as_json: bool) -> None:
    from rayeval.store import resolve_run
    from rayeval.store.run_logs import LogReader, choose_log, last_lines, log_files

    run_dir = resolve_run(run, runs_dir)
    if as_json and follow:
        raise InputError("--json", None, "prints one object; leave out --follow")
    files = log_files(run_dir, attempt)
    chosen = choose_log(files, actor)
    reader = LogReader(chosen)
    if as_json:
        text = last_lines(reader.fresh(), _JSON_LINES if tail is None else tail)
        write_json(_object(run_dir, files, chosen, text))
        return
    if tail is None:
        for piece in reader.fresh():
            write_out(piece.removesuffix("\n"), following=follow)
    elif text := last_lines(reader.fresh(), tail):
        write_out(text.removesuffix("\n"), following=follow)
    while follow:
        living = _lives(run_dir)
        for piece in reader.fresh():
            write_out(piece.removesuffix("\n"), following=True)
        if not living:
            return  # asked before the last look: nothing was written after that look
        time.sleep(_POLL_S)


def _lives(run_dir: RunDirectory) -> bool:
    from rayeval.store import living_holder

    return living_holder(run_dir) is not None


def _object(run_dir: RunDirectory, files: list[Path], chosen: Path, text: str) -> JsonObject:
    from rayeval.store.run_logs import attempts

    return {
        "schema": LOGS_SCHEMA,
        "run": run_dir.name,
        "attempt": int(chosen.parent.name.rpartition("_")[2]),
        "attempts": attempts(run_dir),
        "file": str(chosen),
        "files": [{"name": path.name, "bytes": path.stat().st_size} for path in files],
        "lines": text.splitlines(),
    }


def _job_logs(submission_id: str, address: str | None, follow: bool, tail: int | None, patience: float, as_json: bool) -> int:
    from rayeval.job_server import job_address

    url = job_address(address)
    log_to = sys.stderr if as_json else sys.stdout
    answer: JsonObject = {"schema": JOB_SCHEMA, "submission_id": submission_id, "address": url}
    if follow:
        return end_job(follow_job(url, submission_id, patience_s=patience, log_to=log_to, tail=tail), answer, as_json)
    import asyncio

    from rayeval.cli.output import stdout_to_nowhere, visible
    from rayeval.following import Follower, job_end
    from rayeval.job_server import JobInfo, JobServer, known_token
    from rayeval.submission import ENDED

    pieces: list[str] = []

    async def look() -> tuple[JobInfo, str]:
        async with JobServer(url, known_token()) as server:
            await server.greet()
            return await Follower(server, submission_id, pieces.append, lambda text: None, tail=tail).so_far()

    info, log = asyncio.run(look())
    try:
        log_to.write(visible("".join(pieces)))
        log_to.flush()
    except BrokenPipeError:
        stdout_to_nowhere()
    if info.status in ENDED:
        return end_job(job_end(info, log), answer, as_json)
    if as_json:
        write_json({**answer, "status": info.status, "exit_code": None, "reason": None})
    return ExitCode.OK
