from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import orjson
import pytest

from rayeval.exceptions import RunTakenOverError, StoreWriteError
from rayeval.schemas import FinishedTrace
from rayeval.store import RunDirectory, RunLock, TraceLog, iter_receipts, load_resume_index, repair_torn_tail
from tests.store.lines import episode, finished, line, write_run

GUARD_S = 60


@pytest.fixture
def run_dir(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path / "r").create()


@pytest.fixture
def lock(run_dir):
    with RunLock.acquire(run_dir) as held:
        yield held


class Gate:
    """Stands for a slow disk: the writer stands still before its append until it is let go."""

    def __init__(self, lock: RunLock) -> None:
        self._lock, self.entered, self.go = lock, threading.Event(), threading.Event()
        self.checks = 0

    def check(self) -> None:
        self.checks += 1
        self.entered.set()
        assert self.go.wait(GUARD_S)
        self._lock.check()


@pytest.mark.parametrize("fsync", ["batch", "episode"])
async def test_a_resolved_future_means_lines_and_matching_receipts(run_dir, lock, fsync):
    log = TraceLog(run_dir, lock, fsync)
    first = [finished(episode(i), size=100 * i) for i in range(3)]
    second = [finished(episode(9), "failed", 2)]
    receipts = await asyncio.wait_for(asyncio.gather(log.append(first), log.append(second)), GUARD_S)
    body = run_dir.traces.read_bytes()
    assert body == b"".join(t.line for t in first + second)
    assert [len(r) for r in receipts] == [3, 1]
    for receipt, trace in zip(receipts[0] + receipts[1], first + second, strict=True):
        assert body[receipt.offset : receipt.offset + receipt.length] == trace.line
        assert (receipt.episode_id, receipt.attempt, receipt.status) == trace[:3]
    assert list(iter_receipts(run_dir.receipts)) == receipts[0] + receipts[1]
    assert (log.lines, log.bytes) == (4, len(body))
    assert log.fsyncs == 4 if fsync == "episode" else log.fsyncs <= 2
    assert log.fsync_s > 0 and log.failure is None
    await log.close()
    assert load_resume_index(run_dir).trusted_lines == 4


async def test_batches_that_arrive_meanwhile_share_the_next_fsync(run_dir, lock):
    gate = Gate(lock)
    gate.go.set()
    log = TraceLog(run_dir, gate)
    gate.go.clear()
    gate.entered.clear()
    first = log.append([finished(episode(0))])
    assert await asyncio.to_thread(gate.entered.wait, GUARD_S)
    later = [log.append([finished(episode(i))]) for i in range(1, 50)]
    await asyncio.sleep(0)
    assert not first.done() and log.fsyncs == 0
    gate.go.set()
    await asyncio.wait_for(asyncio.gather(first, *later), GUARD_S)
    assert log.fsyncs == 2 and log.lines == 50
    assert [orjson.loads(x)["episode_id"] for x in run_dir.traces.open("rb")] == [episode(i) for i in range(50)]
    await log.close()


async def test_offsets_go_on_from_what_was_there(run_dir, lock):
    write_run(run_dir.path, [line(episode(1)), b'{"half'], receipts=False)
    log = TraceLog(run_dir, lock)
    assert log.torn_bytes == 6
    (receipt,) = await asyncio.wait_for(log.append([finished(episode(2))]), GUARD_S)
    assert receipt.offset == len(line(episode(1)))
    await log.close()
    assert load_resume_index(run_dir).completed == {episode(1), episode(2)}


async def test_an_empty_batch_resolves_and_writes_nothing(run_dir, lock):
    log = TraceLog(run_dir, lock)
    assert await asyncio.wait_for(log.append([]), GUARD_S) == []
    assert log.fsyncs == 0
    await log.close()


async def test_a_cancelled_future_does_not_stop_the_log(run_dir, lock):
    log = TraceLog(run_dir, lock)
    log.append([finished(episode(1))]).cancel()
    await asyncio.wait_for(log.append([finished(episode(2))]), GUARD_S)
    await log.close()
    assert load_resume_index(run_dir).completed == {episode(1), episode(2)}


