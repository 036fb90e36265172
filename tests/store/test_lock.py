from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import orjson
import pytest

from rayeval.exceptions import InputError, RunLockedError, RunTakenOverError
from rayeval.store import LockRecord, RunDirectory, RunLock, boot_id, living_holder, read_lock_record

HOLDER = """
import sys
from rayeval.store import RunDirectory, RunLock
lock = RunLock.acquire(RunDirectory(sys.argv[1]), job_id="job-7", renew_s=0.05)
print(lock.epoch, flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture
def run_dir(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path / "r").create()


@pytest.fixture
def holder(run_dir):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(run_dir.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"
    yield process
    process.kill()
    process.communicate(timeout=30)


def put(run_dir: RunDirectory, record: LockRecord) -> None:
    temporary = run_dir.path / "record.tmp"
    temporary.write_bytes(orjson.dumps(asdict(record)))
    os.replace(temporary, run_dir.lock_record)


def elsewhere(run_dir: RunDirectory, **changes) -> LockRecord:
    """The record of a driver on another host that never released."""
    with RunLock.acquire(run_dir) as lock:
        record = replace(lock.record, host="node-b", boot_id="another-boot", token="theirs", **changes)
    put(run_dir, record)
    return record


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_epochs_grow_by_one_and_a_release_frees_at_once(run_dir):
    for epoch in (1, 2, 3, 4):
        with RunLock.acquire(run_dir, job_id="j") as lock:
            assert lock.epoch == epoch
            lock.check()
            assert read_lock_record(run_dir).job_id == "j"
        assert read_lock_record(run_dir).released
    assert len(list(run_dir.path.glob("run.lock.epoch-*"))) == 2


def test_nothing_may_be_written_after_a_release(run_dir):
    lock = RunLock.acquire(run_dir)
    lock.release()
    lock.release()
    with pytest.raises(RunTakenOverError, match="released"):
        lock.check()


def test_a_second_driver_is_refused_and_told_who_has_it(run_dir, holder):
    with pytest.raises(RunLockedError) as refused:
        RunLock.acquire(run_dir, takeover_s=0.01)
    text = str(refused.value)
    assert f"pid {holder.pid}" in text and os.uname().nodename in text and "job-7" in text and "started" in text
    assert str(pickle.loads(pickle.dumps(refused.value))) == text
    assert living_holder(run_dir).pid == holder.pid


def test_a_stopped_holder_still_holds(run_dir, holder):
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RunLockedError, match=f"pid {holder.pid}"):
            RunLock.acquire(run_dir, takeover_s=0.01)
    finally:
        os.kill(holder.pid, signal.SIGCONT)


def test_a_killed_holder_is_followed_at_once(run_dir, holder):
    holder.kill()
    holder.wait(timeout=30)
    said = []
    with RunLock.acquire(run_dir, takeover_s=600, on_wait=said.append) as lock:
        assert lock.epoch == 2 and said == []


def test_a_holder_whose_lock_file_was_removed_still_holds(run_dir, holder):
    run_dir.lock.unlink()
    with pytest.raises(RunLockedError, match=f"pid {holder.pid}"):
        RunLock.acquire(run_dir, takeover_s=0.01)


def test_a_container_on_the_same_boot_needs_no_waiting(run_dir):
    record = replace(elsewhere(run_dir), boot_id=boot_id(), host="container")
    put(run_dir, record)
    said = []
    with RunLock.acquire(run_dir, takeover_s=600, on_wait=said.append) as lock:
        assert lock.epoch == record.epoch + 1 and said == []


def test_a_silent_holder_on_another_host_is_taken_over(run_dir):
    record = elsewhere(run_dir)
    said = []
    began = time.monotonic()
    with RunLock.acquire(run_dir, takeover_s=0.3, on_wait=said.append) as lock:
        assert time.monotonic() - began >= 0.3
        assert lock.epoch == record.epoch + 1
        lock.check()
    assert len(said) == 1 and "node-b" in said[0]


def test_a_holder_on_another_host_that_renews_is_not_taken_over(run_dir):
    record = elsewhere(run_dir)
    with pytest.raises(RunLockedError, match=r"node-b"):
        RunLock.acquire(run_dir, takeover_s=30, on_wait=lambda _: put(run_dir, replace(record, counter=9)))
    with RunLock.acquire(run_dir, takeover_s=0.01):
        pass


def test_a_release_on_another_host_ends_the_waiting(run_dir):
    record = elsewhere(run_dir)
    with RunLock.acquire(run_dir, takeover_s=600, on_wait=lambda _: put(run_dir, replace(record, released=True))) as lock:
        assert lock.epoch == record.epoch + 1


def test_a_kernel_lock_that_a_dead_host_left_is_replaced(run_dir, holder):
    # what a file server shows: the lock is held, and the record is of another boot and stands still
    os.kill(holder.pid, signal.SIGSTOP)
    record = replace(read_lock_record(run_dir), boot_id="another-boot", host="node-b")
    put(run_dir, record)
    with RunLock.acquire(run_dir, takeover_s=0.3) as lock:
        assert lock.epoch == 2
        os.kill(holder.pid, signal.SIGCONT)
        time.sleep(0.3)  # several renewals of the old holder would fit
        lock.check()
        assert read_lock_record(run_dir).token == lock.record.token


def test_the_one_taken_over_writes_nothing_more(run_dir):
    lock = RunLock.acquire(run_dir, renew_s=0.02)
    put(run_dir, replace(lock.record, host="node-b", epoch=lock.epoch + 1, token="theirs"))
    with pytest.raises(RunTakenOverError, match="node-b"):
        lock.check()
    lock.release()
    assert read_lock_record(run_dir).token == "theirs" and not read_lock_record(run_dir).released


def test_a_claim_alone_already_stops_the_holder(run_dir):
    with RunLock.acquire(run_dir) as lock:
        (run_dir.path / f"run.lock.epoch-{lock.epoch + 1}").touch()
        with pytest.raises(RunTakenOverError, match="claimed"):
            lock.check()


def test_the_same_epoch_with_another_token_is_another_driver(run_dir):
    with RunLock.acquire(run_dir, renew_s=600) as lock:
        put(run_dir, replace(lock.record, token="theirs"))
        with pytest.raises(RunTakenOverError):
            lock.check()


def test_the_record_is_renewed(run_dir):
    with RunLock.acquire(run_dir, renew_s=0.01) as lock:
        wait_until(lambda: (r := read_lock_record(run_dir)) and r.counter >= 3)
        assert not list(run_dir.path.glob("*.tmp")) and lock.epoch == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": "x"}', b"\x00\x00"])
def test_a_damaged_record_is_no_hindrance_and_epochs_still_grow(run_dir, content):
    with RunLock.acquire(run_dir):
        pass
    run_dir.lock_record.write_bytes(content)
    with RunLock.acquire(run_dir) as lock:
        assert lock.epoch == 2


def test_two_locks_in_one_process_exclude_each_other(run_dir):
    with RunLock.acquire(run_dir), pytest.raises(RunLockedError, match=f"pid {os.getpid()}"):
        RunLock.acquire(run_dir)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        RunLock.acquire(RunDirectory(tmp_path / "nowhere"))


def test_no_living_holder_after_release_death_or_silence(run_dir):
    assert living_holder(run_dir) is None
    with RunLock.acquire(run_dir) as lock:
        assert living_holder(run_dir).epoch == 1
        record = lock.record
    assert living_holder(run_dir) is None
    put(run_dir, replace(record, start_time=record.start_time - 100))
    assert living_holder(run_dir) is None
    put(run_dir, replace(record, boot_id="another-boot"))
    assert living_holder(run_dir) is not None
    put(run_dir, replace(record, boot_id="another-boot", renewed_at="2020-01-01T00:00:00+00:00"))
    assert living_holder(run_dir) is None
