"""``runs``, ``status``, ``summarize``: looking at what is on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayeval.cli.display import duration, status_sentence
from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunArgument, RunsDirOption
from rayeval.cli.output import table, write_json, write_out
from rayeval.exceptions import InputError
from rayeval.schemas import STATUS_SCHEMA, JsonObject

if TYPE_CHECKING:
    from rayeval.store import RunDirectory, RunInfo

RUNS_SCHEMA = "rayeval-runs-v1"


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
    reward = "" if info.reward_mean is None else f"{info.reward_mean:.3f}"
    if reward and info.reward_sem is not None:
        reward += f" ± {info.reward_sem:.3f}"
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


def status(run: RunArgument, runs_dir: RunsDirOption = DEFAULT_RUNS_DIR, as_json: JsonOption = False) -> None:
    """Say how far a run is."""
    from rayeval.store import read_status, resolve_run, run_info

    run_dir = resolve_run(run, runs_dir)
    last = read_status(run_dir)
    info = run_info(run_dir)
    state = info.state if info is not None else "unknown"
    if last is None:
        if as_json:
            write_json({"schema": STATUS_SCHEMA, "run": run_dir.name, "state": state, "planned": info and info.planned})
        else:
            write_out(f"{run_dir.name}: {state}; no status was written")
        return
    # A killed driver leaves "running" behind; whether its lock is held says the truth.
    reported = last.get("state")
    if state == "interrupted" and reported != "ended":
        last = {**last, "state": "interrupted", "in_flight": 0, "eta_s": None}
    if as_json:
        write_json({**last, "schema": STATUS_SCHEMA})
        return
    write_out("\n".join(_status_lines(last, state)))


def _status_lines(last: JsonObject, state: str) -> list[str]:
    lines = [f"{last.get('run')}: {last.get('state')}" + (f" ({last['reason']})" if last.get("reason") else "")]
    sentence = status_sentence(last)
    # What is left is said only while somebody works on it.
    lines.append(sentence if state == "running" else sentence.rpartition(", ")[0])
    if state == "interrupted":
        lines.append("nobody works on it; run the same command again to go on")
    rows = [_server_row(server) for server in last.get("environment") or ()]
    if rows and state == "running":
        lines.append(table(("environment", "slots", "free", "held", "admission"), rows))
    return lines


def _server_row(server: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(server.get(key, "")) for key in ("server", "slots", "free", "held", "admission"))


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
