"""``verify``: is a run sound, or are two runs the same."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunsDirOption
from rayeval.cli.output import write_json, write_out
from rayeval.exceptions import InputError
from rayeval.schemas import ExitCode, JsonObject

VERIFY_SCHEMA = "rayeval-verify-v1"
CANONICAL_SCHEMA = "rayeval-verify-canonical-v1"


def verify(
    run: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Argument(metavar="[RUN]", help="Path of a run directory, a run's name, or 'latest' (the default)."),
    ] = None,
    canonical: Annotated[
        Optional[tuple[str, str]],  # noqa: UP045
        typer.Option("--canonical", metavar="A B", help="Compare the completed episodes of two runs instead."),
    ] = None,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    as_json: JsonOption = False,
) -> int:
    """Check a run's files against each other; exit 4 when something does not hold."""
    from rayeval.store import resolve_run
    from rayeval.verification import compare_canonical, verify_run

    if canonical is None:
        answer = {"schema": VERIFY_SCHEMA, **verify_run(resolve_run(run or "latest", runs_dir))}
        good, lines = bool(answer["ok"]), _run_lines(answer)
    else:
        if run is not None:
            raise InputError("RUN", run, "give either RUN or --canonical A B")
        a, b = (resolve_run(name, runs_dir) for name in canonical)
        answer = {"schema": CANONICAL_SCHEMA, "a": str(a.path), "b": str(b.path), **compare_canonical(a, b)}
        good, lines = bool(answer["equal"]), _canonical_lines(answer)
    if as_json:
        write_json(answer)
    else:
        write_out("\n".join(lines))
    return ExitCode.OK if good else ExitCode.REFUSED


def _run_lines(answer: JsonObject) -> list[str]:
    lines = [
        f"{answer['run']}: {answer['lines']} lines, {answer['receipts']} receipts; {answer['planned']} planned = "
        f"{answer['completed']} completed + {answer['failed']} failed + {answer['not_run']} not run"
    ]
    if answer["torn_bytes"]:
        lines.append(f"torn last line of {answer['torn_bytes']} bytes: the next resume cuts it off")
    lines += answer["problems"]
    hidden = answer["problem_count"] - len(answer["problems"])
    if hidden:
        lines.append(f"and {hidden} more")
    lines.append("sound" if answer["ok"] else f"{answer['problem_count']} problems")
    return lines


def _canonical_lines(answer: JsonObject) -> list[str]:
    lines = [f"{answer['compared']} episodes in both", f"A {answer['hash_a']}", f"B {answer['hash_b']}"]
    for side in ("a", "b"):
        if answer[f"only_{side}_count"]:
            names = ", ".join(answer[f"only_{side}"][:5])
            lines.append(f"only in {side.upper()}: {answer[f'only_{side}_count']} ({names} ...)")
    lines += [f"differs: {row['episode_id']} at {row['first']}" for row in answer["different"][:20]]
    if answer["different_count"] > 20:
        lines.append(f"and {answer['different_count'] - 20} more")
    lines.append("equal" if answer["equal"] else "not equal")
    return lines
