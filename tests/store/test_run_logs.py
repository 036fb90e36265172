import os
import threading

import pytest

import rayeval.store.run_logs as run_logs
from rayeval.exceptions import InputError
from rayeval.models import Scrubber
from rayeval.store import RunDirectory, RunLogs
from rayeval.store.run_logs import LogReader, attempts, choose_log, last_lines, log_files


@pytest.fixture
def run_dir(tmp_path):
    return RunDirectory(tmp_path / "r").create()


def text(logs, name):
    return (logs.directory / f"{name}.log").read_text()


def test_lines_of_driver_and_actors_lie_in_the_attempt_and_latest_points_there(run_dir):
    for number in (1, 2):
        logs = RunLogs(run_dir, number)
        logs.driver(0.25, "info", f"start {number}\nsecond line")
        logs.actor("1-actor-001", 1.0, "warning", "slow")
    assert attempts(run_dir) == [1, 2] and os.readlink(run_dir.logs / "latest") == "attempt_2"
    assert text(logs, "driver") == "1970-01-01T00:00:00.250Z info start 2\n    second line\n"
    assert text(logs, "actor-1-actor-001") == "1970-01-01T00:00:01.000Z warning slow\n"
    assert [path.name for path in log_files(run_dir)] == ["driver.log", "actor-1-actor-001.log"]
    assert [path.parent.name for path in log_files(run_dir, 1)] == ["attempt_1"] * 2


def test_the_key_and_what_looks_like_one_are_not_written(run_dir):
    logs = RunLogs(run_dir, 1, Scrubber("hunter2secret").text)
    logs.driver(0, "error", "401: hunter2secret, Bearer abcdef, sk-12345678 at http://u:pw@h/")
    logs.actor_output("a", "Authorization: Bearer abcdef\nhunter2secret\n")
    written = text(logs, "driver") + text(logs, "actor-a")
    assert not any(secret in written for secret in ("hunter2secret", "abcdef", "sk-1234", "pw@"))


def test_a_file_is_bounded_by_rotation_and_the_newest_lines_stay(run_dir, monkeypatch):
    monkeypatch.setattr(run_logs, "ACTOR_BYTES", 1000)
    logs = RunLogs(run_dir, 1)
    for k in range(200):
        logs.actor("a", 0, "info", f"line {k}")
    names = sorted(path.name for path in logs.directory.iterdir())
    assert names == ["actor-a.log", "actor-a.log.1"]
    assert all(path.stat().st_size <= 1000 for path in logs.directory.iterdir())
    assert text(logs, "actor-a").endswith("line 199\n")


def test_all_actors_together_are_bounded_and_what_is_dropped_is_counted(run_dir, monkeypatch):
    monkeypatch.setattr(run_logs, "ALL_BYTES", 500)
    logs = RunLogs(run_dir, 1)
    for k in range(50):
        logs.actor(f"a{k}", 0, "info", "x" * 60)
    logs.driver(0, "info", "the driver's own words stay")
    written = sum(path.stat().st_size for path in logs.directory.glob("actor-*"))
    assert written < 700 and 0 < logs.dropped < 50 and "stay" in text(logs, "driver")


def test_a_long_text_keeps_its_ends(run_dir):
    logs = RunLogs(run_dir, 1)
    logs.driver(0, "error", "begin" + "x" * 100_000 + "end")
    line = text(logs, "driver")
    assert len(line) < 9000 and "begin" in line and line.endswith("end\n") and "92008 characters left out" in line


def test_an_actors_id_names_no_other_file(run_dir):
    logs = RunLogs(run_dir, 1)
    logs.actor("../../x/y", 0, "info", "t")
    assert [path.name for path in logs.directory.iterdir()] == ["actor-.._.._x_y.log"]


def test_a_log_that_cannot_be_written_ends_the_logging_and_nothing_else(run_dir):
    run_dir.logs.write_text("a file where the directory should be")
    logs = RunLogs(run_dir, 1)
    logs.driver(0, "info", "lost")
    assert logs.failure is not None and "logs cannot be written" in logs.failure


def test_many_threads_write_whole_lines(run_dir):
    logs = RunLogs(run_dir, 1)
    threads = [threading.Thread(target=lambda k=k: [logs.driver(0, "info", f"{k}-{n}") for n in range(50)]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = text(logs, "driver").splitlines()
    assert sorted(line.rpartition(" ")[2] for line in lines) == sorted(f"{k}-{n}" for k in range(4) for n in range(50))


def test_a_reader_sees_each_line_once_over_rotations(run_dir, monkeypatch):
    monkeypatch.setattr(run_logs, "DRIVER_BYTES", 2000)
    logs = RunLogs(run_dir, 1)
    reader, seen = LogReader(logs.directory / "driver.log"), ""
    assert list(reader.fresh()) == []
    for k in range(300):
        logs.driver(0, "info", f"line {k};")
        if k % 20 == 0:
            seen += "".join(reader.fresh())
    seen += "".join(reader.fresh())
    assert [int(part.rpartition(" ")[2]) for part in seen.split(";") if part.strip()] == list(range(300))


def test_a_reader_waits_for_the_end_of_a_line(run_dir):
    path = run_dir.path / "driver.log"
    reader = LogReader(path)
    path.write_bytes("whole\nhalf \u00e9".encode()[:-1])
    assert "".join(reader.fresh()) == "whole\n"
    path.write_bytes("whole\nhalf \u00e9\n".encode())
    assert "".join(reader.fresh()) == "half \u00e9\n"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, ""), (1, "c\n    tail\n"), (2, "b\nc\n    tail\n"), (3, "a\nb\nc\n    tail\n"), (9, "a\nb\nc\n    tail\n")]
)
def test_the_last_lines_keep_a_traceback_with_its_record(count, shown):
    assert last_lines(iter(["a\nb\n", "c\n    tail\n"]), count) == shown


def test_which_log_is_meant(run_dir):
    with pytest.raises(InputError, match="has no logs"):
        log_files(run_dir)
    logs = RunLogs(run_dir, 3)
    with pytest.raises(InputError, match="no log of its driver yet"):
        choose_log(log_files(run_dir), None)
    for actor in ("1-actor-001", "1-actor-002", "2-actor-001"):
        logs.actor(actor, 0, "info", "t")
    logs.driver(0, "info", "t")
    files = log_files(run_dir)
    assert choose_log(files, None).name == "driver.log"
    assert choose_log(files, "1-actor-002").name == choose_log(files, "actor-002").name == "actor-1-actor-002.log"
    for wrong, hint in (("actor-001", "is more than one; there are 1-actor-001, 2-actor-001"), ("x", "is not there; there are 1-")):
        with pytest.raises(InputError, match=hint):
            choose_log(files, wrong)
    with pytest.raises(InputError, match="there are 3"):
        log_files(run_dir, 1)
