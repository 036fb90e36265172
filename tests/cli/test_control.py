import threading

import pytest

from rayeval.control import done_reply, refusal
from rayeval.exceptions import InputError
from rayeval.mailbox import DirectoryMailbox
from rayeval.store import RunLock
from tests.helpers.runs import make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "r", [])


@pytest.fixture
def live(run):
    """A run whose driver does as it is told; -> the requests it got."""
    box, seen, stop = DirectoryMailbox(run), [], threading.Event()
    box.open()

    def drive():
        while not stop.wait(0.02):
            for request in box.poll():
                seen.append(request)
                wrong = InputError("--task", request.arguments["task"], "no such task") if "task" in request.arguments else None
                box.answer(refusal(request, wrong) if wrong else done_reply(request, f"{request.verb} it is", {"n": 1}))

    thread = threading.Thread(target=drive, daemon=True)
    with RunLock.acquire(run):
        thread.start()
        yield seen
        stop.set()
        thread.join()


def test_what_was_done_is_said(rayeval, live):
    answer = rayeval("control", "r", "pause")
    assert (answer.code, answer.out) == (0, "r: pause it is\n")
    assert live[0].verb == "pause" and live[0].user


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("set", "concurrency=32", "max_cost=null"), {"concurrency": 32, "max_cost": None}),
        (("drain", "--grace-s", "5"), {"grace_s": 5.0}),
        (("drain",), {}),
        (("cancel", "--episode", "a", "--episode", "b"), {"episodes": ["a", "b"]}),
    ],
)
def test_words_become_arguments(rayeval, live, words, arguments):
    assert rayeval("control", "r", *words).code == 0
    assert live[0].arguments == arguments


def test_json_is_one_object(rayeval, live):
    answer = rayeval("control", "r", "resume", "--json")
    assert (answer.json["schema"], answer.json["run"], answer.json["verb"]) == ("rayeval-control-v1", "r", "resume")
    assert answer.json["result"] == {"n": 1} and answer.json["ok"]


def test_what_the_run_refuses_is_told_as_it_says_it(rayeval, live):
    answer = rayeval("control", "r", "cancel", "--task", "77", "--json")
    assert answer.code == 2 and answer.json["error"]["field"] == "--task"
    assert answer.err == "error: --task = '77': no such task\n"


@pytest.mark.parametrize(
    "words",
    [
        ("r", "stop"),
        ("pause", "r"),
        ("r", "set"),
        ("r", "set", "attempts=3"),
        ("r", "set", "concurrency=0"),
        ("r", "pause", "concurrency=3"),
        ("r", "resume", "--task", "3"),
        ("r", "cancel", "--grace-s", "3"),
        ("r", "cancel"),
        ("r", "cancel", "--task", "x"),
        ("r", "drain", "--grace-s", "-1"),
        ("nosuch", "pause"),
        ("r",),
    ],
)
def test_wrong_words_are_bad_input_in_one_line(rayeval, run, words):
    answer = rayeval("control", *words)
    assert answer.code == 2 and answer.err.count("\n") == 1 and answer.out == ""


def test_a_run_that_nobody_works_on_is_refused(rayeval, run):
    answer = rayeval("control", "r", "pause", "--json")
    assert answer.code == 4 and answer.json["error"]["code"] == 4
    assert answer.err == "error: r is not running: nobody works on it\n"
