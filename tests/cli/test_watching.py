import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rayeval.cli.status_page import Sight
from rayeval.cli.watching import _Screen, status_object, watch
from rayeval.schemas import ExitCode
from rayeval.store import RunLock, write_status
from tests.cli.statuses import RUNNING
from tests.helpers.runs import completed, make_run


class Script:
    """A source that tells what it was given, one after the other."""

    def __init__(self, *sights: Sight) -> None:
        self._sights = list(sights)
        self.waits: list[float] = []

    def read(self, wait_s: float) -> Sight:
        self.waits.append(wait_s)
        return self._sights.pop(0)


def sight(state: str = "running", at: str = "1", stale: bool = False, advice: str | None = None, **more: Any) -> Sight:
    return Sight({**RUNNING, "updated_at": at, "state": state, **more}, state, 1.0, stale, advice, "smoke")


ENDED = sight("ended", "9", exit_code=1, reason="3 episodes failed for good, 0 were allowed", notes=[])


def test_lines_tell_how_far_it_is_then_what_is_new_then_how_it_ended(capsys):
    warned = [{"at": "t", "level": "error", "text": "a server\n\x1b[31mis gone"}]
    assert watch(Script(sight(notes=[]), sight(notes=warned), sight(notes=warned), ENDED), 30.0, False) == 1
    lines = [line[9:] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "smoke: running; 412 of 2000 done, 3 failed, 64 in flight, 31.2 a minute, reward 0.661 over 409, about 51 min left",
        "error: a server\\n\\x1b[31mis gone",
        "smoke: ended with exit code 1 (3 episodes failed for good, 0 were allowed); 412 of 2000 done, 3 failed, 64 in flight, "
        "31.2 a minute, reward 0.661 over 409",
    ]


def test_lines_tell_at_once_that_the_status_is_stale_and_that_nobody_works_on_it(capsys):
    gone = sight("interrupted", advice="nobody works on it; run the same command again to go on")
    source = Script(sight(notes=[]), sight(stale=True, advice="its driver hangs; look there"), gone)
    assert watch(source, 30.0, False) == ExitCode.STOPPED
    out = capsys.readouterr().out
    assert "but its status is 1 s old" in out and "its driver hangs; look there" in out and "run the same command again" in out


def test_json_is_one_line_for_each_change(capsys):
    same = [sight(at="1"), sight(at="1"), sight(at="2"), ENDED]
    assert watch(Script(*same), 1e-9, True) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(t["schema"], t["state"], t["updated_at"]) for t in told] == [
        ("rayeval-status-v1", "running", "1"),
        ("rayeval-status-v1", "running", "2"),
        ("rayeval-status-v1", "ended", "9"),
    ]


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (sight("ended", exit_code=0), 0),
        (sight("ended", exit_code=4), 4),
        (sight("interrupted"), ExitCode.STOPPED),
        (Sight({}, "not begun"), ExitCode.REFUSED),
    ],
)
def test_a_watch_ends_with_the_runs_exit_code(last, code, capsys):
    assert watch(Script(sight(), last), 1.0, True) == code


def test_what_a_killed_driver_wrote_last_is_corrected():
    told = status_object(sight("interrupted"))
    assert (told["state"], told["in_flight"], told["eta_s"], told["stale"], told["status_age_s"]) == ("interrupted", 0, None, False, 1.0)
    assert status_object(Sight({}, "not begun", name="r"))["run"] == "r"


def test_the_screen_follows_the_terminals_size_and_its_clock():
    screen = _Screen()
    screen.show(sight())
    for width, height in ((80, 24), (140, 40), (30, 5)):
        console = Console(file=io.StringIO(), width=width, height=height, legacy_windows=False, color_system=None)
        console.print(screen)
        lines = console.file.getvalue().splitlines()
        assert len(lines) <= height and max(map(len, lines)) <= width
        assert lines[0].startswith("smoke: running")
    time.sleep(0.6)
    assert "status 2 s old" in "".join(span.text for span in screen.lines(80, 24)[0])


def in_terminal(root: Path, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "80", "PYTHONPATH": str(Path(__file__).parents[2])}
    env.pop("CI", None)
    child = subprocess.Popen([sys.executable, "-m", "rayeval", *words], stdin=slave, stdout=slave, stderr=slave, cwd=root, env=env)
    os.close(slave)
    return child, master


def seen_until(master: int, text: bytes, limit_s: float = 20.0) -> bytes:
    seen, until = b"", time.monotonic() + limit_s
    while text not in seen and time.monotonic() < until:
        if select.select([master], [], [], 0.1)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:
                break
    assert text in seen, seen
    return seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_page_is_left_as_the_terminal_was(tmp_path, number, code):
    run = make_run(tmp_path / "runs" / "r", [completed(0)])
    write_status(run, {**RUNNING, "updated_at": "2999-01-01T00:00:00+00:00"})
    with RunLock.acquire(run):
        child, master = in_terminal(tmp_path, "status", "r", "--watch")
        try:
            seen = seen_until(master, b"slowest episodes")
            assert b"\x1b[?1049h" in seen
            child.send_signal(number)
            seen += seen_until(master, b"\x1b[?1049l")
            assert child.wait(10) == code
            assert b"Traceback" not in seen
        finally:
            child.kill()
            child.wait()
            os.close(master)


def test_a_page_ends_with_the_run_and_stays_on_the_screen(tmp_path):
    run = make_run(tmp_path / "runs" / "r", [completed(0)])
    write_status(run, {**RUNNING, "updated_at": "2999-01-01T00:00:00+00:00"})
    with RunLock.acquire(run):
        child, master = in_terminal(tmp_path, "status", "r", "--watch", "--every", "0.2")
        try:
            seen_until(master, b"slowest episodes")
            write_status(
                run, {**RUNNING, "updated_at": "2999-01-01T00:00:00+00:00", "state": "ended", "exit_code": 1, "reason": "3 failed"}
            )
            seen = seen_until(master, b"\x1b[?1049l")
            seen_until(master, b"smoke: ended with exit code 1 (3 failed)") if b"(3 failed)" not in seen else None
            assert child.wait(10) == 1
        finally:
            child.kill()
            child.wait()
            os.close(master)


def test_options_that_do_not_fit_are_refused(rayeval, tmp_path):
    make_run(tmp_path / "runs" / "r", [completed(0)])
    assert rayeval("status", "r", "--every", "2").code == 2
    assert rayeval("status", "r", "--watch", "--every", "0").code == 2
    # in a process of its own: this one may be on a Ray already
    words = [sys.executable, "-m", "rayeval", "status", "r", "--address", "127.0.0.1:9"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 5 and done.stderr.count("\n") == 1 and "127.0.0.1:9 cannot be joined" in done.stderr
