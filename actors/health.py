"""Signs of life, from a thread of the driver's own, so that a busy driver loop does not let actors lapse.

Every ``EVERY_S`` each watched actor is pinged; the ping renews its right to act and says how long ago its work loop ran. One ping to an
actor is open at most, so that silent actors do not make the others wait ever longer for their turn.
The thread writes plain values that the driver's loop reads; it changes nothing else. Closing rule: ``stop()`` ends it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from actors.handles import ActorHandle

EVERY_S = 5.0
SILENT_S = 30.0
"""No answer for this long, or a work loop this old: the actor is killed and fenced."""
SLOW_S = 5.0
"""A work loop this old gets no new jobs."""


@dataclass(slots=True)
class Vitals:
    """What is known of one actor. Times are ``time.monotonic()`` of the driver."""

    answered_at: float
    tick_age_s: float = 0.0

    def silence_s(self, now: float) -> float:
        """Seconds without an answer."""
        return now - self.answered_at


class HealthThread:
    """Pings every watched actor."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._watched: dict[str, tuple[ActorHandle, Vitals]] = {}
        self._asking: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="ping")

    def start(self) -> None:
        """Begin pinging."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; unanswered pings are left to their deadlines."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def watch(self, actor_id: str, handle: ActorHandle) -> Vitals:
        """Begin watching; -> the record that the thread keeps up to date."""
        vitals = Vitals(time.monotonic())
        with self._lock:
            self._watched[actor_id] = (handle, vitals)
        return vitals

    def forget(self, actor_id: str) -> None:
        """Stop pinging an actor: from now on nothing of this thread renews it."""
        with self._lock:
            self._watched.pop(actor_id, None)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            with self._lock:
                due = [actor_id for actor_id in self._watched if actor_id not in self._asking]
                self._asking.update(due)
            for actor_id in due:
                if self._stopped.is_set():
                    return
                self._pool.submit(self._ask, actor_id)

    def _ask(self, actor_id: str) -> None:
        with self._lock:
            handle, vitals = self._watched.get(actor_id, (None, None))
        try:
            if handle is None or vitals is None:
                return  # forgotten while its turn was waited for
            answer = handle.ping(self._every_s)
            if answer is not None:
                vitals.answered_at = time.monotonic()
                vitals.tick_age_s = answer.tick_age_s
        finally:
            with self._lock:
                self._asking.discard(actor_id)
