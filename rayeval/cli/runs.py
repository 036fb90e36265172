"""``runs``, ``status``, ``summarize``: looking at what is on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunArgument, RunsDirOption
from rayeval.cli.output import table, write_json, write_out
from rayeval.cli.words import duration
from rayeval.exceptions import InputError
from rayeval.schemas import ExitCode, JsonObject

if TYPE_CHECKING:
    from rayeval.cli.sources import Source
    from rayeval.store import RunDirectory, RunInfo

RUNS_SCHEMA = "rayeval-runs-v1"
_FIRST_S = 5.0
"""How long a run on a cluster is waited for that has told nothing yet."""


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Directory of runs.")] = DEFAULT_RUNS_DIR,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a directory, newest first."""
    from dataclasses import asdict

    from rayeval.store import list_runs

    found = list_runs(directory)
    if as_json:
        write_json({"schema": RUNS_SCHEMA, "directory": str(directory), "runs": [asdict(row) for row in found]})
    elif not found:
        write_out(f"no runs in {directory}")
    else:
        head = ("name", "state", "model", "split", "done", "failed", "planned", "reward ± SEM", "age", "traces")
        write_out(table(head, (_row(info, time.time()) for info in found)))


def _row(info: RunInfo, now: float) -> tuple[str, ...]:
    from rayeval.summary_text import figure

    reward = "" if info.reward_mean is None else figure(info.reward_mean, 3)
    if reward and info.reward_sem is not None:
        reward += f" ± {figure(info.reward_sem, 3)}"
    counts = (("" if n is None else str(n)) for n in (info.done, info.failed, info.planned))
    age = duration(max(0.0, now - info.modified_at))
    return (info.name, info.state, info.model or "", info.split or "", *counts, reward, age, size(info.bytes))


def size(count: int) -> str:
    """Bytes for people: 512 B, 3.4 MB."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def status(
    run: RunArgument,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Until the run ends, and with its exit code: a page on a terminal, else lines.")
    ] = False,
    every: Annotated[
        Optional[float],  # noqa: UP045  typer reads the annotation at run time
        typer.Option("--every", metavar="S", min=0.2, max=3600, help="With --watch; default: 1 for pages and JSON, 30 for lines."),
    ] = None,
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--address", metavar="ADDRESS", help="Ask the live run of this name over its Ray cluster, not its directory."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout; with --watch one a line, for each change.")
    ] = False,
) -> int:
    """Say how far a run is, what is stuck and when it will be done."""
    from rayeval.cli.sources import FarSource, LocalSource

    if every is not None and not watch:
        raise InputError("--every", every, "is for --watch alone")
    if address is None:
        from rayeval.store import resolve_run
        from rayeval.submission import is_submission_id

        if is_submission_id(run) and not (runs_dir / run).exists():
            raise InputError("run", run, "is the id of a job; give the name of its run, or follow the job: `rayeval logs ID --address URL`")
        return _tell(LocalSource(resolve_run(run, runs_dir)), watch, every, as_json)
    from actors.far_status import RunGoneError, far_status

    name = Path(run).name
    with far_status(address, name) as ask:
        return _tell(FarSource(ask, name, RunGoneError), watch, every, as_json)


def _tell(source: Source, watch: bool, every: float | None, as_json: bool) -> int:
    from rayeval.cli import watching

    if watch:
        return watching.watch(source, every, as_json)
    sight = source.read(_FIRST_S)
    if as_json:
        write_json(watching.status_object(sight))
    else:
        watching.print_page(sight)
    return ExitCode.OK


def summarize(
    run: RunArgument,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    write: Annotated[bool, typer.Option("--write", help="Also replace summary.json in the run directory.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Work out the figures of a run from its traces."""
    from rayeval.store import resolve_run
    from rayeval.summary import summarize_run
    from rayeval.summary_text import summary_lines

    run_dir = resolve_run(run, runs_dir)
    summary = summarize_run(run_dir, extras=known_extras(run_dir))
    if write:
        if run_dir.is_foreign:
            raise InputError("--write", run_dir.name, "was written by another package and is only read; leave it out")
        run_dir.write_summary(summary)
    if as_json:
        write_json(summary)
    else:
        write_out("\n".join(summary_lines(summary)))


def known_extras(run_dir: RunDirectory) -> JsonObject:
    """What the run itself put into ``summary.json`` beside the figures of its traces: the group ``environment``, if any."""
    import orjson

    try:
        written = orjson.loads(run_dir.summary.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    if not isinstance(written, dict):
        return {}
    return {name: written[name] for name in ("environment", "unaccounted_leases") if isinstance(written.get(name), dict)}
