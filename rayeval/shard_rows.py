"""One trace, one row: the columns of a shard, and one Parquet file from the bytes it is made of."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rayeval.costs import prices_from
from rayeval.exceptions import InputError
from rayeval.figures import TOKEN_FIELDS, figures_of
from rayeval.schemas import JsonObject

ROW_GROUP_BYTES = 16 << 20
"""Trace lines in one row group, which is what a writer holds."""
COMPRESSION_LEVEL = 1
"""Of zstd. On traces level 3 takes half as long again and saves nothing."""

_COUNTS = ("steps", "actions", "invalid_actions", "protocol_errors")
_TOKENS = (*TOKEN_FIELDS, "cached_tokens")
_BEFORE_COMPONENTS: tuple[tuple[str, pa.DataType], ...] = (
    ("run", pa.string()),
    ("episode_id", pa.string()),
    ("task_id", pa.int64()),
    ("sample_id", pa.int64()),
    ("split", pa.string()),
    ("seed", pa.int64()),
    ("attempt", pa.int32()),
    ("final_attempt", pa.bool_()),
    ("status", pa.string()),
    ("reward", pa.float64()),
)
_AFTER_COMPONENTS: tuple[tuple[str, pa.DataType], ...] = (
    ("termination", pa.string()),
    ("error_kind", pa.string()),
    ("error_stage", pa.string()),
    *((name, pa.int32()) for name in (*_COUNTS, "policy_failures")),
    *((name, pa.int64()) for name in _TOKENS),
    ("started_at", pa.timestamp("us", tz="UTC")),
    ("ended_at", pa.timestamp("us", tz="UTC")),
    ("duration_ms", pa.float64()),
    ("model_ms", pa.float64()),
    ("cost", pa.float64()),
    ("currency", pa.string()),
    ("model", pa.string()),
    ("checkpoint", pa.string()),
    ("fingerprint", pa.string()),
    ("trace_schema", pa.string()),
    ("trace", pa.string()),
)
_LONG = frozenset({"trace"})
"""Columns without dictionary and statistics: every value is long and its own."""
_COMPONENT_NAME = re.compile(r"r_\w{1,64}", re.ASCII)


def shard_schema(components: Iterable[str] = ()) -> pa.Schema:
    """The columns, with one for each reward component (``r_...``), sorted."""
    rewards = tuple((name, pa.float64()) for name in sorted(set(components)))
    return pa.schema([pa.field(name, kind) for name, kind in (*_BEFORE_COMPONENTS, *rewards, *_AFTER_COMPONENTS)])


def column_list(schema: pa.Schema) -> list[JsonObject]:
    """A schema as the manifest has it."""
    return [{"name": column.name, "type": str(column.type)} for column in schema]


class Span(NamedTuple):
    """Whole lines of one trace file."""

    run: str
    path: str
    offset: int
    length: int
    records: int
    bad: tuple[int, ...]
    """Offsets of lines to pass over."""
    superseded: tuple[int, ...]
    """Offsets of attempts that are not the one that counts."""
    fingerprint: str | None
    prices: JsonObject | None


class Part(NamedTuple):
    """The rows of one file."""

    number: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        return f"traces-{self.number:05d}.parquet"

    def to_bytes(self) -> bytes:
        return orjson.dumps([self.number, [list(span) for span in self.spans]])

    @classmethod
    def from_bytes(cls, data: bytes) -> Part:
        number, spans = orjson.loads(data)
        return cls(number, tuple(_span(*values) for values in spans))


def _span(run: str, path: str, offset: int, length: int, records: int, bad: Any, superseded: Any, *rest: Any) -> Span:
    return Span(run, path, offset, length, records, tuple(bad), tuple(superseded), *rest)


def components_of(names: Iterable[str]) -> set[str]:
    """Which of these names are of reward components that can be columns."""
    return {name for name in names if _COMPONENT_NAME.fullmatch(name)}


def component_names(trace: Mapping[str, Any]) -> set[str]:
    """Reward components that a trace needs a column for."""
    return components_of(figures_of(trace)["components"])


def row_of(trace: Mapping[str, Any], span: Span, final_attempt: bool) -> JsonObject:
    """One trace -> its row without ``trace``, reward components among the keys. Reads foreign traces too; odd fields are null."""
    figures = figures_of(trace)
    completed = bool(figures["completed"])
    job, provenance, error = _object(trace.get("job")), _object(trace.get("provenance")), _object(trace.get("error"))
    model = _object(provenance.get("model"))
    tokens = figures["tokens"] | {"cached_tokens": figures["cached_tokens"]}
    prices = prices_from(span.prices)
    return {
        "run": span.run,
        "episode_id": trace["episode_id"],
        "task_id": _integer(job.get("task_id")),
        "sample_id": _integer(job.get("sample_id")),
        "split": _text(job.get("split")),
        "seed": _integer(job.get("seed")),
        "attempt": _integer(trace.get("attempt"), 31),
        "final_attempt": final_attempt,
        "status": trace["status"],
        "reward": figures["reward"],
        **{name: value for name, value in figures["components"].items() if _COMPONENT_NAME.fullmatch(name)},
        "termination": figures["termination"],
        "error_kind": None if completed else figures["error_kind"],
        "error_stage": _text(error.get("stage")),
        **{name: figures[name] for name in _COUNTS},
        "policy_failures": sum(figures["policy_failures"].values()),
        **{name: _integer(tokens[name]) for name in _TOKENS},
        "started_at": _time(trace.get("started_at")),
        "ended_at": _time(trace.get("ended_at")),
        "duration_ms": figures["duration_ms"],
        "model_ms": _model_ms(trace.get("steps")),
        "cost": None if prices is None else prices.of(tokens),
        "currency": None if prices is None else prices.currency,
        "model": _text(model.get("model")),
        "checkpoint": _text(model.get("checkpoint_id")),
        "fingerprint": _text(provenance.get("plan_fingerprint")) or span.fingerprint,
        "trace_schema": trace["schema_version"],
    }


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any, bits: int = 63) -> int | None:
    return value if type(value) is int and -(1 << bits) <= value < 1 << bits else None


def _time(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _model_ms(steps: Any) -> float | None:
    """Wall clock of the turns of the model; null when no step says."""
    if not isinstance(steps, list):
        return None
    found = [_object(_object(step).get("model")).get("latency_ms") for step in steps]
    known = [float(ms) for ms in found if isinstance(ms, (int, float)) and not isinstance(ms, bool)]
    return sum(known) if known else None


@dataclass(slots=True)
class _Group:
    """Rows on their way into one row group."""

    rows: list[JsonObject] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    bytes: int = 0

    def table(self, schema: pa.Schema) -> pa.Table:
        columns = [self._traces() if c.name == "trace" else pa.array([row.get(c.name) for row in self.rows], c.type) for c in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def _traces(self) -> pa.Array:
        # from the bytes as they are: decoding and encoding them again would cost as much as parsing
        ends = array("i", accumulate((len(line) for line in self.lines), initial=0))
        return pa.StringArray.from_buffers(len(self.lines), pa.py_buffer(ends), pa.py_buffer(b"".join(self.lines)))


def read_lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """(offset, line without its newline) of the records of a span. Raises InputError when the file does not hold them any more."""
    bad, offset, left, found = frozenset(span.bad), span.offset, span.length, 0
    try:
        with open(span.path, "rb", buffering=1 << 20) as file:
            file.seek(span.offset)
            while left > 0 and (raw := file.readline()):
                line = raw.rstrip(b"\r\n")
                if line and not line.isspace() and offset not in bad:
                    found += 1
                    yield offset, line
                offset, left = offset + len(raw), left - len(raw)
    except OSError as cause:
        raise InputError("traces", span.path, f"cannot be read ({cause.strerror})") from None
    if left != 0 or found != span.records:
        raise _changed(span)


def _changed(span: Span) -> InputError:
    return InputError("traces", span.path, "changed while it was read; run the same command again when the run stands still")


class Encoded(NamedTuple):
    """One file, in memory."""

    data: pa.Buffer
    rows: int
    unknown: frozenset[str]
    """Reward components for which there was no column: the file is to be made again with them."""


def encode_part(part: Part, components: Iterable[str], row_group_bytes: int = ROW_GROUP_BYTES) -> Encoded:
    """Read, parse and write one part; holds a row group and the file. Raises InputError when a trace file has changed since the plan."""
    schema = shard_schema(components)
    known, unknown, rows = frozenset(components), set[str](), 0
    kept = [c.name for c in schema if c.name not in _LONG]
    sink, group = pa.BufferOutputStream(), _Group()
    dictionary = [c.name for c in schema if c.type == pa.string() and c.name not in _LONG]
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=dictionary,
        write_statistics=kept,
        write_page_index=False,
    ) as writer:

        def flush() -> None:
            nonlocal group
            writer.write_table(group.table(schema), row_group_size=len(group.rows))
            group = _Group()

        for span in part.spans:
            superseded = frozenset(span.superseded)
            for offset, line in read_lines(span):
                try:
                    row = row_of(orjson.loads(line), span, offset not in superseded)
                except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                    raise _changed(span) from None
                unknown |= {name for name in row if name.startswith("r_")} - known
                group.rows.append(row)
                group.lines.append(line)
                group.bytes += len(line)
                rows += 1
                if group.bytes >= row_group_bytes:
                    flush()
        if group.rows:
            flush()
    return Encoded(sink.getvalue(), rows, frozenset(unknown))
