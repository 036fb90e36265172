"""Traces as Parquet: which rows, which columns, which bytes go into which file, and the manifest that makes a set of files one.

A set is cut by bytes alone, in file order, so that the same runs give the same files on any machine. Readers trust the manifest: it is
written last, and a directory without one holds nothing. ``shard_places`` puts files where they belong, ``actors.shards`` does the work.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from rayeval.costs import Prices, prices_of_run
from rayeval.exceptions import InputError
from rayeval.schemas import JsonObject
from rayeval.shard_places import MANIFEST_NAME, ShardPlace, digest, open_place
from rayeval.shard_rows import COMPRESSION_LEVEL, ROW_GROUP_BYTES, Part, Span, column_list, component_names, components_of, shard_schema
from rayeval.store.reading import Latest, TraceScanner
from rayeval.store.run_directory import RunDirectory

SHARDS_SCHEMA = "rayeval-shards-v1"
PART_BYTES = 128 << 20
"""Bytes of trace lines in one file: some 2,000 traces, 15 MB of Parquet."""
LOOK_AT_LINES = 200
"""Lines of each run that are looked at for names of reward components. A name that turns up later costs a second pass."""
LAYOUT_VERSION = 1
"""Counted up when the same rows come to other bytes."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What a set of shards is made of, known before a row is written."""

    parts: tuple[Part, ...]
    sources: tuple[JsonObject, ...]
    """One for each run, as the manifest has it."""
    components: frozenset[str]
    """Names of reward components seen so far; a writer may meet more."""
    part_bytes: int

    @property
    def layout(self) -> JsonObject:
        """What decides the bytes of a file beside its rows."""
        return {
            "version": LAYOUT_VERSION,
            "compression": "zstd",
            "compression_level": COMPRESSION_LEVEL,
            "part_bytes": self.part_bytes,
            "row_group_bytes": ROW_GROUP_BYTES,
        }


@dataclass(slots=True)
class _Cut:
    """Lines of one run that go into one part."""

    offset: int
    end: int
    records: int = 0


def plan_shards(runs: Sequence[RunDirectory], *, part_bytes: int = PART_BYTES, look_at: int = LOOK_AT_LINES) -> ShardPlan:
    """Read every run once (one number an episode in memory). Raises InputError: no run, one twice, or runs of different trace schemas."""
    if not runs:
        raise InputError("RUN", None, "give at least one run")
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError("RUN", twice[0], "is given twice; the column `run` tells runs apart by their names")
    parts: list[list[Span]] = [[]]
    room, sources, components = part_bytes, list[JsonObject](), set[str]()
    for run in runs:
        reading = _Reading(run, part_bytes, look_at)
        room, spans = reading.read(room)
        parts[-1] += spans[0]
        parts += spans[1:]
        sources.append(reading.source)
        components |= reading.components
    schemas = sorted({name for source in sources for name in source["trace_schemas"]})
    if len(runs) > 1 and len(schemas) > 1:
        has = ", ".join(f"{source['run']}: {'+'.join(source['trace_schemas'])}" for source in sources)
        raise InputError("RUN", names, f"have different trace schemas ({has}); merge runs of one schema")
    filled = tuple(Part(i, tuple(spans)) for i, spans in enumerate(s for s in parts if s))
    return ShardPlan(filled, tuple(sources), frozenset(components), part_bytes)


class _Reading:
    """One pass over one run."""

    def __init__(self, run: RunDirectory, part_bytes: int, look_at: int) -> None:
        self._run, self._part_bytes, self._look_at = run, part_bytes, look_at
        self.components: set[str] = set()
        self.source: JsonObject = {}

    def read(self, room: int) -> tuple[int, list[list[Span]]]:
        """``room``: bytes left in the part begun by the run before. -> bytes left in the last part, and spans: first those of the part
        begun, then those of new ones."""
        run = self._run
        fingerprint = run.read_manifest().get("plan_fingerprint")
        prices = _prices_json(prices_of_run(run))
        scanner = TraceScanner(run.traces, run.receipts)
        latest, counts_now, superseded = Latest(), dict[str, int](), array("Q")
        hashed, schemas, records = hashlib.sha256(), set[str](), 0
        cuts: list[_Cut | None] = [None]
        last_end = 0
        for line in scanner:
            last_end = end = line.offset + len(line.raw)
            hashed.update(line.raw)
            if latest.accepts(line):
                if line.episode_id in counts_now:
                    superseded.append(counts_now[line.episode_id])
                counts_now[line.episode_id] = line.offset
            else:
                superseded.append(line.offset)
            if records < self._look_at:
                trace = orjson.loads(line.raw)
                schemas.add(trace["schema_version"])
                self.components |= component_names(trace)
            elif line.foreign:
                schemas.add(orjson.loads(line.raw)["schema_version"])
            records += 1
            if room < len(line.raw) and room < self._part_bytes:
                cuts.append(None)
                room = self._part_bytes
            cut = cuts[-1]
            if cut is None:
                cut = cuts[-1] = _Cut(line.offset, end)
            cut.end, cut.records = end, cut.records + 1
            room -= len(line.raw)
        superseded = array("Q", sorted(superseded))
        self.source = {
            "run": run.name,
            "fingerprint": fingerprint,
            "trace_schemas": sorted(schemas),
            "records": records,
            "episodes": len(counts_now),
            "bad_lines": scanner.bad_lines,
            "torn_bytes": 0 if last_end == scanner.bytes else scanner.torn_bytes,
            "sha256": hashed.hexdigest(),
            "prices": prices,
        }
        path = str(run.traces.resolve())
        spans = [
            []
            if cut is None
            else [
                Span(
                    run.name,
                    path,
                    cut.offset,
                    cut.end - cut.offset,
                    cut.records,
                    _between(scanner.bad_offsets, cut),
                    _between(superseded, cut),
                    fingerprint,
                    prices,
                )
            ]
            for cut in cuts
        ]
        return room, spans


