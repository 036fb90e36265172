"""``control``: steering a live run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunArgument, RunsDirOption
from rayeval.cli.output import write_json, write_out
from rayeval.exceptions import InputError
from rayeval.schemas import JsonObject

if TYPE_CHECKING:
    from rayeval.control import ControlRequest


def control(
    run: RunArgument,
    verb: Annotated[str, typer.Argument(metavar="VERB", help="pause, resume, drain, set or cancel.")],
    values: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
        typer.Argument(metavar="KEY=VALUE", help="For set: concurrency, grace_s, max_tokens_total, max_cost, max_wall_s."),
    ] = None,
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--task", metavar="IDS", help="For cancel: all episodes of these tasks, such as 12,40-60."),
    ] = None,
    episode: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--episode", metavar="ID", help="For cancel: this episode. May be repeated."),
    ] = None,
    grace_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--grace-s", metavar="S", help="For drain: how long running episodes may go on; default: execution.grace_s."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="S", min=0.1, help="How long to wait for the run's answer.")] = 10.0,
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--address", metavar="ADDRESS", help="Reach the run by its name over this Ray cluster, not by its directory."),
    ] = None,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    as_json: JsonOption = False,
) -> None:
    """Steer a live run, and say what was done.

    \b
    pause      nothing new starts; what runs goes on
    resume     go on after a pause
    drain      start nothing more, let running episodes end, exit 4
    set        change concurrency, grace_s, max_tokens_total, max_cost or max_wall_s
    cancel     leave out episodes, running or waiting; the same command runs them later
    """
    request = _request(run, verb, values or [], task, episode or [], grace_s)
    if address is not None:
        from actors.control_actor import send_over_cluster

        name = Path(run).name
        reply = send_over_cluster(address, name, request, timeout)
    else:
        from rayeval.mailbox import send
        from rayeval.store import resolve_run

        run_dir = resolve_run(run, runs_dir)
        name = run_dir.name
        reply = send(run_dir, request, timeout)
    if as_json:
        write_json({**reply, "run": name})
    else:
        write_out(f"{name}: {reply['done']}")


def _request(run: str, verb: str, values: list[str], task: str | None, episodes: list[str], grace_s: float | None) -> ControlRequest:
    """A checked request. Raises InputError, also for what another verb would take."""
    from rayeval.control import VERBS, ControlRequest, parse_setting

    if verb not in VERBS and run in VERBS:
        raise InputError("verb", verb, f"give the run first: rayeval control {verb} {run}")
    for owner, option, given in (
        ("set", "KEY=VALUE", values[0] if values else None),
        ("cancel", "--task", task),
        ("cancel", "--episode", episodes[0] if episodes else None),
        ("drain", "--grace-s", grace_s),
    ):
        if given is not None and verb in VERBS and verb != owner:
            raise InputError(option, given, f"is for {owner} alone; leave it out with {verb}")
    arguments: dict[str, Any] = {}
    if verb == "set":
        arguments = dict(map(parse_setting, values))
    elif verb == "cancel":
        arguments = {"task": task, "episodes": episodes}
    elif verb == "drain":
        arguments = {"grace_s": grace_s}
    return ControlRequest(verb, _given(arguments) if verb != "set" else arguments).checked()


def _given(arguments: dict[str, Any]) -> JsonObject:
    return {name: value for name, value in arguments.items() if value not in (None, [])}
