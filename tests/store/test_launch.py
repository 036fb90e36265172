from __future__ import annotations

import subprocess

import orjson
import pytest

from rayeval.store import RunDirectory, argv_without_secrets, git_state, without_secrets, write_launch


def launch(run_dir, text="a: 1\n", resolved=None, argv=("rayeval", "run", "c.yaml")):
    path = write_launch(
        run_dir, config_text=text, resolved=resolved or {"a": 1}, origins={"a": "c.yaml:1"}, argv=argv, code_dir=run_dir.path
    )
    return path.name, orjson.loads(path.read_bytes())


@pytest.fixture
def run_dir(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path / "r").create()


def test_the_first_launch_keeps_config_argv_and_versions(run_dir):
    name, record = launch(run_dir, "# 说明\na: 1\n")
    assert name == "launch.json" and record["number"] == 1
    assert run_dir.config.read_bytes() == "# 说明\na: 1\n".encode()
    assert orjson.loads(run_dir.config_resolved.read_bytes()) == {"config": {"a": 1}, "origins": {"a": "c.yaml:1"}}
    assert record["argv"] == ["rayeval", "run", "c.yaml"]
    assert record["packages"]["ray"] and record["packages"]["orjson"] and record["python"] and record["platform"]
    assert record["git"] is None


def test_a_resume_adds_and_never_overwrites(run_dir):
    launch(run_dir)
    first = {p.name: p.read_bytes() for p in run_dir.path.iterdir()}
    name, record = launch(run_dir)
    assert (name, record["number"]) == ("launch-2.json", 2)
    assert record["files"] == {"config": "config.yaml", "resolved": "config.resolved.json"}
    name, record = launch(run_dir, "a: 2\n", {"a": 2})
    assert name == "launch-3.json"
    assert record["files"] == {"config": "config-3.yaml", "resolved": "config.resolved-3.json"}
    assert (run_dir.path / "config-3.yaml").read_text() == "a: 2\n"
    assert {n: (run_dir.path / n).read_bytes() for n in first} == first


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--set model.extra_body.api_key=abc", "--set model.extra_body.api_key=***"),
        ("--set=environment.options.password=abc", "--set=environment.options.password=***"),
        ("--api-key abc run", "--api-key *** run"),
        ("--token=abc", "--token=***"),
        ("--set model.api_key_env=OPENAI_API_KEY", "--set model.api_key_env=OPENAI_API_KEY"),
        ("--set model.max_tokens=512 --set=model.max_tokens=9", "--set model.max_tokens=512 --set=model.max_tokens=9"),
        ("--set execution.max_tokens_total=512", "--set execution.max_tokens_total=512"),
        ("--set model.name=sk-abcdef123456", "--set model.name=***"),
        ("--set model.base_url=http://me:pw@host/v1", "--set model.base_url=http://***@host/v1"),
        ("run c.yaml --limit 3 --json", "run c.yaml --limit 3 --json"),
        ("--secret --json", "--secret --json"),
    ],
)
def test_argv_loses_its_secrets_and_nothing_else(given, kept):
    assert argv_without_secrets(given.split()) == kept.split()


def test_resolved_settings_lose_their_secrets_and_nothing_else():
    given = {
        "model": {
            "api_key_env": "KEY_NAME",
            "max_tokens": 4096,
            "extra_body": {"api_key": "abc", "headers": ["Bearer abcdefgh"], "tokens": {"a": True, "b": None}},
        },
        "environment": {"options": {"password": 1234, "url": "http://u:p@h/"}},
    }
    assert without_secrets(given) == {
        "model": {
            "api_key_env": "KEY_NAME",
            "max_tokens": 4096,
            "extra_body": {"api_key": "***", "headers": ["***"], "tokens": {"a": True, "b": None}},
        },
        "environment": {"options": {"password": "***", "url": "http://***@h/"}},
    }


def test_no_secret_reaches_the_run_directory(run_dir):
    argv = ["rayeval", "run", "--set", "model.extra_body.api_key=hunter2"]
    launch(run_dir, resolved={"model": {"extra_body": {"api_key": "hunter2"}}}, argv=argv)
    assert not any(b"hunter2" in p.read_bytes() for p in run_dir.path.iterdir())


def test_git_commit_and_dirty_flag(tmp_path):
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@e", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    assert git_state(tmp_path) is None
    git("init", "-q")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-q", "-m", "m")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "new").touch()
    assert git_state(tmp_path)["dirty"] is False
    (tmp_path / "f").write_text("2")
    assert git_state(tmp_path)["dirty"] is True


def test_a_missing_git_is_fine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
