from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray
from ray._private import auto_init_hook

from actors.engine import RunRequest, run
from actors.shards import AUTO_EPISODES, wanted, write_at_end, write_shards
from rayeval.cli import main
from rayeval.config import load_config
from rayeval.demo import DemoServers
from rayeval.display import NoDisplay
from rayeval.exceptions import InputError, StoppedError, StoreWriteError
from rayeval.plan import make_plan
from rayeval.shard_places import open_place
from rayeval.shards import read_manifest, shard_files, verify_shards
from rayeval.store import RunDirectory
from tests.actors.plans import write_config
from tests.helpers.runs import completed, failed, foreign, make_foreign_run, make_run
from tests.helpers.shards import write_here

WRITE = """
import sys
from actors.shards import write_shards
from rayeval.store import RunDirectory
write_shards([RunDirectory(sys.argv[1])], address=sys.argv[2], part_bytes=5_000)
"""
HANG = """
import sys, threading
import psutil
from actors import shards
from rayeval.exceptions import StoppedError
from rayeval.store import RunDirectory

def hangs(*given):
    print("writing", flush=True)
    raylets.extend(p for p in psutil.Process().children() if p.name() == "raylet")
    told.wait(90.0)
    try:
        shards.ray.put(1)
    except shards.ray.exceptions.RaySystemError:
        print("thread: none started", flush=True)

raylets, told = [], threading.Event()
shards._job = hangs
try:
    shards.write_shards([RunDirectory(sys.argv[1])], address="local", deadline_s=45.0)
except StoppedError as error:
    print("given up:", str(error).partition(";")[0], flush=True)
print("raylets", sum(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in raylets) if raylets else "none", flush=True)
told.set()
next(t for t in threading.enumerate() if t.name == "within").join(60.0)
"""
HANG_GUARD_S = 120.0


@pytest.mark.ray
def test_a_run_is_written_as_in_one_process_and_once(tmp_path: Path, ray_session: None) -> None:
    run = make_run(tmp_path / "a", [failed(0), *(completed(t, attempt=2) for t in range(40)), b"junk\n"], tail=b"torn")
    expected = write_here([run], open_place(tmp_path / "here"), part_bytes=5_000)
    result = write_shards([run], part_bytes=5_000)
    assert result.written and result.manifest == expected == read_manifest(run.shards) and len(expected["files"]) > 3
    assert verify_shards(run.shards) == []
    before = {path.name: path.stat().st_mtime_ns for path in run.shards.glob("*")}
    assert write_shards([run], part_bytes=5_000) == (result.place, expected, False)
    assert {path.name: path.stat().st_mtime_ns for path in run.shards.glob("*")} == before


@pytest.mark.ray
def test_a_job_that_does_not_end_is_given_up(tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    run, told = make_run(tmp_path / "a", [completed(t) for t in range(4)]), []
    with pytest.raises(StoppedError, match=r"did not end within 0 s; run the same command again"):
        write_shards([run], deadline_s=0.0, note=lambda *note: told.append(note))
    (thread,) = [t for t in threading.enumerate() if t.name == "within"]
    assert not (run.shards / "_manifest.json").exists() and not auto_init_hook.enable_auto_connect
    assert told == [("info", f"writing shards of 0.0 MB of traces to {run.shards}")]
    thread.join(HANG_GUARD_S)
    assert write_shards([run]).written and verify_shards(run.shards) == []


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_given_up_on_a_ray_of_its_own_ends_that_ray_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [completed(t) for t in range(4)])
    done = subprocess.run([sys.executable, "-c", HANG, str(run.path)], capture_output=True, text=True, timeout=HANG_GUARD_S, check=False)
    told = ["writing", "given up: writing shards did not end within 45 s", "raylets 0", "thread: none started"]
    assert done.stdout.splitlines() == told, done.stdout + done.stderr
    assert not list(run.shards.glob("*.parquet*"))


@pytest.mark.ray
def test_a_reward_component_that_turns_up_late_gets_its_column(tmp_path: Path, ray_session: None) -> None:
    run = make_run(tmp_path / "a", [completed(0), completed(1), completed(2, r_late=0.5)])
    result = write_shards([run], look_at=1)
    assert result.manifest == write_here([run], open_place(tmp_path / "here"))
    assert {"name": "r_late", "type": "double"} in result.manifest["columns"]


@pytest.mark.ray
def test_an_object_store_gets_the_same_set(tmp_path: Path, ray_session: None) -> None:
    run = make_run(tmp_path / "a", [completed(t) for t in range(4)])
    result = write_shards([run], f"local://{tmp_path}/store")
    assert result.written and result.manifest == write_shards([run]).manifest
    assert shard_files(f"local://{tmp_path}/store") == [f"local://{tmp_path}/store/traces-00000.parquet"]
    assert not write_shards([run], f"local://{tmp_path}/store").written


