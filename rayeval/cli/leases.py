"""``leases list``, ``leases release``, ``leases doctor``: environment slots that a dead run may still hold."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunsDirOption
from rayeval.cli.output import table, write_json, write_out
from rayeval.exceptions import EnvironmentCallError, RunLockedError
from rayeval.schemas import ExitCode, JsonObject, Lease

if TYPE_CHECKING:
    from rayeval.environments import ShopSimulator
    from rayeval.store import RunDirectory
    from rayeval.store.lease_journal import JournalActor

app = typer.Typer(help="Environment slots that runs hold, or left behind.", no_args_is_help=True, rich_markup_mode=None)
SCHEMA = "rayeval-leases-v1"
RELEASE_SCHEMA = "rayeval-leases-release-v1"
DOCTOR_SCHEMA = "rayeval-leases-doctor-v1"
SILENT_S = 120.0
"""An actor on another host that was not heard of for so long has fenced itself; several times ``fence_s``, for clocks differ."""
_TIMEOUT_S = 5.0
_SHOWN_ID = 8
"""Characters of a lease id that are shown: enough to find it in ``leases.jsonl``, not enough to act with it."""

RunOrAll = Annotated[
    Optional[str],  # noqa: UP045  typer reads the annotation at run time
    typer.Argument(metavar="[RUN]", help="A run's path, name or 'latest'; without it, every run in --runs-dir."),
]


class Held(NamedTuple):
    """A journalled lease that did not end."""

    run: RunDirectory
    actor_id: str
    lease: Lease
    owner: str
    """``alive``, ``dead``, or ``unknown`` (on another host, heard of lately)."""


@app.command("list")
def list_(run: RunOrAll = None, runs_dir: RunsDirOption = DEFAULT_RUNS_DIR, as_json: JsonOption = False) -> None:
    """List leases that are journalled as held."""
    held = _held(_runs(run, runs_dir))
    if as_json:
        write_json({"schema": SCHEMA, "leases": [_as_json(row) for row in held]})
    elif not held:
        write_out("no lease is journalled as held")
    else:
        rows = [(h.run.name, h.lease.server, str(h.lease.env_idx), h.lease.lease_id[:_SHOWN_ID], h.actor_id, h.owner) for h in held]
        write_out(table(("run", "server", "slot", "lease", "actor", "owner"), rows))


@app.command()
def release(run: RunOrAll = None, runs_dir: RunsDirOption = DEFAULT_RUNS_DIR, as_json: JsonOption = False) -> int:
    """Release what dead owners left held. Refused for a run whose driver lives: it does so itself."""
    from rayeval.store.lock import living_holder

    chosen = _runs(run, runs_dir)
    living = {r: holder for r in chosen if (holder := living_holder(r)) is not None}
    if run is not None and living:
        holder = next(iter(living.values()))
        raise RunLockedError(f"{chosen[0].name} is being worked on by {holder.describe()}; its driver releases what dies")
    dead = [h for h in _held([r for r in chosen if r not in living]) if h.owner == "dead"]
    failures = asyncio.run(_release(dead))
    released = len(dead) - len(failures)
    if as_json:
        rows = [{**_as_json(h), "error": text} for h, text in failures]
        write_json({"schema": RELEASE_SCHEMA, "released": released, "failed": rows, "living_runs": [r.name for r in living]})
    else:
        write_out(
            f"{released} {'lease is' if released == 1 else 'leases are'} free again"
            + (f"; left {len(living)} living {'run' if len(living) == 1 else 'runs'} alone" if living else "")
        )
        for held, text in failures:
            write_out(f"not released: slot {held.lease.env_idx} of {held.lease.server}: {text}")
    return ExitCode.STOPPED if failures else ExitCode.OK


@app.command()
def doctor(
    run: RunOrAll = None,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    server: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--server", metavar="URL", help="Also look at this server. May be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Compare what servers count as held with what the journals know; what is left over is held by nobody."""
    chosen = _runs(run, runs_dir)
    held = _held(chosen)
    journalled = Counter(h.lease.server.rstrip("/") for h in held)
    known = dict.fromkeys([*(server or ()), *(u for r in chosen for u in _configured(r)), *journalled])
    rows = asyncio.run(_look([url.rstrip("/") for url in known], journalled))
    if as_json:
        write_json({"schema": DOCTOR_SCHEMA, "servers": rows})
    elif not rows:
        write_out("these runs name no server; give --server URL")
    else:
        head = ("server", "slots", "free", "held", "journalled", "held by nobody", "")
        write_out(table(head, [_doctor_row(row) for row in rows]))
        if any(row["held_by_nobody"] for row in rows):
            write_out(
                "held by nobody: by no run looked at here. If no one else uses the server, a resume with "
                "execution.exclusive_environment: true frees these."
            )
    return ExitCode.STOPPED if any(row["error"] for row in rows) else ExitCode.OK


