"""What a command does with the signals that stop it, outside the time in which the engine takes them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rayeval.schemas import ExitCode


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block by an exception, so that what was taken is given back (the terminal, a Ray)."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(ExitCode.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def verdict_first() -> Iterator[None]:
    """A stop signal between the end of a run and its verdict changes neither: the run has taken the signals while it lived, and what it
    gives them back to lets them pass."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
