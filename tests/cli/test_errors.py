import errno
import json
import os
import subprocess
import sys

import pytest
import typer

from rayeval.cli import app as cli
from rayeval.cli import main
from rayeval.cli.output import PipeClosedError, write_json, write_out
from rayeval.exceptions import (
    ConfigurationError,
    EndpointsOutError,
    FencedError,
    PlanMismatchError,
    RunLockedError,
    StoreWriteError,
    TestSplitGuardError,
)
from rayeval.schemas import ExitCode

ENDINGS = [
    (ConfigurationError("model.name", "x", "give a name"), 2, "error: model.name = 'x': give a name"),
    (PlanMismatchError("another plan", [("model.name", "a", "b")]), 3, "error: another plan\n  model.name: 'a' -> 'b'"),
    (TestSplitGuardError("a test split needs tasks.unlock_test"), 4, "error: a test split needs tasks.unlock_test"),
    (RunLockedError("held by pid 7"), 4, "error: held by pid 7"),
    (StoreWriteError("disk full"), 5, "error: disk full"),
    (EndpointsOutError("nobody\nthere"), 5, "error: nobody\\nthere"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "a/b"), 2, "error: path = 'a/b': no such file or directory"),
    (PermissionError(errno.EACCES, "Permission denied", "a/b"), 5, "error: path = 'a/b': permission denied"),
    (OSError(errno.ENOSPC, "No space left on device", "a/b"), 5, "error: path = 'a/b': no space left on device"),
    (KeyboardInterrupt(), 130, ""),
    (typer.Abort(), 130, ""),
    (typer.Exit(7), 7, ""),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    (PipeClosedError(), 141, ""),
]


@pytest.fixture
def verb():
    """Registers a verb ``boom`` that ends as told, for the time of the test."""
    ending = {}

    def boom(as_json: bool = typer.Option(False, "--json")) -> int:
        if isinstance(ending["how"], BaseException):
            raise ending["how"]
        return ending["how"]

    cli.app.command("boom")(boom)
    yield lambda how: ending.update(how=how)
    cli.app.registered_commands.pop()


@pytest.mark.parametrize(("how", "code", "text"), ENDINGS, ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else None)
def test_every_ending_has_its_code_and_line(rayeval, verb, how, code, text):
    verb(how)
    answer = rayeval("boom")
    assert answer.code == code
    assert answer.out == ""
    assert answer.err.startswith(text) if text else answer.err == ""
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("code", list(ExitCode))
def test_a_verb_gives_its_code_back(rayeval, verb, code):
    verb(code)
    assert rayeval("boom").code == code


def test_an_unexpected_error_ends_with_its_traceback(rayeval, verb):
    verb(ZeroDivisionError("boom\x1b[31m"))
    answer = rayeval("boom")
    assert answer.code == 70
    assert "Traceback" in answer.err and "ZeroDivisionError" in answer.err and "\x1b" not in answer.err
    assert rayeval("boom", "--json").json["error"]["code"] == 70


def test_a_defect_of_ours_in_the_tree_of_errors_keeps_its_traceback(rayeval, verb):
    verb(FencedError("let out"))
    answer = rayeval("boom")
    assert answer.code == 70 and "Traceback" in answer.err


def test_json_errors_are_one_object_on_stdout(rayeval, verb):
    verb(ConfigurationError("model.name", ["x"], "give a name"))
    answer = rayeval("boom", "--json")
    assert answer.json == {
        "schema": "rayeval-error-v1",
        "error": {"code": 2, "field": "model.name", "value": "['x']", "hint": "give a name"},
    }
    assert answer.err.startswith("error: model.name")


