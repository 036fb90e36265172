"""Reading ``traces.jsonl``: one sequential pass in big chunks, flat memory, whatever the file has been through.

A *line* ends with a newline. What comes after the last newline is a torn tail and not a line; only in a foreign file,
whose writer left the newline to the next append, does a whole record there count.
A *record* is a line that parses as an object of a known schema with an episode id and a status. Other lines are
counted as bad.
*Complete* is a record with status ``completed`` and ``final.done`` true.
A receipt stands in for parsing when its offset, length and crc32 match the line's bytes; receipts that match nothing
are passed over.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from rayeval.exceptions import InputError
from rayeval.hashing import canonical_hash
from rayeval.schemas import FOREIGN_TRACE_SCHEMAS, TRACE_SCHEMA, EpisodeStatus, JsonObject, Receipt
from rayeval.store.run_directory import RunDirectory

CHUNK_BYTES = 4 << 20
_receipt_fields = itemgetter(*Receipt._fields)
_STATUSES = frozenset({EpisodeStatus.COMPLETED.value, EpisodeStatus.FAILED.value})


class TraceLine(NamedTuple):
    """A record's place and what resume must know of it."""

    offset: int
    episode_id: str
    attempt: int
    """0 in foreign traces, which do not number their attempts."""
    status: str
    complete: bool
    foreign: bool
    raw: bytes
    """The line with its newline."""
    trusted: bool
    """Known from a receipt; not parsed."""


class TraceScanner:
    """Iterates over the records of a trace file; the counters are final when the iteration has ended."""

    def __init__(self, traces: Path, receipts: Path | None = None) -> None:
        self.traces = traces
        self.lines = 0
        """Lines that end with a newline, bad ones too."""
        self.bad_lines = 0
        self.bad_offsets = array("Q")
        """Where the bad lines begin."""
        self.torn_bytes = 0
        """Bytes after the last newline."""
        self.bytes = 0
        self.trusted_lines = 0
        """Records known from their receipts."""
        self._receipts = receipts

    def __iter__(self) -> Iterator[TraceLine]:
        self.lines = self.bad_lines = self.torn_bytes = self.bytes = self.trusted_lines = 0
        self.bad_offsets = array("Q")
        receipts = iter_receipts(self._receipts) if self._receipts is not None else iter(())
        receipt = next(receipts, None)
        for offset, raw in _lines(self.traces):
            self.bytes = offset + len(raw)
            if raw[-1] != 0x0A:
                self.torn_bytes = len(raw)
                record = _record(offset, raw)
                if record is not None and record.foreign:
                    yield record
                return
            self.lines += 1
            while receipt is not None and receipt.offset < offset:
                receipt = next(receipts, None)
            while receipt is not None and receipt.offset == offset:
                if receipt.length == len(raw) and receipt.crc32 == crc32(raw):
                    break
                receipt = next(receipts, None)
            if receipt is not None and receipt.offset == offset:
                self.trusted_lines += 1
                complete = receipt.status == "completed"
                yield TraceLine(offset, receipt.episode_id, receipt.attempt, receipt.status, complete, False, raw, True)
                continue
            record = _record(offset, raw)
            if record is not None:
                yield record
            elif raw.strip():
                self.bad_lines += 1
                self.bad_offsets.append(offset)


class TraceReader(Iterator[JsonObject]):
    """Records as objects, in file order; torn tail and bad lines are skipped and counted in ``bad_lines`` and
    ``torn_bytes``.
    """

    def __init__(self, traces: Path) -> None:
        self._scanner = TraceScanner(traces)
        self._records = iter(self._scanner)

    def __next__(self) -> JsonObject:
        value: JsonObject = orjson.loads(next(self._records).raw)
        return value

    @property
    def bad_lines(self) -> int:
        return self._scanner.bad_lines

    @property
    def torn_bytes(self) -> int:
        return self._scanner.torn_bytes


def iter_traces(source: RunDirectory | Path) -> TraceReader:
    """All records of a run or of a trace file, streamed. Raises InputError when the file cannot be read."""
    return TraceReader(_trace_path(source))


class Latest:
    """Follows records in file order and knows which one counts for each episode.

    After a completed record of ours nothing changes an episode; among foreign records the last one counts.
    """

    def __init__(self) -> None:
        self.completed: set[str] = set()
        self._foreign: set[str] = set()

    def accepts(self, line: TraceLine) -> bool:
        """Take in the next record. -> whether it is now the one that counts."""
        episode_id = line.episode_id
        if episode_id in self.completed:
            if not line.foreign or episode_id not in self._foreign:
                return False
            if not line.complete:
                self.completed.discard(episode_id)
                self._foreign.discard(episode_id)
        elif line.complete:
            self.completed.add(episode_id)
            if line.foreign:
                self._foreign.add(episode_id)
        return True


