import threading
import time

import pytest

from rayeval.store import RunLock, RunLogs
from tests.helpers.runs import make_run


@pytest.fixture
def run(tmp_path):
    made = make_run(tmp_path / "runs" / "r", [])
    for number in (1, 2):
        logs = RunLogs(made, number)
        for k in range(3):
            logs.driver(k, "info", f"driver {number}.{k}")
        logs.actor("1-actor-001", 0, "warning", f"actor {number}")
    return made


def words(out):
    return [" ".join(line.split()[-2:]) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), ["driver 2.0", "driver 2.1", "driver 2.2"]),
        (("--attempt", 1, "--tail", 1), ["driver 1.2"]),
        (("--tail", 0), []),
        (("--actor", "actor-001"), ["actor 2"]),
        (("--follow", "--tail", 2), ["driver 2.1", "driver 2.2"]),
    ],
)
def test_what_is_asked_for_is_shown(rayeval, run, options, shown):
    answer = rayeval("logs", "r", *options)
    assert (answer.code, words(answer.out), answer.err) == (0, shown, "")


def test_json_is_one_object(rayeval, run):
    found = rayeval("logs", "r", "--attempt", 1, "--json").json
    assert (found["schema"], found["run"], found["attempt"], found["attempts"]) == ("rayeval-logs-v1", "r", 1, [1, 2])
    assert [file["name"] for file in found["files"]] == ["driver.log", "actor-1-actor-001.log"] and len(found["lines"]) == 3
    assert len(rayeval("logs", "r", "--tail", 1, "--json").json["lines"]) == 1


@pytest.mark.parametrize(
    "options",
    [
        ("raysubmit_abc123",),
        ("none",),
        ("r", "--attempt", 3),
        ("r", "--actor", "9"),
        ("r", "--json", "--follow"),
        ("r", "--attempt", 0),
        ("r", "--tail", -1),
    ],
)
def test_wrong_words_are_bad_input_in_one_line(rayeval, run, options):
    answer = rayeval("logs", *options)
    assert answer.code == 2 and (answer.out == "" or "--json" in options) and answer.err.count("\n") == 1


def test_a_run_that_is_named_like_a_job_is_a_run(rayeval, run):
    run.path.rename(run.path.with_name("rayeval-0123456789ab-1"))
    answer = rayeval("logs", "rayeval-0123456789ab-1", "--tail", 1)
    assert (answer.code, words(answer.out)) == (0, ["driver 2.2"])


def test_following_goes_on_while_somebody_works_on_the_run_and_misses_nothing(rayeval, run):
    logs, started = RunLogs(run, 3), threading.Event()
    logs.driver(0, "info", "driver 3.0")

    def drive():
        with RunLock.acquire(run):
            started.set()
            for k in range(1, 6):
                time.sleep(0.2)
                logs.driver(0, "info", f"driver 3.{k}")

    thread = threading.Thread(target=drive)
    thread.start()
    started.wait(10.0)
    answer = rayeval("logs", "r", "--follow")
    thread.join()
    assert words(answer.out) == [f"driver 3.{k}" for k in range(6)]


def test_what_a_server_put_into_a_log_drives_no_terminal(rayeval, run):
    RunLogs(run, 3).driver(0, "error", "\x1b[31mred\x9b")
    assert "\\x1b[31mred\\x9b" in rayeval("logs", "r").out
