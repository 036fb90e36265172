"""The right to act on an environment, which lapses by itself.

Invariants:
* An actor acts on the environment (reset, step, terminate) only while ``now < until`` on its own monotonic clock; every sign of life
  of the driver moves ``until`` to ``now + fence_s``. Nothing else does.
* Once lapsed it never becomes fresh again: the driver may already have given its slots to somebody else.
* The watch runs in a thread of its own, so that a blocked work loop does not keep a lapsed actor alive.
Closing rule: ``stop()`` ends the watch; after a lapse the process ends ``EXIT_AFTER_S`` later whatever the work loop does.
Before the watch begins and after it has been stopped nothing is held, and Ray ends the process of an actor some 3 s after its raylet.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from rayeval.exceptions import FencedError

EXIT_AFTER_S = 12.0
"""Time for the work loop to cancel and release after a lapse, in seconds."""
_WATCH_EVERY_S = 0.5
_LOOK_EVERY_S = 0.05
"""A parent that is gone is seen so soon by whoever acts: asking for it is a call of the kernel."""
_ORPHANED = "its parent process is gone"


class Freshness:
    """Monotonic permission with a watch thread."""

    def __init__(self, fence_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fence_s = fence_s
        self._clock = clock
        self._until = clock() + fence_s
        self._lapsed: str | None = None
        self._stopped = threading.Event()
        self._parent = os.getppid()
        self._watch_parent = False
        self._look_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def lapsed(self) -> str | None:
        """Why the right is gone; None while it holds."""
        if self._lapsed is None and self._clock() >= self._until:
            self._lapsed = f"no sign of the driver for {self._fence_s:g} s"
        return self._lapsed

    def renew(self) -> None:
        """A sign of life of the driver. Without effect once lapsed."""
        if self.lapsed is None:
            self._until = self._clock() + self._fence_s

    def revoke(self, reason: str) -> None:
        """End the right at once."""
        if self._lapsed is None:
            self._lapsed = reason

    def check(self) -> None:
        """Raises FencedError once the right has lapsed. Called right before each request that acts on the environment."""
        if self._watch_parent and (now := self._clock()) >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            if os.getppid() != self._parent and self._lapsed is None:
                self._lapsed = _ORPHANED
        reason = self.lapsed
        if reason is not None:
            raise FencedError(f"this actor may no longer act: {reason}")

    def watch(self, on_lapse: Callable[[str], None], *, exit_process: bool, watch_parent: bool) -> None:
        """Start the watch. ``on_lapse`` is called once, in the watch thread; with ``exit_process`` the process then ends.

        With ``watch_parent`` the right ends with the parent process (the raylet), also between two looks of the watch.
        """
        self._watch_parent = watch_parent

        def loop() -> None:
            while not self._stopped.wait(_WATCH_EVERY_S):
                if watch_parent and os.getppid() != self._parent and self._lapsed is None:
                    self._lapsed = _ORPHANED
                reason = self.lapsed
                if reason is not None:
                    on_lapse(reason)
                    if exit_process and not self._stopped.wait(EXIT_AFTER_S):
                        os._exit(1)
                    return

        self._thread = threading.Thread(target=loop, name="freshness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