async def test_close_waits_for_what_was_appended_and_is_idempotent(run_dir, lock):
    log = TraceLog(run_dir, lock)
    futures = [log.append([finished(episode(i))]) for i in range(20)]
    await log.close()
    await log.close()
    assert len(await asyncio.wait_for(asyncio.gather(*futures), GUARD_S)) == 20
    with pytest.raises(RuntimeError, match="after close"):
        log.append([])


async def test_a_hanging_disk_ends_the_closing(run_dir, lock):
    gate = Gate(lock)
    gate.go.set()
    log = TraceLog(run_dir, gate)
    gate.go.clear()
    future = log.append([finished(episode(1))])
    with pytest.raises(StoreWriteError, match="hung"):
        await log.close(timeout_s=0.05)
    gate.go.set()
    await asyncio.wait_for(future, GUARD_S)


async def test_after_a_takeover_nothing_is_written(run_dir, lock):
    log = TraceLog(run_dir, lock)
    await asyncio.wait_for(log.append([finished(episode(1))]), GUARD_S)
    run_dir.lock_record.write_bytes(orjson.dumps(asdict(replace(lock.record, epoch=2, token="x", host="node-b"))))
    before = run_dir.traces.read_bytes()
    for _ in range(2):
        with pytest.raises(RunTakenOverError, match="node-b"):
            await asyncio.wait_for(log.append([finished(episode(2))]), GUARD_S)
    assert run_dir.traces.read_bytes() == before
    assert isinstance(log.failure, RunTakenOverError)
    await log.close()


async def test_batches_that_wait_behind_a_failure_raise_too(run_dir, lock):
    gate = Gate(lock)
    gate.go.set()
    log = TraceLog(run_dir, gate)
    gate.go.clear()
    gate.entered.clear()
    first = log.append([finished(episode(1))])
    assert await asyncio.to_thread(gate.entered.wait, GUARD_S)
    waiting = [log.append([finished(episode(i))]) for i in (2, 3)]
    run_dir.lock_record.write_bytes(orjson.dumps(asdict(replace(lock.record, epoch=2, token="x"))))
    gate.go.set()
    for future in (first, *waiting):
        with pytest.raises(RunTakenOverError):
            await asyncio.wait_for(future, GUARD_S)
    assert gate.checks == 2 and run_dir.traces.read_bytes() == b""
    await log.close()


async def test_another_writer_ends_the_log(run_dir, lock):
    log = TraceLog(run_dir, lock)
    with run_dir.traces.open("ab") as other:
        other.write(line(episode(7)))
    with pytest.raises(StoreWriteError, match="another process writes"):
        await asyncio.wait_for(log.append([finished(episode(1))]), GUARD_S)
    await log.close()
    assert run_dir.traces.read_bytes() == line(episode(7))


@pytest.mark.parametrize("raw", [b"{}", b"{}\n{}\n", b""])
async def test_a_trace_that_is_not_one_line_is_never_written(run_dir, lock, raw):
    log = TraceLog(run_dir, lock)
    with pytest.raises(StoreWriteError, match="not one line"):
        await asyncio.wait_for(log.append([FinishedTrace("e", 1, "completed", raw, None, False, {})]), GUARD_S)
    await log.close()
    assert run_dir.traces.read_bytes() == b""


async def test_a_full_device_for_receipts_takes_nothing_from_durable_traces(run_dir, lock):
    run_dir.receipts.symlink_to("/dev/full")
    log = TraceLog(run_dir, lock)
    (receipt,) = await asyncio.wait_for(log.append([finished(episode(1))]), GUARD_S)
    assert receipt.episode_id == episode(1)
    assert isinstance(log.failure, StoreWriteError) and "receipts.jsonl" in str(log.failure)
    with pytest.raises(StoreWriteError, match="free space and run the same command again"):
        await asyncio.wait_for(log.append([finished(episode(2))]), GUARD_S)
    await log.close()
    run_dir.receipts.unlink()
    assert load_resume_index(run_dir).completed == {episode(1)}


@pytest.mark.parametrize("fsync", ["batch", "episode"])
async def test_a_failed_fsync_is_final(run_dir, lock, fsync):
    run_dir.traces.symlink_to("/dev/null")  # takes every write and refuses fsync
    log = TraceLog(run_dir, lock, fsync)
    futures = [log.append([finished(episode(i)), finished(episode(i + 5))]) for i in range(3)]
    for future in futures:
        with pytest.raises(StoreWriteError, match=r"fsync failed .*run the same command again"):
            await asyncio.wait_for(future, GUARD_S)
    run_dir.traces.unlink()
    with pytest.raises(StoreWriteError, match="fsync failed"):
        await asyncio.wait_for(log.append([finished(episode(9))]), GUARD_S)
    assert log.lines == 0 and list(iter_receipts(run_dir.receipts)) == [] and not run_dir.traces.exists()
    await log.close()