def _doctor_row(row: JsonObject) -> tuple[str, ...]:
    names = ("slots", "free", "held", "journalled", "held_by_nobody")
    return (row["server"], *("" if row[n] is None else str(row[n]) for n in names), row["error"] or "")


def _runs(run: str | None, runs_dir: Path) -> list[RunDirectory]:
    from rayeval.store import RunDirectory, list_runs, resolve_run

    if run is not None:
        return [resolve_run(run, runs_dir)]
    return [RunDirectory(Path(info.path)) for info in list_runs(runs_dir) if info.state != "broken"]


def _held(runs: Sequence[RunDirectory]) -> list[Held]:
    from rayeval.store import load_journal

    rows = []
    for run in runs:
        state = load_journal(run.leases)
        owners = {actor_id: owner_state(actor) for actor_id, actor in state.actors.items()}
        rows += [Held(run, actor_id, lease, owners.get(actor_id, "unknown")) for actor_id, lease in state.held.values()]
    return rows


def owner_state(actor: JournalActor) -> str:
    """``alive``, ``dead`` or ``unknown``. A pid counts only with its start time, for pids are used again."""
    import socket

    import psutil

    from rayeval.store.lock import boot_id, process_space

    if actor.gone:
        return "dead"
    if actor.boot_id in (process_space(), boot_id()):
        try:
            started = psutil.Process(actor.pid).create_time()
        except psutil.NoSuchProcess:
            return "dead"
        except psutil.Error:
            return "unknown"
        return "alive" if abs(started - actor.start_time) < 1.0 else "dead"
    same_boot = actor.boot_id.partition("/")[0] == boot_id()  # in another container, whose pids are not seen here
    if actor.host == socket.gethostname() and not same_boot:
        return "dead"  # the host has started anew
    return "dead" if time.time() - actor.last_seen > SILENT_S else "unknown"


def _configured(run: RunDirectory) -> list[str]:
    urls = run.read_manifest().get("urls")
    listed = urls.get("environment") if isinstance(urls, dict) else None
    return [url for url in listed or () if isinstance(url, str) and url != "demo"]


def _shop(servers: Sequence[str]) -> ShopSimulator:
    from rayeval.environments import EnvironmentTimeouts, ShopSimulator
    from rayeval.transport import AiohttpTransport

    timeouts = EnvironmentTimeouts(step_timeout_s=_TIMEOUT_S, release_timeout_s=_TIMEOUT_S)
    return ShopSimulator(servers, transport=AiohttpTransport(trust_env=False), timeouts=timeouts)


async def _release(dead: Sequence[Held]) -> list[tuple[Held, str]]:
    """Release them, at most 16 at a time, and journal each end. -> those that failed, with the reason."""
    from rayeval.store import LeaseJournal

    shop = _shop([])
    limit = asyncio.Semaphore(16)

    async def one(held: Held) -> str | None:
        async with limit:
            try:
                await shop.release(held.lease)
            except EnvironmentCallError as error:
                return str(error)
        journal = LeaseJournal(held.run.leases)
        try:
            journal.ended(held.actor_id, held.lease)
        finally:
            journal.close()
        return None

    try:
        answers = await asyncio.gather(*map(one, dead))
    finally:
        await shop.aclose()
    return [(held, text) for held, text in zip(dead, answers, strict=True) if text is not None]


async def _look(servers: Sequence[str], journalled: Counter[str]) -> list[dict[str, Any]]:
    shop = _shop(servers)

    async def one(server: str) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(("slots", "free", "held", "held_by_nobody", "error"))
        row = {"server": server, **row, "journalled": journalled[server]}
        try:
            capacity = await shop.server_capacity(server)
        except EnvironmentCallError as error:
            return {**row, "error": str(error)}
        busy = capacity.slots - capacity.free
        # A lease may have been journalled and not yet counted by the server, or the other way round.
        nobody = max(0, busy - journalled[server])
        return {**row, "slots": capacity.slots, "free": capacity.free, "held": busy, "held_by_nobody": nobody}

    try:
        return list(await asyncio.gather(*map(one, servers)))
    finally:
        await shop.aclose()


def _as_json(held: Held) -> JsonObject:
    lease = held.lease._replace(lease_id=held.lease.lease_id[:_SHOWN_ID])
    return {"run": held.run.name, "actor": held.actor_id, "owner": held.owner, **lease._asdict()}
