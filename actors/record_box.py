"""What an actor's process logs, kept until it travels to the driver with the next reply: actors may live where the run directory is not.

Invariants: bounded (``RECORDS`` texts of ``TEXT_CHARS``, the oldest dropped and counted); a text is scrubbed here, where the key is known;
nothing here waits, and nothing makes a reply due.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable

LogLine = tuple[float, str, str]
"""Unix time, level, text."""
RECORDS = 500
TEXT_CHARS = 4000
PER_REPLY = 100


class RecordBox(logging.Handler):
    """A logging handler with room for a few hundred records. ``emit`` may come from any thread."""

    def __init__(self, scrub: Callable[[str], str]) -> None:
        super().__init__(logging.INFO)
        self._scrub = scrub
        self._lines: deque[LogLine] = deque()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "ray" or record.name.startswith("ray."):
            return  # Ray's own words are in Ray's files
        try:
            text = self._scrub(text_of(record))
        except Exception:  # arguments that do not fit their format: a user's slip, which must not cost an episode
            text = f"{record.name}: a record that cannot be formatted ({self._format_of(record)})"
        if len(text) > TEXT_CHARS:
            text = text[: TEXT_CHARS // 2] + " [...] " + text[-TEXT_CHARS // 2 :]
        # the handler's own lock is held around emit
        if len(self._lines) >= RECORDS:
            self._lines.popleft()
            self._dropped += 1
        self._lines.append((record.created, record.levelname.lower(), text))

    def _format_of(self, record: logging.LogRecord) -> str:
        try:
            return self._scrub(str(record.msg))[:200]
        except Exception:  # a message whose own text fails
            return f"{record.filename}:{record.lineno}"

    def take(self) -> list[LogLine]:
        """At most ``PER_REPLY`` records, oldest first, and how many were dropped before them."""
        if not self._lines:
            return []
        assert self.lock is not None
        with self.lock:
            taken = [self._lines.popleft() for _ in range(min(PER_REPLY, len(self._lines)))]
            dropped, self._dropped = self._dropped, 0
        if dropped:
            taken.insert(0, (taken[0][0], "warning", f"{dropped} older records were dropped"))
        return taken


def text_of(record: logging.LogRecord) -> str:
    """``logger: message``, with the traceback below it."""
    text = f"{record.name}: {record.getMessage()}"
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
    return text
