"""Parquet shards by a Ray Data job.

The input rows are small: each says which bytes of which trace files make one file. The write task reads, parses and encodes them, so no
trace passes through the object store or the driver.
Tasks run on the driver's node, for there the trace files are, and claim no CPU: at the end of a run on a busy cluster, or on a head that
offers none, they would otherwise wait for ever. Their number is bounded instead.
Closing rule: the manifest is removed before the first byte is written and put after the last one; until then nothing counts. A job given
up on a Ray of its own is ended before what it wrote is removed. On another Ray its last tasks may still put a file: it does not count, and
the next call removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import ray

from actors import cluster
from actors.asking import within
from rayeval.exceptions import InputError, RayevalError, StoppedError, StoreWriteError
from rayeval.schemas import JsonObject
from rayeval.shard_places import MANIFEST_NAME, ShardPlace, digest, open_place
from rayeval.shard_rows import Part, encode_part
from rayeval.shards import (
    LOOK_AT_LINES,
    PART_BYTES,
    ShardFile,
    ShardPlan,
    described,
    is_current,
    manifest_bytes,
    plan_shards,
    read_manifest,
    shards_manifest,
)
from rayeval.store import RunDirectory

AUTO_EPISODES = 1000
"""``execution.shards: auto`` writes them from so many episodes on: the first use of Ray Data takes seconds."""
_MOST_TASKS = 16
_PARTS_FOR_A_WORKER = 8
"""A worker process spends some 3 s of CPU on importing Ray Data, as much as four parts need."""
_TRIES = 3
"""Passes over the runs; each later one knows the reward components that the one before met."""
_BASE_DEADLINE_S = 180.0
"""For Ray and Ray Data to come up, the job to be placed and Ray to be left; one look at Ray's own table has been seen to hang for ever."""
_BYTES_PER_S = 2e6
"""A floor for the rate, a tenth of what a slow core does."""
_LEAVE_S = 20.0
_LOOK_EVERY_S = 0.1


class ShardsResult(NamedTuple):
    """A set of shards."""

    place: str
    manifest: JsonObject
    written: bool
    """False: it was there already, whole."""


def write_shards(
    runs: Sequence[RunDirectory],
    output: str | os.PathLike[str] | None = None,
    *,
    address: str | None = None,
    part_bytes: int = PART_BYTES,
    look_at: int = LOOK_AT_LINES,
    note: Callable[[str, str], None] | None = None,
    deadline_s: float = _BASE_DEADLINE_S,
) -> ShardsResult:
    """Write the shards of one run (default place: its ``shards/``) or of several as one set. Starts or joins Ray only if there is work.

    ``note`` is told once that work begins. ``deadline_s`` is for the job without its bytes, which get ``_BYTES_PER_S``.
    Raises InputError, RefusedError (somebody else is writing there), StoreWriteError, PlacementError, StoppedError (the job failed or
    did not end in time).
    """
    if output is None and len(runs) != 1:
        raise InputError("--merge", None, "give a directory for several runs")
    if output is None and runs[0].is_foreign:
        raise InputError("--output", None, f"{runs[0].name} was written by another package and is only read; say where to write")
    place = open_place(runs[0].shards if output is None else output)
    with place.lock():
        plan = plan_shards(runs, part_bytes=part_bytes, look_at=look_at)
        if is_current(place, plan):
            return ShardsResult(place.words, read_manifest(place), False)
        place.clear()
        if note is not None and plan.parts:
            note("info", f"writing shards of {_size(plan.parts) / 1e6:,.1f} MB of traces to {place.words}")
        try:
            components, files = _encode(plan, place, address, deadline_s)
            for temporary, file in files:
                place.finish(temporary, file.name)
            manifest = shards_manifest(plan, components, [file for _, file in files])
            place.put(MANIFEST_NAME, manifest_bytes(manifest))
        except BaseException:
            with contextlib.suppress(RayevalError):  # the first failure is the one to tell; the next call clears too
                place.clear()
            raise
        return ShardsResult(place.words, manifest, True)


def _size(parts: Sequence[Part]) -> int:
    """Bytes of traces."""
    return sum(span.length for part in parts for span in part.spans)


def _encode(
    plan: ShardPlan, place: ShardPlace, address: str | None, deadline_s: float
) -> tuple[frozenset[str], list[tuple[str, ShardFile]]]:
    """-> names of all reward components, and (name it has now, file) of each part."""
    if not plan.parts:
        return plan.components, []
    limit_s = deadline_s + _size(plan.parts) / _BYTES_PER_S
    late = StoppedError(f"writing shards did not end within {limit_s:.0f} s; run the same command again")
    given_up = threading.Event()
    ours = not ray.is_initialized()
    try:
        return within(limit_s, functools.partial(_passes, plan, place, address, given_up), late)
    except BaseException as error:
        if error is late or not isinstance(error, Exception):  # a signal's
            given_up.set()
            cluster.start_no_other_ray()
            if ours:
                with contextlib.suppress(StoppedError):
                    within(_LEAVE_S, functools.partial(cluster.leave, wait=True), StoppedError("Ray cannot be left"))
        raise


