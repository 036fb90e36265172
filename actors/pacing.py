"""How fast an actor asks, and how busy it is: small meters of its work loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable


class ResetPacer:
    """Keeps a rush of resets off a server: while ``burst`` of them are unanswered, a further one starts at the next answer, or when its
    turn at ``rate`` a second has come. A server that answers as fast as it is asked is not held back."""

    def __init__(self, rate: float, burst: int = 16) -> None:
        self._interval = 1.0 / rate
        self._burst = burst
        self._unanswered: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Event]] = {}
        self._next: dict[str, float] = {}

    async def wait(self, server: str) -> None:
        """Wait until this server may get one more reset, which counts as unanswered until ``answered``."""
        if self._unanswered[server] >= self._burst:
            now = time.monotonic()
            self._next[server] = at = max(self._next.get(server, 0.0), now) + self._interval
            turn = asyncio.Event()
            self._waiting.setdefault(server, deque()).append(turn)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(at - now):
                        await turn.wait()
            finally:
                turn.set()
        self._unanswered[server] += 1

    def answered(self, server: str) -> None:
        """A reset was answered, or nobody waits for it any more."""
        self._unanswered[server] -= 1
        waiting = self._waiting.get(server)
        while waiting:
            turn = waiting.popleft()
            if not turn.is_set():  # else its turn had come by the clock
                turn.set()
                return
        self._next.pop(server, None)


class CpuMeter:
    """CPU of the thread that asks, as a share of a core, over at least ``every_s``."""

    def __init__(
        self, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._every_s, self._clock, self._cpu = every_s, clock, cpu
        self._mark: tuple[float, float] | None = None
        self._share: float | None = None

    def share(self) -> float | None:
        """The newest figure; None before the first."""
        now = self._clock()
        if self._mark is None:
            self._mark = (now, self._cpu())
        elif now - self._mark[0] >= self._every_s:
            used = self._cpu()
            self._share = (used - self._mark[1]) / (now - self._mark[0])
            self._mark = (now, used)
        return self._share
