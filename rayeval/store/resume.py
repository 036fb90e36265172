"""What a resume starts from: the torn tail cut off, and the index of what is done.

``repair_torn_tail`` changes files and needs the run lock; ``load_resume_index`` only reads, and says the same before
and after a repair.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rayeval.store._files import fsync_directory, write_all, write_error
from rayeval.store.reading import Latest, TraceLine, TraceScanner, parse_receipt, task_of
from rayeval.store.run_directory import RunDirectory

_BLOCK = 64 << 10


@dataclass(slots=True)
class ResumeIndex:
    """What ``traces.jsonl`` says."""

    completed: set[str] = field(default_factory=set)
    """Episode ids that are done."""
    failed: dict[str, int] = field(default_factory=dict)
    """Episode id -> its last attempt, for episodes that failed and are not done. Foreign lines are counted, as they
    have no number.
    """
    failed_kind: dict[str, str] = field(default_factory=dict)
    """Episode id -> ``error.kind`` of its last failed line (``error.type`` where there is no kind); keys as in
    ``failed``.
    """
    quarantined: set[str] = field(default_factory=set)
    """The failed ones whose last line has ``error.quarantined`` true."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Episode id -> highest attempt seen, only where it is above 1 or the episode failed; any other line is of attempt
    1.
    """
    lengths: dict[int, float] = field(default_factory=dict)
    """Task id -> mean bytes of its completed lines."""
    lines: int = 0
    bad_lines: int = 0
    bytes: int = 0
    """Of the whole file, a torn tail included."""
    torn_bytes: int = 0
    trusted_lines: int = 0
    """Lines whose receipt was believed."""

    def next_attempt(self, episode_id: str) -> int:
        """The number of the episode's next attempt."""
        return self.attempts.get(episode_id, 0) + 1


def load_resume_index(run_dir: RunDirectory) -> ResumeIndex:
    """Read the traces once, with the help of the receipts where they match. A missing file is an empty index.

    200,000 lines of 2 KB take about a second with receipts and a few without; memory is a few hundred bytes an episode.
    Raises InputError when the traces cannot be read.
    """
    index, latest = ResumeIndex(), Latest()
    totals: dict[int, int] = {}
    counts: dict[int, int] = {}
    scanner = TraceScanner(run_dir.traces, run_dir.receipts)
    for line in scanner:
        accepted = latest.accepts(line)
        episode_id = line.episode_id
        attempt = line.attempt
        if attempt > 1 or not line.complete or line.foreign:
            seen = index.attempts.get(episode_id, 0)
            attempt = attempt or seen + 1
            if attempt > 1 or not line.complete:
                index.attempts[episode_id] = max(seen, attempt)
        if not accepted:
            continue
        if line.complete:
            if index.failed.pop(episode_id, None) is not None:
                index.failed_kind.pop(episode_id, None)
                index.quarantined.discard(episode_id)
            task = task_of(episode_id)
            if task is not None:
                totals[task] = totals.get(task, 0) + len(line.raw)
                counts[task] = counts.get(task, 0) + 1
        else:
            index.failed[episode_id] = attempt
            _note_error(index, line)
    index.completed = latest.completed
    for task in counts:
        index.lengths[task] = totals[task] / counts[task]
    index.lines, index.bad_lines, index.bytes = scanner.lines, scanner.bad_lines, scanner.bytes
    index.torn_bytes, index.trusted_lines = scanner.torn_bytes, scanner.trusted_lines
    return index


def repair_torn_tail(run_dir: RunDirectory) -> int:
    """Make the trace file end with a whole line. -> bytes moved to ``traces.jsonl.torn``.

    Cut off are what follows the last newline and any last lines that are not JSON (blocks lost in a power cut). The
    bytes are durable in ``.torn`` before they leave the traces. Bad lines before a good one stay. Receipts that point
    past the end are dropped. Only for the holder of the run lock. Raises StoreWriteError.
    """
    path = run_dir.traces
    moved = 0
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        fd = -1
    except OSError as cause:
        raise write_error(path, "opening", cause) from cause
    size = 0
    try:
        if fd >= 0:
            before = os.fstat(fd).st_size
            size = _good_end(fd, before)
            moved = before - size
            if moved:
                _append_torn(run_dir.torn, fd, size, moved)
                os.ftruncate(fd, size)
                os.fsync(fd)
    except OSError as cause:
        raise write_error(path, "cutting off the torn last line", cause) from cause
    finally:
        if fd >= 0:
            os.close(fd)
    _drop_receipts_past(run_dir.receipts, size)
    return moved


def _note_error(index: ResumeIndex, line: TraceLine) -> None:
    error = orjson.loads(line.raw).get("error")
    error = error if isinstance(error, dict) else {}
    index.failed_kind[line.episode_id] = str(error.get("kind") or error.get("type") or "unknown")
    if error.get("quarantined") is True:
        index.quarantined.add(line.episode_id)
    else:
        index.quarantined.discard(line.episode_id)


def _line_start(fd: int, end: int) -> int:
    """Offset of the first byte after the last newline before ``end``; 0 when there is none."""
    while end > 0:
        begin = max(0, end - _BLOCK)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _good_end(fd: int, size: int) -> int:
    end = _line_start(fd, size)
    while end > 0:
        start = _line_start(fd, end - 1)
        try:
            orjson.loads(os.pread(fd, end - start, start))
        except orjson.JSONDecodeError:
            end = start
        else:
            break
    return end


def _append_torn(torn: Path, source: int, offset: int, length: int) -> None:
    existed = torn.exists()
    fd = os.open(torn, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    last = b"\n"
    try:
        end = offset + length
        while offset < end:
            block = os.pread(source, min(1 << 20, end - offset), offset)
            if not block:
                break
            write_all(fd, block)
            offset, last = offset + len(block), block[-1:]
        if last != b"\n":
            write_all(fd, b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    if not existed:
        fsync_directory(torn.parent)


def _drop_receipts_past(receipts: Path, size: int) -> None:
    """Cut the receipts after the last one that lies within the first ``size`` bytes of the traces; they are a cache,
    nothing is kept.
    """
    try:
        fd = os.open(receipts, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as cause:
        raise write_error(receipts, "opening", cause) from cause
    try:
        before = os.fstat(fd).st_size
        end = _line_start(fd, before)
        while end > 0:
            start = _line_start(fd, end - 1)
            receipt = parse_receipt(os.pread(fd, end - start, start))
            if receipt is not None and receipt.offset + receipt.length <= size:
                break
            end = start
        if end < before:
            os.ftruncate(fd, end)
    except OSError as cause:
        raise write_error(receipts, "cutting off", cause) from cause
    finally:
        with suppress(OSError):
            os.close(fd)