def _passes(
    plan: ShardPlan, place: ShardPlace, address: str | None, given_up: threading.Event
) -> tuple[frozenset[str], list[tuple[str, ShardFile]]]:
    """Join, write, leave, all in one thread: processes of a Ray started here end with the thread that started them."""
    components = plan.components
    joined = cluster.join(address, 0)
    try:
        for attempt in range(_TRIES):
            if given_up.is_set():  # while Ray came up, or while the last pass ran; the place is somebody else's by now
                break
            if attempt:
                place.clear()
            outcomes = _job(plan.parts, place.address, components)
            unknown = frozenset(name for outcome in outcomes for name in outcome["unknown"])
            if not unknown:
                return components, [(o["temporary"], ShardFile(o["name"], o["rows"], o["bytes"], o["sha256"])) for o in outcomes]
            components |= unknown
        raise InputError("traces", place.words, "keep changing while they are read; write shards when the runs stand still")
    finally:
        if joined.ours:
            cluster.leave()


def _job(parts: Sequence[Part], address: str, components: frozenset[str]) -> list[JsonObject]:
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    sink = make_sink(address, components)
    rows = [{"part": part.to_bytes()} for part in parts]
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    try:
        ray.data.from_items(rows, override_num_blocks=len(rows)).write_datasink(
            sink,
            ray_remote_args={"num_cpus": 0, "scheduling_strategy": here, "max_retries": 3},
            concurrency=max(1, min(-(-len(rows) // _PARTS_FOR_A_WORKER), os.cpu_count() or 1, _MOST_TASKS)),
        )
    except RayevalError:
        raise
    except Exception as error:  # whatever Ray wraps around it
        raise StoppedError(f"writing shards failed: {(str(error) or type(error).__name__).strip().splitlines()[-1]}") from error
    outcomes = sorted(sink.outcomes, key=lambda outcome: str(outcome.get("name")))
    if len(outcomes) != len(parts):
        raise StoppedError(f"writing shards failed: {len(outcomes)} of {len(parts)} files were made; run the same command again")
    for outcome in outcomes:
        if "refused" in outcome:
            raise InputError(*outcome["refused"])
        if "failed" in outcome:
            raise StoreWriteError(outcome["failed"])
    return outcomes


def make_sink(address: str, components: Iterable[str]) -> Any:
    """A Datasink for parts at ``address``; its ``outcomes`` hold one object a part when the job has ended."""
    # made in a function, for ray.data costs seconds and 100 MB that most runs need not pay
    from actors.shard_sink import ShardSink

    return ShardSink(address, frozenset(components))


def write_part(part: Part, address: str, components: frozenset[str]) -> JsonObject:
    """Encode one part and put it in place, unfinished. What went wrong is returned, for Ray wraps what is raised beyond reading."""
    try:
        encoded = encode_part(part, components)
        made = {"name": part.name, "rows": encoded.rows, "bytes": encoded.data.size, "sha256": digest(encoded.data)}
        temporary = part.name if encoded.unknown else open_place(address).put(part.name, encoded.data, unfinished=True)
        return {**made, "temporary": temporary, "unknown": sorted(encoded.unknown)}
    except InputError as error:
        return {"name": part.name, "refused": [error.field, error.value, error.hint]}
    except StoreWriteError as error:
        return {"name": part.name, "failed": str(error)}


# ---- at the end of a run ----------------------------------------------------------------------------------------------------------


def wanted(chosen: bool | str, episodes: int, *, completed: bool, on_ray: bool) -> bool:
    """``execution.shards`` -> whether this run ends with shards. ``completed``: no episode is left to be run."""
    if isinstance(chosen, bool):
        return chosen
    return completed and on_ray and episodes >= AUTO_EPISODES


async def write_at_end(
    run_dir: RunDirectory, note: Callable[[str, str], None], stopped: Callable[[], bool], address: str | None = None
) -> None:
    """Write a run's shards; a failure (the deadline of ``write_shards`` is one) or a signal is a warning with the command to paste."""
    found: list[ShardsResult] = []
    failed: list[BaseException] = []
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    joined_before = ray.is_initialized()

    def work() -> None:
        try:
            found.append(write_shards([run_dir], address=address))
        except BaseException as error:
            failed.append(error)
        with contextlib.suppress(RuntimeError):  # nobody waits any more and the loop is closed
            loop.call_soon_threadsafe(ended.set)

    # A thread of its own: the loop must hear signals, and a job that hangs must not keep the process from ending.
    thread = threading.Thread(target=work, name="shards", daemon=True)
    note("info", "writing shards")
    thread.start()
    while not ended.is_set() and not stopped():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_EVERY_S)
    if found:
        note("info", f"shards: {described(found[0].manifest)}, {found[0].place}")
        return
    if not failed:
        cluster.start_no_other_ray()
        if not joined_before:
            cluster.leave()
    why = str(failed[0]) or type(failed[0]).__name__ if failed else "a signal was received"
    note("warning", f"no shards were written ({why}); write them with: rayeval shards {shlex.quote(str(run_dir.path))}")
