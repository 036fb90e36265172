"""Stop signals of a driver."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rayeval.schemas import ExitCode

_PUT_BACK_EVERY_S = 0.005


@contextlib.contextmanager
def sigterm_passes() -> Iterator[None]:
    """Let SIGTERM do nothing, beneath Python too. Ray, as it shuts down, takes the handler of the C library away and leaves what ends a
    process, while Python goes on believing in its own: a signal in that second would end a run that is over, without its verdict.
    Only the main thread may set Python's handlers, and it is busy in the shutdown; so a thread sets the C library's, again and again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p

    def ignore() -> None:
        while not over.wait(_PUT_BACK_EVERY_S):
            set_handler(signal.SIGTERM, int(signal.SIG_IGN))

    thread = threading.Thread(target=ignore, name="sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


class StopSignals:
    """SIGINT and SIGTERM: the first one asks for a drain, the second one ends at once.

    Ray takes both over in ``ray.init``, so they are installed before it, and again by the loop after it.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._on_first: Callable[[signal.Signals], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, Any] = {}
        self.before_exit: Callable[[], None] = lambda: None
        """Called when a second signal ends the process at once."""

    def install(self) -> None:
        """Take the signals, unless this is not the main thread (then whoever runs the thread owns them)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        """Give the signals back."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            signal.signal(number, before)

    def listen(self, loop: asyncio.AbstractEventLoop, on_first: Callable[[signal.Signals], None]) -> None:
        """From now on the first signal calls ``on_first`` in the loop; one that came before calls it at once."""
        self._loop, self._on_first = loop, on_first
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._handle, number)
        if self.received is not None:
            loop.call_soon(on_first, self.received)

    def _handle(self, number: int, _frame: object = None) -> None:
        if self.received is not None:
            self.before_exit()
            os._exit(128 + number)
        self.received = signal.Signals(number)
        if self._loop is not None and self._on_first is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: so has the run, whose verdict stands
                self._loop.call_soon_threadsafe(self._on_first, self.received)

    @property
    def exit_code(self) -> ExitCode | None:
        """128 + the signal's number."""
        return None if self.received is None else ExitCode(128 + self.received)