@pytest.mark.ray
def test_a_disk_that_refuses_is_told_in_one_line(tmp_path: Path, ray_session: None) -> None:
    run = make_run(tmp_path / "a", [completed(t) for t in range(4)])
    with pytest.raises(StoreWriteError, match=r"/dev/full/x: writing traces-00000.parquet failed"):
        write_shards([run], "local:///dev/full/x")
    with pytest.raises(InputError, match="give a directory"):
        write_shards([run], run.manifest)


def test_nothing_is_written_into_a_run_of_another_package(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only read"):
        write_shards([make_foreign_run(tmp_path / "old", [foreign(completed())])])


@pytest.mark.ray
def test_a_writer_killed_midway_leaves_nothing_that_counts(tmp_path: Path, ray_session: None) -> None:
    run = make_run(tmp_path / "a", [completed(t) for t in range(600)], tasks=range(600))
    expected = write_here([run], open_place(tmp_path / "here"), part_bytes=5_000)
    words = [sys.executable, "-c", WRITE, str(run.path), ray.get_runtime_context().gcs_address]
    driver = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + HANG_GUARD_S
        while not list(run.shards.glob("*.part.tmp")):
            assert driver.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(timeout=30)
    assert not list(run.shards.glob("*.parquet")) and not (run.shards / "_manifest.json").exists()
    with pytest.raises(InputError, match="no shards, or unfinished ones"):
        shard_files(run.shards)
    again = write_shards([run], part_bytes=5_000)
    assert again.written and again.manifest == expected and verify_shards(run.shards) == []


@pytest.mark.ray
def test_the_command_writes_one_run_or_several(tmp_path: Path, ray_session: None, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        make_run(tmp_path / name, [completed(t) for t in range(3)], tail=b"torn" if name == "a" else b"")
    assert main(["shards", "a", "--runs-dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "3 rows in 1 file" in told and "an unfinished last line of 4 bytes is left out" in told
    assert main(["shards", "--merge", str(tmp_path / "m"), "a", "b", "--runs-dir", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["rows"], answer["written"]) == ("rayeval-shards-result-v1", 6, True)
    assert [source["run"] for source in answer["sources"]] == ["a", "b"]
    assert main(["shards", "a", "b", "--runs-dir", str(tmp_path)]) == 2
    assert "--merge" in capsys.readouterr().err


class Notes(NoDisplay):
    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def note(self, level: str, text: str) -> None:
        self.notes.append((level, text))


def run_of_six(root: Path, servers: DemoServers) -> tuple[RunDirectory, int, list[tuple[str, str]]]:
    """One invocation on the session's Ray that asks for shards. -> its directory, exit code and notes."""
    overrides = {
        "environment.kind": "shopsimulator",
        "environment.base_url": servers.shop_url,
        "model.provider": "openai_chat",
        "model.base_url": servers.model_url,
        "execution.shards": True,
    }
    loaded = load_config(write_config(root, tasks=6, overrides=overrides))
    display = Notes()
    ended = run(RunRequest(loaded, make_plan(loaded), root / "run"), display)
    return RunDirectory(root / "run"), ended.exit_code, display.notes


@pytest.mark.ray
def test_a_run_ends_with_its_shards_and_never_fails_for_them(tmp_path: Path, ray_session: None, demo_servers: DemoServers) -> None:
    run_dir, code, notes = run_of_six(tmp_path, demo_servers)
    assert code == 0 and ("info", f"shards: 6 rows in 1 file, {run_dir.shards}") in notes
    assert verify_shards(run_dir.shards) == []
    (run_dir.shards / "_manifest.json").unlink()
    assert run_of_six(tmp_path, demo_servers)[1] == 0 and read_manifest(run_dir.shards)["rows"] == 6  # nothing was left but to write them
    (run_dir.shards / "_manifest.json").unlink()
    (run_dir.shards / "mine.txt").write_text("x")
    _, code, notes = run_of_six(tmp_path, demo_servers)
    assert code == 0 and notes[-1][0] == "warning" and "holds other files" in notes[-1][1]


async def test_a_failure_at_the_end_is_a_warning_with_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [completed()])
    (run.path / "shards").write_text("in the way")
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(HANG_GUARD_S):
        await write_at_end(run, lambda level, text: told.append((level, text)), lambda: False)
    assert told[-1][0] == "warning" and told[-1][1].endswith(f"write them with: rayeval shards {run.path}")


@pytest.mark.parametrize(
    ("chosen", "episodes", "completed", "on_ray", "expected"),
    [
        ("auto", AUTO_EPISODES, True, True, True),
        ("auto", AUTO_EPISODES - 1, True, True, False),
        ("auto", AUTO_EPISODES, False, True, False),
        ("auto", AUTO_EPISODES, True, False, False),
        (True, 1, False, False, True),
        (False, AUTO_EPISODES, True, True, False),
    ],
)
def test_auto_means_large_runs_that_completed_on_ray(
    chosen: bool | str, episodes: int, completed: bool, on_ray: bool, expected: bool
) -> None:
    assert wanted(chosen, episodes, completed=completed, on_ray=on_ray) is expected
