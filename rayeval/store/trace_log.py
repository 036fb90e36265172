"""The trace log: append, fsync, receipts, then the futures. Done means durable.

One thread writes. Invariants:

* The order for every trace is: ``lock.check``, append to ``traces.jsonl``, fsync, append its receipt (no fsync: a
  cache), resolve the future in its caller's loop. So a resolved future is a promise that survives ``kill -9`` and a
  power cut.
* ``fsync="batch"``: the batches that arrive while one fsync runs share the next. ``fsync="episode"``: one fsync for
  each trace.
* Batches are written in the order of ``append``.
* A failed check, write or fsync ends the log for good: that future and every later one raises, and nothing is tried
  again, for after a failed fsync nobody knows what is on disk. A half-written line is cut off; where that fails too,
  the next resume does it. Whole lines already in the file stay: a resume finds them and counts them.
* A failed write of receipts takes nothing from traces that are durable: their futures resolve; after that the log has
  ended too.

Closing: ``close`` lets everything appended before it end, then the thread ends and the files are closed. It never
raises a failure that ``append`` would: look at ``failure``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple
from zlib import crc32

from rayeval.exceptions import RunTakenOverError, StoreWriteError
from rayeval.schemas import FinishedTrace, Receipt
from rayeval.store._files import fsync_directory, write_all, write_error
from rayeval.store.lock import RunLock
from rayeval.store.reading import receipt_line
from rayeval.store.resume import repair_torn_tail
from rayeval.store.run_directory import RunDirectory

Failure = StoreWriteError | RunTakenOverError


class _Batch(NamedTuple):
    traces: Sequence[FinishedTrace]
    future: asyncio.Future[list[Receipt]]
    loop: asyncio.AbstractEventLoop
    receipts: list[Receipt]


class TraceLog:
    """The one writer of a run's traces. Made by the holder of ``lock``; a torn tail is repaired first.

    Raises StoreWriteError when the files cannot be opened.
    """

    def __init__(self, run_dir: RunDirectory, lock: RunLock, fsync: Literal["batch", "episode"] = "batch") -> None:
        if fsync not in ("batch", "episode"):
            raise ValueError(f"fsync = {fsync!r}: give 'batch' or 'episode'")
        lock.check()
        self.torn_bytes = repair_torn_tail(run_dir)
        """Bytes that the repair moved away."""
        self.lines = 0
        self.bytes = 0
        """Written to ``traces.jsonl`` by this log."""
        self.fsyncs = 0
        self.fsync_s = 0.0
        """Seconds spent in fsync."""
        self._run_dir, self._lock, self._fsync = run_dir, lock, fsync
        self._failure: Failure | None = None
        self._receipts_failure: StoreWriteError | None = None
        self._wake = threading.Condition()
        self._pending: list[_Batch] = []
        self._closing = False
        self._ended = False
        self._when_ended: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._traces_fd = self._receipts_fd = -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._traces_fd = os.open(run_dir.traces, flags, 0o644)
            self._receipts_fd = os.open(run_dir.receipts, flags, 0o644)
            fsync_directory(run_dir.path)
            self._end = os.fstat(self._traces_fd).st_size
        except OSError as cause:
            self._close_files()
            raise write_error(run_dir.traces, "opening", cause) from cause
        self._thread = threading.Thread(target=self._work, name="trace-log", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Failure | None:
        """What ended the log; None while it works. The end of a run asks, as a failure after the last append shows
        nowhere else.
        """
        return self._failure

    def append(self, traces: Sequence[FinishedTrace]) -> asyncio.Future[list[Receipt]]:
        """Hand over finished traces; call it in a running event loop.

        The future resolves with their receipts once all of them are durable. It raises StoreWriteError, or
        RunTakenOverError when another driver has the run; then, and ever after, nothing is written.
        """
        loop = asyncio.get_running_loop()
        batch = _Batch(traces, loop.create_future(), loop, [])
        with self._wake:
            if self._failure is None and self._closing:
                raise RuntimeError("append after close")
            if self._failure is None:
                self._pending.append(batch)
                self._wake.notify()
                return batch.future
        _settle(batch, self._failure)
        return batch.future

    async def close(self, timeout_s: float = 60.0) -> None:
        """Let all that was appended end, and close the files; idempotent. Raises StoreWriteError when the disk
        hangs.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        with self._wake:
            self._closing = True
            self._wake.notify()
            if self._ended:
                return
            self._when_ended.append((loop, ended))
        try:
            await asyncio.wait_for(ended, timeout_s)
        except TimeoutError:
            advice = "check the disk and run the same command again"
            raise StoreWriteError(f"{self._run_dir.traces}: a write has hung for {timeout_s:.0f} s: {advice}") from None

    def _work(self) -> None:
        try:
            while batches := self._take():
                self._commit(batches)
        finally:
            self._close_files()
            with self._wake:
                self._ended = True
                waiting = self._when_ended
            for loop, ended in waiting:
                with suppress(RuntimeError):  # its loop is closed: nobody waits
                    loop.call_soon_threadsafe(_finish, ended)

    def _take(self) -> list[_Batch]:
        """All that waits; empty when closing and nothing is left."""
        with self._wake:
            while not self._pending and not self._closing:
                self._wake.wait()
            batches, self._pending = self._pending, []
            return batches

    def _commit(self, batches: list[_Batch]) -> None:
        failure: Failure | None = None
        try:
            self._write_group(batches)
        except (StoreWriteError, RunTakenOverError) as stopped:
            failure = stopped
        except Exception as defect:  # a defect here must not leave futures waiting for ever
            failure = StoreWriteError(f"{self._run_dir.traces}: {type(defect).__name__} in the writer: {defect}")
        with self._wake:
            self._failure = failure or self._receipts_failure
            late, self._pending = (self._pending, []) if self._failure is not None else ([], self._pending)
        for batch in batches:
            _settle(batch, failure if len(batch.receipts) < len(batch.traces) else None)
        for batch in late:
            _settle(batch, self._failure)

    def _write_group(self, batches: list[_Batch]) -> None:
        if self._fsync == "batch":
            self._append_durably([(trace, batch) for batch in batches for trace in batch.traces])
        else:
            for batch in batches:
                for trace in batch.traces:
                    self._append_durably([(trace, batch)])

    def _append_durably(self, traces: list[tuple[FinishedTrace, _Batch]]) -> None:
        """Check, write, fsync, receipts; the batches get their receipts only when all of that is done."""
        if not traces:
            return
        self._lock.check()
        path = self._run_dir.traces
        try:
            size = os.fstat(self._traces_fd).st_size
        except OSError as cause:
            raise write_error(path, "looking at", cause) from cause
        if size != self._end:
            raise StoreWriteError(
                f"{path}: is {size} bytes long where {self._end} were written: another process writes to it; "
                "end that and run the same command again"
            )
        offset = self._end
        receipts = list[Receipt]()
        for trace, _ in traces:
            if not trace.line.endswith(b"\n") or trace.line.find(b"\n") != len(trace.line) - 1:
                raise StoreWriteError(f"{path}: the trace of {trace.episode_id} is not one line; nothing of its batch was written")
            receipts.append(Receipt(trace.episode_id, trace.attempt, str(trace.status), offset, len(trace.line), crc32(trace.line)))
            offset += len(trace.line)
        data = b"".join(trace.line for trace, _ in traces)
        try:
            write_all(self._traces_fd, data)
        except OSError as cause:
            self._cut_partial_line(data)
            raise write_error(path, "appending traces", cause) from cause
        self._end = offset
        began = time.perf_counter()
        try:
            os.fsync(self._traces_fd)
        except OSError as cause:
            raise write_error(path, "fsync", cause) from cause
        self.fsync_s += time.perf_counter() - began
        self.fsyncs += 1
        self.lines += len(traces)
        self.bytes += len(data)
        self._write_receipts(receipts)
        for (_, batch), receipt in zip(traces, receipts, strict=True):
            batch.receipts.append(receipt)

    def _cut_partial_line(self, data: bytes) -> None:
        with suppress(OSError):  # then the next resume cuts it
            written = os.fstat(self._traces_fd).st_size - self._end
            whole = data.rfind(b"\n", 0, max(0, written)) + 1
            os.ftruncate(self._traces_fd, self._end + whole)

    def _write_receipts(self, receipts: list[Receipt]) -> None:
        if self._receipts_failure is not None:
            return
        try:
            write_all(self._receipts_fd, b"".join(map(receipt_line, receipts)))
        except OSError as cause:
            self._receipts_failure = write_error(self._run_dir.receipts, "appending receipts", cause)

    def _close_files(self) -> None:
        for fd in (self._traces_fd, self._receipts_fd):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self._traces_fd = self._receipts_fd = -1


def _settle(batch: _Batch, failure: Failure | None) -> None:
    with suppress(RuntimeError):  # the caller's loop is closed: nobody waits
        batch.loop.call_soon_threadsafe(_resolve, batch, failure)


def _resolve(batch: _Batch, failure: Failure | None) -> None:
    if batch.future.done():  # cancelled by its caller
        return
    if failure is None:
        batch.future.set_result(batch.receipts)
    else:
        # one instance raised in many places would gather their tracebacks
        batch.future.set_exception(type(failure)(*failure.args))


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