def test_the_fsync_mode_is_checked(run_dir, lock):
    with pytest.raises(ValueError, match="give 'batch' or 'episode'"):
        TraceLog(run_dir, lock, "never")


FULL_DISK = """
import asyncio, resource, sys
from rayeval.exceptions import StoreWriteError
from rayeval.store import RunDirectory, RunLock, TraceLog
from tests.store.lines import episode, finished

async def main(path, fsync, limit):
    run_dir = RunDirectory(path)
    lock = RunLock.acquire(run_dir)
    log = TraceLog(run_dir, lock, fsync)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    done = 0
    while True:
        try:
            done += len(await log.append([finished(episode(done), size=900), finished(episode(done + 1), size=900)]))
        except StoreWriteError as error:
            print(done, flush=True)
            print(error, flush=True)
            break
    try:
        await log.append([finished(episode(999))])
    except StoreWriteError as error:
        print(error, flush=True)
    await log.close()
    lock.release()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.parametrize("fsync", ["batch", "episode"])
async def test_a_full_disk_ends_the_log_leaves_whole_lines_and_is_resumed(run_dir, fsync):
    command = [sys.executable, "-c", FULL_DISK, str(run_dir.path), fsync, "20000"]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=GUARD_S)
    assert ended.returncode == 0, ended.stderr
    done, error, again = ended.stdout.splitlines()
    assert error == again
    assert str(run_dir.traces) in error and "File too large" in error
    assert error.endswith("free space and run the same command again")
    body = run_dir.traces.read_bytes()
    assert body.endswith(b"\n") and len(body) <= 20000
    index = load_resume_index(run_dir)
    assert index.completed >= {episode(i) for i in range(int(done))} and int(done) > 10
    assert episode(999) not in index.completed and index.torn_bytes == 0
    with RunLock.acquire(run_dir) as lock:
        log = TraceLog(run_dir, lock, fsync)
        await asyncio.wait_for(log.append([finished(episode(999))]), GUARD_S)
        await log.close()
    assert load_resume_index(run_dir).completed == index.completed | {episode(999)}


KILLED = """
import asyncio, sys
from rayeval.store import RunDirectory, RunLock, TraceLog, load_resume_index
from tests.store.lines import episode, finished

async def main(path):
    run_dir = RunDirectory(path)
    lock = RunLock.acquire(run_dir)
    log = TraceLog(run_dir, lock)
    done = load_resume_index(run_dir).completed
    async def write(i):
        if episode(i) not in done:
            await log.append([finished(episode(i), size=i % 7 * 5000)])
            print(i, flush=True)
    for start in range(0, 1_000_000, 8):
        await asyncio.gather(*[write(i) for i in range(start, start + 8)])

asyncio.run(main(sys.argv[1]))
"""


def test_kill_9_loses_no_counted_episode_and_counts_none_twice(run_dir):
    told: list[int] = []
    for kill_after in (1, 37, 90):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(run_dir.path)], stdout=subprocess.PIPE, text=True)
        for _ in range(kill_after):
            told.append(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        # not communicate(): it would leave out what readline has read ahead
        told += [int(x) for x in process.stdout.read().split()]
        process.wait(GUARD_S)
    with RunLock.acquire(run_dir):
        repair_torn_tail(run_dir)
    assert len(told) == len(set(told)) and len(told) >= 128
    index = load_resume_index(run_dir)
    assert index.completed >= {episode(i) for i in told}
    assert index.lines == len(index.completed) and index.bad_lines == 0


def test_an_unwritable_trace_file_is_told_in_one_line(run_dir, lock):
    run_dir.traces.mkdir()
    with pytest.raises(StoreWriteError) as refused:
        TraceLog(run_dir, lock)
    assert str(run_dir.traces) in str(refused.value) and "\n" not in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert isinstance(refused.value, OSError) and os.path.isdir(run_dir.traces)