def test_json_names_every_difference_of_a_plan(rayeval, verb):
    verb(PlanMismatchError("another plan", [("a.b", 1, None), ("c", (1,), "x")]))
    error = rayeval("boom", "--json").json["error"]
    assert (error["code"], error["field"], error["hint"]) == (3, "plan", "another plan")
    assert error["differences"] == [{"key": "a.b", "old": 1, "new": None}, {"key": "c", "old": "(1,)", "new": "x"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["pln"], "Did you mean 'plan'"),
        (["plan"], "Missing argument 'CONFIG'"),
        (["plan", "x.yaml", "--nope"], "No such option: --nope"),
        (["plan", "x.yaml", "--limit", "0"], "--limit"),
        (["config", "nope"], "No such command 'nope'"),
    ],
)
def test_a_wrong_command_line_is_bad_input(rayeval, words, said):
    answer = rayeval(*words)
    assert answer.code == 2
    assert said in answer.err and answer.err.count("\n") == 1 and "--help" in answer.err
    assert said in rayeval(*words, "--json").json["error"]["hint"]


def test_without_a_verb_the_help_is_shown(rayeval):
    answer = rayeval()
    assert answer.code == 2 and "Commands:" in answer.err


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["plan", "none.yaml"], "none.yaml"),
        (["plan", "small.yaml", "--where", "fo=="], "--where"),
        (["plan", "small.yaml", "--where", "color == 'red'"], "--where"),
        (["plan", "small.yaml", "--task", "9-1"], "--task"),
        (["plan", "small.yaml", "--set", "model.nmae=x"], "--set model.nmae"),
        (["run", "small.yaml", "--display", "loud"], "--display"),
        (["run", "small.yaml", "--max-failed", "many"], "execution.max_failed"),
        (["run", "small.yaml", "--retry-failed", "--no-resume"], "--retry-failed"),
        (["status", "nothing"], "run"),
        (["summarize", "latest"], "run"),
        (["runs", "nowhere"], "runs directory"),
        (["verify", "a", "--canonical", "a", "b"], "RUN"),
        (["init", "small.yaml"], "DIR"),
    ],
)
def test_bad_input_names_the_field(rayeval, config, words, field):
    answer = rayeval(*words, "--json")
    assert answer.code == 2
    assert answer.json["error"]["field"] == field and answer.json["error"]["hint"]
    assert answer.err.count("\n") == 1


def test_the_help_lists_every_exit_code(rayeval):
    answer = rayeval("--help")
    assert answer.code == 0
    for code in ExitCode:
        assert f"\n    {int(code):<4d}" in answer.out


def test_the_help_lists_the_verbs_of_this_version(rayeval):
    text = rayeval("--help").out
    listed = text.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == [
        "init",
        "doctor",
        "plan",
        "run",
        "submit",
        "runs",
        "status",
        "summarize",
        "logs",
        "verify",
        "shards",
        "control",
        "demo",
        "config",
        "leases",
    ]


def test_the_version(rayeval):
    assert rayeval("--version").out == "rayeval 0.1.0\n"


def test_a_module_is_an_entry_too():
    done = subprocess.run([sys.executable, "-m", "rayeval", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "rayeval 0.1.0\n")


def test_a_reader_that_leaves_early_is_no_error(config):
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "rayeval", "plan", str(config), "--jobs"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["plan", "{config}", "--limit", "0"], ["status", "no-such-run", "--json"]])
def test_a_reader_that_leaves_early_hides_no_failure(config, words):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "rayeval", *(word.format(config=config) for word in words)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert done.returncode == 2 and done.stderr.startswith("error: ")


def test_a_verdict_that_nobody_reads_is_the_exit_code(monkeypatch):
    def told() -> int:
        write_out("a verdict\n" * 50)
        write_json({"verdict": 1})
        return 1

    cli.app.command("told")(told)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with os.fdopen(writing, "w") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            assert main(["told"]) == 1
            monkeypatch.undo()
    finally:
        cli.app.registered_commands.pop()


def test_completion_knows_the_verbs():
    environ = {**os.environ, "_RAYEVAL_COMPLETE": "complete_bash", "COMP_WORDS": "rayeval su", "COMP_CWORD": "1"}
    words = [sys.executable, "-c", "from rayeval.cli import main; main()"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["submit", "summarize"]


def test_main_reads_the_command_line_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rayeval", "config", "schema", "--json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "rayeval-config-schema-v1"
