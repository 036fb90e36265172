"""``shards``: the traces of a run, or of several, as Parquet."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from rayeval.cli.options import DEFAULT_RUNS_DIR, JsonOption, RunsDirOption
from rayeval.cli.output import write_error, write_json, write_out
from rayeval.exceptions import InputError
from rayeval.schemas import JsonObject

SHARDS_RESULT_SCHEMA = "rayeval-shards-result-v1"


def shards(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="A run: path, name or 'latest'; several with --merge.")],
    output: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Option("--output", metavar="DIR|URI", help="Where to write, such as s3://bucket/smoke; default: RUN/shards."),
    ] = None,
    merge: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--merge", metavar="DIR|URI", help="Write all runs there as one set."),
    ] = None,
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--address", metavar="ADDRESS", help="Ray cluster to join; default: RAY_ADDRESS, else one is started."),
    ] = None,
    runs_dir: RunsDirOption = DEFAULT_RUNS_DIR,
    as_json: JsonOption = False,
) -> None:
    """Write the traces of a run as Parquet files with a manifest; does nothing when they are there already."""
    from rayeval.cli.runs import size
    from rayeval.shards import described
    from rayeval.store import living_holder, resolve_run

    if merge is not None and output is not None:
        raise InputError("--output", output, "goes without --merge, which says where to write")
    if merge is None and len(runs) > 1:
        raise InputError("RUN", runs, "is more than one; give --merge DIR to write them as one set")
    found = [resolve_run(run, runs_dir) for run in runs]

    # Ray is loaded here and not before: a wrong name is told at once.
    from actors.shards import write_shards
    from rayeval.cli.signals import ended_by_sigterm

    with ended_by_sigterm():
        result = write_shards(found, output if merge is None else merge, address=address, note=lambda _, text: write_error(text))
    manifest = result.manifest
    if as_json:
        write_json(_result(result.place, manifest, result.written))
        return
    head = f"{result.place}: {described(manifest)}, {size(manifest['bytes'])}"
    lines = [head + ("" if result.written else "; they were there already")]
    skipped = manifest["skipped"]
    if skipped["bad_lines"]:
        lines.append(f"{skipped['bad_lines']} lines could not be read and are left out")
    if skipped["torn_bytes"]:
        lines.append(f"an unfinished last line of {skipped['torn_bytes']} bytes is left out")
    lines += [f"{run.name} is still running: these are its traces so far" for run in found if living_holder(run) is not None]
    write_out("\n".join(lines))


def _result(place: str, manifest: JsonObject, written: bool) -> JsonObject:
    kept = {name: manifest[name] for name in ("files", "rows", "bytes", "skipped", "sources")}
    return {"schema": SHARDS_RESULT_SCHEMA, "directory": place, "written": written, **kept}
