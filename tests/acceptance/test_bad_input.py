"""What is wrong is told in one clear line, with the documented exit code, and nothing is lost or half-written.

By the command line, with ``--show``: everything but Ray.
"""

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayeval.demo import DemoServers
from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory
from tests.acceptance.runs import Bench, completed_counts, lines_of, records, run_here
from tests.helpers.ports import free_port

Run = Callable[..., subprocess.CompletedProcess[str]]


class Demo:
    """The session's demo servers, as a bench takes them."""

    def __init__(self, servers: DemoServers) -> None:
        self.model_url, self.shop_url = servers.model_url, servers.shop_url


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, 4)


@pytest.fixture
def config(bench: Bench, demo_servers: DemoServers) -> Callable[..., Path]:
    def write(name: str = "bad", **overrides: Any) -> Path:
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        return bench.config(name, [Demo(demo_servers)], {"execution.exclusive_environment": False, **dotted})  # type: ignore[list-item]

    return write


def run(config: Path, *arguments: str, preexec: Any = None, show: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rayeval", "run", str(config), *(["--show"] if show else []), "--display", "none", *arguments],
        capture_output=True,
        text=True,
        timeout=120.0,
        preexec_fn=preexec,
    )


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says what is wrong."""
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in (done.stderr + done.stdout).splitlines() if re.match(r"(error|ended): ", line)]
    assert len(lines) == 1, done.stderr + done.stdout
    return lines[0]


def show_dir(bench: Bench) -> Path:
    (path,) = [p for p in (bench.root / "runs").iterdir() if p.is_dir() and not p.is_symlink()]
    return path


@pytest.mark.parametrize(("key", "path"), [("model__base_url", "/v1"), ("environment__base_url", "")])
def test_a_port_with_nothing_behind_it(config: Callable[..., Path], key: str, path: str) -> None:
    url = f"http://127.0.0.1:{free_port()}{path}"
    done = run(config(**{key: url}))
    assert done.returncode == ExitCode.STOPPED
    line = error_line(done)
    assert url in line and key.replace("__", ".") in line


def test_a_full_disk_keeps_whole_lines_and_goes_on_later(bench: Bench, config: Callable[..., Path]) -> None:
    path = config("full")
    done = run(path, preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)))
    assert done.returncode == ExitCode.STOPPED, done.stderr + done.stdout
    assert "traces.jsonl" in error_line(done)
    run_dir = RunDirectory(show_dir(bench))
    kept = lines_of(run_dir)
    assert kept < 4
    assert len(list(records(run_dir))) == kept
    again = run(path)
    assert again.returncode == ExitCode.OK, again.stderr
    assert set(completed_counts(run_dir).values()) == {1} and len(completed_counts(run_dir)) == 4


def test_a_run_directory_that_cannot_be_made(bench: Bench, config: Callable[..., Path]) -> None:
    (bench.root / "file").write_text("x")
    done = run(config(experiment__output_dir="file"))
    assert done.returncode == ExitCode.BAD_INPUT
    assert "below a file" in error_line(done)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_a_run_directory_that_cannot_be_written(config: Callable[..., Path]) -> None:
    done = run(config(experiment__output_dir="/proc/self/runs"))
    assert done.returncode in (ExitCode.BAD_INPUT, ExitCode.STOPPED)
    assert "/proc/self/runs" in error_line(done)


def test_a_changed_prompt_on_resume_names_the_key_and_touches_nothing(bench: Bench, config: Callable[..., Path]) -> None:
    assert run_here(config("prompt"), show=True).exit_code == ExitCode.OK
    place = bench.run_dir("prompt").path
    before = {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()}
    done = run(config("prompt", prompt__system_prompt="Shop in another way."), show=False)
    assert done.returncode == ExitCode.FINGERPRINT
    assert "prompt.system_prompt_sha256" in done.stderr and "->" in done.stderr
    assert {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()} == before


@pytest.mark.parametrize("name", ["价格 实验 #1 ?100%", "with space", "a#b?c%d"])
def test_names_with_odd_characters_run_or_are_refused_in_one_line(bench: Bench, config: Callable[..., Path], name: str) -> None:
    path = config("odd", experiment__name=name)
    done = run(path, "--limit", "1")
    if done.returncode == ExitCode.OK:
        assert show_dir(bench).name.startswith(name)
    else:
        assert done.returncode == ExitCode.BAD_INPUT
        assert "experiment.name" in error_line(done)


def test_a_name_with_a_slash_is_refused(config: Callable[..., Path]) -> None:
    done = run(config("slash", experiment__name="a/b"))
    assert done.returncode == ExitCode.BAD_INPUT
    assert "experiment.name" in error_line(done)


def test_yaml_with_a_mark_and_windows_line_ends(bench: Bench, config: Callable[..., Path]) -> None:
    path = config("windows")
    text = yaml.safe_dump(yaml.safe_load(path.read_text()), allow_unicode=True)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    done = run(path, "--limit", "1")
    assert done.returncode == ExitCode.OK, done.stderr
    (count,) = completed_counts_of(bench).values()
    assert count == 1


def completed_counts_of(bench: Bench) -> Any:
    return completed_counts(RunDirectory(show_dir(bench)))


@pytest.mark.parametrize(("key", "value"), [("model__api_key_env", "NO_SUCH_KEY"), ("environment__kind", "nowhere.Nothing")])
def test_what_cannot_be_made_is_told_before_anything_is_there(bench: Bench, config: Callable[..., Path], key: str, value: str) -> None:
    done = run(config(**{key: value}))
    assert done.returncode == ExitCode.BAD_INPUT
    assert key.replace("__", ".") in error_line(done)
    assert not (bench.root / "runs").exists()


def test_a_start_that_came_to_no_episode_binds_no_plan(bench: Bench, config: Callable[..., Path]) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    for temperature in (0.6, 0.25):  # another plan: refused as such (3) once there is an episode
        done = run(config(model__base_url=nowhere, model__temperature=temperature), show=False)
        assert done.returncode == ExitCode.STOPPED, done.stderr + done.stdout
        assert "nothing answers there" in error_line(done)
