from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from rayeval.exceptions import InputError, StoreWriteError
from rayeval.schemas import MANIFEST_SCHEMA
from rayeval.store import (
    RunDirectory,
    RunLock,
    list_runs,
    read_status,
    resolve_run,
    write_status,
)


def manifest(name: str, created_at: str = "2026-01-01T00:00:00+00:00") -> dict:
    return {
        "schema_version": MANIFEST_SCHEMA,
        "created_at": created_at,
        "plan_fingerprint": "f" * 64,
        "plan": {"experiment": name, "split": "val", "model": {"model": "qwen", "checkpoint_id": "step-10"}},
        "jobs": {"task_ids": [1, 2], "repeats": 2, "seed": 1, "job_count": 4, "jobs_sha256": "0" * 64},
        "urls": {"model": ["demo"], "environment": ["demo"]},
    }


def make(runs, name: str, **changes) -> RunDirectory:
    run_dir = RunDirectory(runs / name).create()
    run_dir.write_manifest(manifest(name) | changes)
    return run_dir


def test_a_manifest_is_written_once(tmp_path):
    run_dir = make(tmp_path, "one")
    assert run_dir.read_manifest() == manifest("one") and not run_dir.is_foreign
    with pytest.raises(InputError, match="written once"):
        run_dir.write_manifest({})
    assert run_dir.read_manifest() == manifest("one")
    assert sorted(p.name for p in run_dir.path.iterdir()) == ["manifest.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"schema_version": "other-v9"}', "other-v9"),
        (b"{}", "schema_version"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_in_one_line(tmp_path, content, words):
    run_dir = RunDirectory(tmp_path)
    if content is not None:
        run_dir.manifest.write_bytes(content)
    with pytest.raises(InputError) as refused:
        run_dir.read_manifest()
    assert words in str(refused.value) and str(run_dir.manifest) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_directory_that_is_or_lies_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="below a file"):
            RunDirectory(path).create()


def test_an_unwritable_directory_is_refused():
    # /proc takes no files from anyone, whatever the user
    with pytest.raises((InputError, StoreWriteError)) as refused:
        RunDirectory("/proc/rayeval-run").create()
    assert "/proc/rayeval-run" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_refused(tmp_path):
    (tmp_path / "r").mkdir(mode=0o500)
    with pytest.raises(InputError, match="cannot be written"):
        RunDirectory(tmp_path / "r").create()


def test_a_run_cannot_be_called_latest(tmp_path):
    with pytest.raises(InputError, match="give another name"):
        RunDirectory(tmp_path / "latest").create()


FULL = """
import resource, sys
from rayeval.exceptions import StoreWriteError
from rayeval.store import RunDirectory, write_status
run_dir = RunDirectory(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(write_status(run_dir, {"x": "y" * 500}))
try:
    run_dir.write_manifest({"x": "y" * 500})
except StoreWriteError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_files_and_no_litter(tmp_path):
    run_dir = RunDirectory(tmp_path / "r").create()
    assert write_status(run_dir, {"done": 1})
    command = [sys.executable, "-c", FULL, str(run_dir.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused, error = done.stdout.splitlines()
    assert refused == "False" and read_status(run_dir) == {"done": 1}
    assert str(run_dir.manifest) in error and error.endswith("free space and run the same command again")
    assert sorted(p.name for p in run_dir.path.iterdir()) == ["status.json"]


def test_status_is_replaced_whole_while_it_is_read(tmp_path):
    run_dir = RunDirectory(tmp_path / "r").create()
    assert read_status(run_dir) is None
    write_status(run_dir, {"n": 0, "pad": ""})
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            write_status(run_dir, {"n": n, "pad": "x" * (n % 50 * 1000)})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            status = read_status(run_dir)
            assert status is not None and len(status["pad"]) == status["n"] % 50 * 1000
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]"])
def test_a_damaged_status_is_none(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content)
    assert read_status(RunDirectory(tmp_path)) is None


def test_the_environment_identity_is_kept(tmp_path):
    run_dir = RunDirectory(tmp_path / "r").create()
    assert run_dir.read_environment() is None
    run_dir.write_environment({"environment_version": "1"})
    assert run_dir.read_environment() == {"environment_version": "1"}


def test_a_run_is_found_by_path_name_and_latest(tmp_path, monkeypatch):
    one, two = make(tmp_path / "runs", "one"), make(tmp_path / "runs", "two")
    monkeypatch.chdir(tmp_path)
    assert resolve_run("one") == RunDirectory("runs/one")
    assert resolve_run("one", tmp_path / "runs") == one
    assert resolve_run(two.path) == two
    assert resolve_run("./runs/two").name == "two"
    one.point_latest()
    assert resolve_run("latest", tmp_path / "runs") == one
    two.point_latest()
    assert resolve_run("latest", tmp_path / "runs") == two
    assert os.readlink(tmp_path / "runs" / "latest") == "two"


def test_latest_without_a_link_is_the_newest(tmp_path):
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    os.utime(two.manifest, (1, 1))
    assert resolve_run("latest", tmp_path) == one
    with pytest.raises(InputError, match="no run in"):
        resolve_run("latest", tmp_path / "nowhere")


def test_a_link_is_followed_once_so_that_latest_may_move(tmp_path):
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    one.point_latest()
    found = resolve_run("latest", tmp_path)
    two.point_latest()
    assert found.read_manifest()["plan"]["experiment"] == "one"


def test_an_unknown_run_is_answered_with_the_nearest_names(tmp_path):
    make(tmp_path, "smoke-a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nearest: smoke-a"):
        resolve_run("smoke-b", tmp_path)
    with pytest.raises(InputError, match="without manifest"):
        resolve_run("empty", tmp_path)
    with pytest.raises(InputError, match="latest"):
        resolve_run("", tmp_path)


def test_a_directory_called_latest_is_not_replaced(tmp_path):
    run_dir = make(tmp_path, "one")
    (tmp_path / "latest").mkdir()
    with pytest.raises(StoreWriteError, match="latest"):
        run_dir.point_latest()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "one"]


def test_runs_are_listed_newest_first_with_their_figures(tmp_path):
    one = make(tmp_path, "one")
    two = make(tmp_path, "two", created_at="2026-02-01T00:00:00+00:00")
    make(tmp_path, "three", created_at="2025-02-01T00:00:00+00:00")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "notes.txt").touch()
    one.point_latest()
    one.write_summary({"counts": {"completed": 3, "failed": 1}, "primary": {"reward_mean": 0.5, "reward_sem": 0.1}})
    write_status(one, {"state": "ended", "done": 2, "failed": 0})
    write_status(two, {"state": "running", "done": 1, "failed": 0, "reward_mean": 0.25})
    one.traces.write_bytes(b"x" * 10)
    rows = list_runs(tmp_path)
    assert [(r.name, r.state) for r in rows] == [
        ("two", "interrupted"),
        ("one", "ended"),
        ("three", "not begun"),
        ("broken", "broken"),
    ]
    assert (rows[3].planned, rows[3].model, rows[3].done) == (None, None, None)
    row = rows[1]
    assert (row.experiment, row.model, row.checkpoint_id, row.split, row.planned) == ("one", "qwen", "step-10", "val", 4)
    assert (row.done, row.failed, row.reward_mean, row.reward_sem, row.bytes) == (3, 1, 0.5, 0.1, 10)
    assert (rows[0].done, rows[0].reward_mean, rows[0].reward_sem) == (1, 0.25, None)
    with RunLock.acquire(one):
        assert {r.name: (r.state, r.done) for r in list_runs(tmp_path)}["one"] == ("running", 2)
    with pytest.raises(InputError, match="runs-dir"):
        list_runs(tmp_path / "nowhere")


def test_a_changed_manifest_is_read_again(tmp_path):
    one = make(tmp_path, "one")
    assert list_runs(tmp_path)[0].experiment == "one"
    one.manifest.write_text(json.dumps(manifest("renamed-in-place")))
    assert list_runs(tmp_path)[0].experiment == "renamed-in-place"


def test_foreign_runs_are_read(tmp_path):
    run_dir = RunDirectory(tmp_path / "old").create()
    plan = {
        "experiment": "qwen35_4b_val",
        "model_id": "m",
        "model": {"model": "qwen", "provider": "openai_compatible_http"},
        "task_split": {"name": "val"},
        "jobs": [{"task_id": 1, "sample_id": 0, "seed": 1, "split": "val"}],
    }
    head = {"schema_version": "shopsimrl-run-manifest-v1", "created_at": "2025", "plan_fingerprint": "a", "plan": plan}
    run_dir.manifest.write_text(json.dumps(head))
    assert run_dir.is_foreign and run_dir.read_manifest()["plan"] == plan
    (row,) = list_runs(tmp_path)
    assert (row.foreign, row.split, row.planned, row.model, row.state) == (True, "val", 1, "qwen", "unknown")