def last_records(source: RunDirectory | Path, *, completed_only: bool = False) -> Iterator[JsonObject]:
    """The record that counts for each episode, streamed in file order (two passes; memory: one number an episode).

    Raises InputError when the file cannot be read.
    """
    path = _trace_path(source)
    latest, offsets = Latest(), dict[str, int]()
    for line in TraceScanner(path, source.receipts if isinstance(source, RunDirectory) else None):
        if latest.accepts(line):
            offsets[line.episode_id] = line.offset
    wanted = array("Q", sorted(o for e, o in offsets.items() if not completed_only or e in latest.completed))
    del offsets, latest
    with path.open("rb") as file:
        for offset in wanted:
            file.seek(offset)
            value: JsonObject = orjson.loads(file.readline())
            yield value


def canonical_hash_of_run(run_dir: RunDirectory) -> str:
    """``hashing.canonical_hash`` over the completed record of each episode, streamed. Raises InputError."""
    return canonical_hash(last_records(run_dir, completed_only=True))


def iter_receipts(path: Path) -> Iterator[Receipt]:
    """The receipts that have the right shape, in file order; a missing file has none."""
    try:
        for _, raw in _lines(path):
            receipt = parse_receipt(raw)
            if receipt is not None:
                yield receipt
    except InputError:
        return  # a cache that cannot be read is no cache


def receipt_line(receipt: Receipt) -> bytes:
    """One line of ``receipts.jsonl``."""
    return orjson.dumps(receipt._asdict(), option=orjson.OPT_APPEND_NEWLINE)


def parse_receipt(raw: bytes) -> Receipt | None:
    """-> the receipt, or None for anything that is not exactly one."""
    if not raw.endswith(b"\n"):
        return None
    try:
        value = orjson.loads(raw)
        episode_id, attempt, status, offset, length, crc = _receipt_fields(value)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if not (type(episode_id) is str and type(status) is str and status in _STATUSES):
        return None
    if not (type(attempt) is type(offset) is type(length) is type(crc) is int) or min(attempt, offset, length, crc) < 0:
        return None
    return Receipt(episode_id, attempt, status, offset, length, crc)


def task_of(episode_id: str) -> int | None:
    """The task id in an episode id; None when it has another form."""
    head, mark, _ = episode_id.partition("__sample-")
    digits = head.removeprefix("task-")
    return int(digits) if mark and digits.isdecimal() else None


def _record(offset: int, raw: bytes) -> TraceLine | None:
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    schema, episode_id, status = value.get("schema_version"), value.get("episode_id"), value.get("status")
    # a corrupt schema may be unhashable
    foreign = isinstance(schema, str) and schema in FOREIGN_TRACE_SCHEMAS
    if not (foreign or schema == TRACE_SCHEMA) or not isinstance(episode_id, str) or not isinstance(status, str):
        return None
    if status not in _STATUSES:
        return None
    attempt = value.get("attempt")
    if type(attempt) is not int or attempt < 1:
        if not foreign:
            return None
        attempt = 0
    final = value.get("final")
    complete = status == "completed" and isinstance(final, dict) and final.get("done") is True
    return TraceLine(offset, episode_id, attempt, status, complete, foreign, raw, False)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line with its newline); the last one may have none. Reads what was there at the start and no further."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    except OSError as cause:
        raise InputError("file", str(path), f"cannot be read ({cause.strerror})") from None
    with file:
        offset, pieces = 0, list[bytes]()
        # a size known beforehand also keeps a device in place of the file from being read for ever
        left = os.fstat(file.fileno()).st_size
        while chunk := file.read(min(CHUNK_BYTES, left)):
            left -= len(chunk)
            end = chunk.find(b"\n")
            if end < 0:
                pieces.append(chunk)
                continue
            start = 0
            if pieces:
                pieces.append(chunk[: end + 1])
                line = b"".join(pieces)
                pieces.clear()
                yield offset, line
                offset += len(line)
                start = end + 1
                end = chunk.find(b"\n", start)
            while end >= 0:
                line = chunk[start : end + 1]
                yield offset, line
                offset += len(line)
                start = end + 1
                end = chunk.find(b"\n", start)
            if start < len(chunk):
                pieces.append(chunk[start:])
        if pieces:
            yield offset, b"".join(pieces)


def _trace_path(source: RunDirectory | Path) -> Path:
    if isinstance(source, RunDirectory):
        return source.traces
    path = Path(source)
    return path / "traces.jsonl" if path.is_dir() else path
