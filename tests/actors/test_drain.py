"""Drivers and actors are processes of these names below the test's own; nothing else on the machine is looked at."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import psutil
import pytest

from actors import drain

ACTOR = "ray::_RayRolloutActor.exchange"
DRIVER = """
import pathlib, signal, sys, time
if {place!r}:
    lock = open(pathlib.Path({place!r}) / "run.lock", "w")
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
print("up", flush=True)
until = time.monotonic() + 60.0
while not signals and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(40 + len(signals))
"""


@pytest.fixture
def children() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(children: ExitStack, code: str, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    children.callback(process.wait, 10.0)
    children.callback(process.kill)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def actor(children: ExitStack, life_s: float) -> subprocess.Popen[bytes]:
    """A process titled as Ray titles an actor."""
    process = subprocess.Popen(["bash", "-c", f"exec -a {ACTOR} sleep {life_s}"])
    children.callback(process.wait, 10.0)
    children.callback(process.kill)
    while psutil.Process(process.pid).cmdline()[:1] != [ACTOR]:
        time.sleep(0.01)
    return process


def driver(children: ExitStack, place: Path | None = None) -> subprocess.Popen[str]:
    return start(children, DRIVER.format(place=str(place or "")), "/usr/local/bin/rayeval", "run", "x.yaml")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LOOK_FIRST_S", 0.05)
    monkeypatch.setattr(drain, "_LOOK_EVERY_S", 0.02)


def test_where_nothing_runs_the_container_ends_at_once() -> None:
    began = time.monotonic()
    assert drain.drain(psutil.Process(), 30.0) == []
    assert time.monotonic() - began < 5.0


def test_a_driver_gets_one_signal_and_is_waited_for(children: ExitStack) -> None:
    process = driver(children)
    assert drain.drain(psutil.Process(), 30.0) == []
    assert process.wait(5.0) == 41


@pytest.mark.parametrize(("state", "signals"), [("draining", 0), ("closing", 0), ("running", 1)])
def test_a_driver_that_drains_already_gets_none(children: ExitStack, tmp_path: Path, state: str, signals: int) -> None:
    (tmp_path / "status.json").write_bytes(orjson.dumps({"state": state}))
    process = driver(children, tmp_path)
    left = drain.drain(psutil.Process(), 30.0 if signals else 0.3)
    assert len(left) == 1 - signals
    process.send_signal(signal.SIGTERM)
    assert process.wait(5.0) == 41


def test_a_pod_with_actors_stays_until_their_driver_has_stopped_them(children: ExitStack) -> None:
    process = actor(children, 60.0)
    stopper = threading.Timer(0.5, process.kill)
    stopper.start()
    assert drain.drain(psutil.Process(), 30.0) == []
    assert process.poll() is not None


def test_what_does_not_end_is_told_and_left(children: ExitStack) -> None:
    process = actor(children, 60.0)
    assert drain.drain(psutil.Process(), 0.3) == [f"{process.pid} {ACTOR} 60.0"]
    assert process.poll() is None


def test_neighbours_are_none_of_its_business(children: ExitStack) -> None:
    other = start(children, "print('up', flush=True); import time; time.sleep(60)", "rayeval", "view")
    assert drain.drain(psutil.Process(), 5.0) == []
    assert other.poll() is None