def _between(offsets: array[int], cut: _Cut) -> tuple[int, ...]:
    return tuple(offsets[bisect_left(offsets, cut.offset) : bisect_left(offsets, cut.end)])


def _prices_json(prices: Prices | None) -> JsonObject | None:
    return None if prices is None else {name: getattr(prices, name) for name in Prices.__dataclass_fields__}


# ---- the manifest -----------------------------------------------------------------------------------------------------------------


class ShardFile(NamedTuple):
    """One file of a set."""

    name: str
    rows: int
    bytes: int
    sha256: str


def shards_manifest(plan: ShardPlan, components: Iterable[str], files: Sequence[ShardFile]) -> JsonObject:
    """What ``_manifest.json`` holds; no clock in it, so that the same runs give the same bytes."""
    return {
        "schema": SHARDS_SCHEMA,
        "files": [file._asdict() for file in sorted(files)],
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
        "skipped": {name: sum(source[name] for source in plan.sources) for name in ("bad_lines", "torn_bytes")},
        "sources": list(plan.sources),
        "layout": plan.layout,
        "columns": column_list(shard_schema(components)),
    }


def described(manifest: JsonObject) -> str:
    """How much a set holds, in words."""
    files = len(manifest["files"])
    return f"{manifest['rows']} rows in {files} file{'' if files == 1 else 's'}"


def manifest_bytes(manifest: JsonObject) -> bytes:
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"


def read_manifest(directory: Any) -> JsonObject:
    """``directory``: a path, a URI, or a ``ShardPlace``. Raises InputError when it holds no set of shards."""
    place = directory if isinstance(directory, ShardPlace) else open_place(directory)
    data = place.read(MANIFEST_NAME)
    if data is None:
        raise InputError("shards", place.words, f"has no {MANIFEST_NAME}: no shards, or unfinished ones; write them with `rayeval shards`")
    try:
        manifest = orjson.loads(data)
        files = [ShardFile(**row) for row in manifest["files"]]
        known = manifest["schema"] == SHARDS_SCHEMA
    except (orjson.JSONDecodeError, KeyError, TypeError) as cause:
        raise InputError("shards", place.words, f"has a damaged {MANIFEST_NAME} ({cause}); write them again") from None
    if not known or not all(file.name == _plain_name(file.name) for file in files):
        raise InputError("shards", place.words, f"has a {MANIFEST_NAME} that is not of schema {SHARDS_SCHEMA}")
    return manifest  # type: ignore[no-any-return]


def _plain_name(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]


def shard_files(directory: Any) -> list[str]:
    """Paths (or URIs) of the files that count, in order: what to hand to DuckDB, Polars, pandas or ``datasets``. Raises InputError."""
    place = directory if isinstance(directory, ShardPlace) else open_place(directory)
    return [place.full_name(row["name"]) for row in read_manifest(place)["files"]]


def verify_shards(directory: Any, *, hashes: bool = True) -> list[str]:
    """Compare the files with the manifest. -> what does not hold, in words. ``hashes``: read every byte, not only the sizes.

    Raises InputError without a manifest.
    """
    place = directory if isinstance(directory, ShardPlace) else open_place(directory)
    problems = []
    for row in read_manifest(place)["files"]:
        size = place.size(row["name"])
        if size is None:
            problems.append(f"{row['name']}: is missing")
        elif size != row["bytes"]:
            problems.append(f"{row['name']}: {size} bytes, the manifest says {row['bytes']}")
        elif hashes and digest(place.read(row["name"]) or b"") != row["sha256"]:
            problems.append(f"{row['name']}: its bytes are not those the manifest knows")
    return problems


def is_current(place: ShardPlace, plan: ShardPlan) -> bool:
    """Whether the set in ``place`` is whole and made of exactly this plan. In an object store sizes are compared and nothing is fetched."""
    try:
        manifest = read_manifest(place)
        if manifest.get("sources") != list(plan.sources) or manifest.get("layout") != plan.layout:
            return False
        # names of components follow from the sources, and a plan may not have met all of them
        names = [str(column["name"]) for column in manifest["columns"]]
        if manifest["columns"] != column_list(shard_schema(components_of(names))):
            return False
        return not verify_shards(place, hashes=place.local)
    except (InputError, KeyError, TypeError):
        return False
