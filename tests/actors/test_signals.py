import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from actors.signals import StopSignals
from rayeval.cli.signals import verdict_first


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    """Installed, and taken back after the test."""
    made = StopSignals()
    made.install()
    yield made
    made.restore()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_told_in_the_loop(signals: StopSignals, number: signal.Signals) -> None:
    heard: list[signal.Signals] = []

    async def run() -> None:
        signals.listen(asyncio.get_running_loop(), heard.append)
        signal.raise_signal(number)
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert heard == [number] and signals.exit_code == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_after_the_loop_has_ended_is_no_error(signals: StopSignals, number: signal.Signals) -> None:
    heard: list[signal.Signals] = []

    async def run() -> None:
        signals.listen(asyncio.get_running_loop(), heard.append)

    asyncio.run(run())
    signals.install()  # the loop took its own handlers with it
    signal.raise_signal(number)
    assert heard == [] and signals.received == number


def test_a_signal_before_the_loop_is_told_once_there_is_one(signals: StopSignals) -> None:
    heard: list[signal.Signals] = []
    signal.raise_signal(signal.SIGTERM)

    async def run() -> None:
        signals.listen(asyncio.get_running_loop(), heard.append)
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_between_the_end_of_a_run_and_its_verdict_changes_neither(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with verdict_first():
        taken = StopSignals()
        taken.install()
        taken.restore()
        signal.raise_signal(number)  # else the process would end here, or an interrupt be raised
        told = True
    assert told and signal.getsignal(number) is before


def test_sigterm_passes_while_the_handler_is_taken_away_beneath_python() -> None:
    """As Ray's shutdown does; in a process of its own, for a failure ends it."""
    code = """
import ctypes, os, signal, time
from actors.signals import sigterm_passes
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
with sigterm_passes():
    ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)  # SIG_DFL
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.05)
print("heard", len(heard))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "heard 1\n"), done.stderr
