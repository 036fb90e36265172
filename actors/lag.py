"""How late an asyncio loop runs what is due: the sign that something in it takes too long.

Closing rule: ``stop`` ends the timer; nothing else holds the loop.
"""

from __future__ import annotations

import asyncio

EVERY_S = 0.1


class LoopLag:
    """Watches the running loop, with a timer each ``EVERY_S``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst_s = 0.0
        self._timer = self._set()

    def take(self) -> float:
        """Seconds that the latest timer since the last ``take`` was late."""
        worst, self._worst_s = self._worst_s, 0.0
        return worst

    def stop(self) -> None:
        """End the watch."""
        self._timer.cancel()

    def _set(self) -> asyncio.TimerHandle:
        due = self._loop.time() + EVERY_S
        return self._loop.call_at(due, self._fire, due)

    def _fire(self, due: float) -> None:
        self._worst_s = max(self._worst_s, self._loop.time() - due)
        self._timer = self._set()
