"""When a model call is tried again, and how long it waits first."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504})

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Backoff:
    """``base_s`` doubled with each attempt up to ``cap_s``; ``Retry-After`` is a lower bound with its own cap."""

    base_s: float = 0.5
    cap_s: float = 30.0
    retry_after_cap_s: float = 120.0

    def __post_init__(self) -> None:
        if self.base_s < 0 or self.cap_s < self.base_s or self.retry_after_cap_s < 0:
            raise ValueError(f"{self}: give 0 <= base_s <= cap_s and retry_after_cap_s >= 0")

    def wait_s(self, thrown_away: int, retry_after_s: float | None, rng: random.Random) -> float:
        """Seconds to wait after attempt ``thrown_away`` (from 1), jittered to 50-100 %: many fail at once.

        A ``Retry-After`` is never undercut; the jitter comes on top of it.
        """
        # Beyond 2**32 every delay is the cap.
        own = min(self.cap_s, self.base_s * 2.0 ** min(thrown_away - 1, 32))
        jittered = own * rng.uniform(0.5, 1.0)
        if retry_after_s is None:
            return jittered
        asked = min(retry_after_s, self.retry_after_cap_s)
        return max(jittered, asked + min(jittered, 1.0) * 0.25)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that ``Retry-After`` asks for: a number, or a date against ``now`` (wall clock). None otherwise."""
    given = headers.get("Retry-After")
    if given is None:
        return None
    given = given.strip()
    if _SECONDS.fullmatch(given):
        return float(given)
    try:
        moment = parsedate_to_datetime(given)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - (time.time() if now is None else now))
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


class AttemptObserver(Protocol):
    """Around each HTTP attempt: a limiter, a circuit. For each ``before`` that returned, or was spared by ``ready``, ``after`` comes
    once."""

    def route(self, endpoint: str) -> str:
        """The endpoint to use for the next attempt: the one that was asked for, or another one that answers."""
        ...

    def ready(self, endpoint: str) -> bool:
        """Whether ``before`` would do nothing but return: then it is not called, nor a deadline set up around it."""
        ...

    async def before(self, endpoint: str) -> None:
        """Wait for leave to send. Held to the episode's deadline; an exception ends the call with it."""
        ...

    def after(self, endpoint: str, outcome: str, retry_after_s: float | None) -> None:
        """``answered`` (any 2xx, usable or not), ``cancelled``, ``too_large``, ``connect``, ``timeout``,
        ``disconnected`` or ``status_<n>``; ``retry_after_s`` as the server asked. Not awaited, must not raise."""
        ...
