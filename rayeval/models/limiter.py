"""How many calls a model endpoint bears at once, found out while it works: ``execution.concurrency: auto``.

Two kinds of server, two signals. One refuses what is too much (429, or 503): the level it refused is remembered, the limit hovers just
under it, and it is tried again upward seldom, less often each time the try is refused. The other queues what is too much: there more calls
in flight bring longer waits and no more answers a second, so a step up is kept only when answers a second grow with it, and a step down is
tried when calls take twice as long as they once did. Both begin alike: double each round trip until something says stop.

The two signals of a queue are told apart from long prompts, which make a server slower at any limit: a step is judged by answers a second
right before and right after it, never by a figure from long ago.

Invariants: one event loop; ``in_flight`` passes ``limit`` only after a cut, until calls end; a place is handed from ``release`` to the
first waiter in the same synchronous step, and a waiter cancelled after that hands it on.
Closing rule: there is nothing to close; nothing here owns a task or a timer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

START = 8
REFUSED = frozenset({"status_429", "status_503"})

_CUT = 0.9
_DEEP_CUT = 0.7
"""When a quarter or more of a round trip's calls were refused."""
_DEEP_SHARE = 0.25
_TOLERATED = 0.02
"""Share of calls whose refusal, without a step that explains it, is put down to chance."""
_TOLERATED_OF = 100
_FLOOR = 4
"""Not cut below it while most calls are answered: refusals that a small limit does not end are not about the limit."""
_INFLATED = 2.0
_STEP_UP = 1.25
_STEP_UP_MOST = 2.0
_STEP_DOWN = 0.85
_STILL_GROWS = 1.3
"""Answers a second of one doubling over the last: below it, and with calls twice as slow, a queue grows and nothing else."""
_WORTH = 0.3
"""Share of a step up that must come back as answers a second."""
_DOWN_LOSS = 0.03
_MIN_WAIT_S = 2.0
_MAX_WAIT_S = 30.0
_REMEMBERED_WINDOWS = 20
_DOUBLING_SAMPLES = 32
_WINDOW_SAMPLES = 200
_WINDOW_ROUNDS = 4.0


class Load(NamedTuple):
    """What a limiter says of itself."""

    limit: int
    in_flight: int
    waiting: int


@dataclass(slots=True)
class _Window:
    """Calls that ended since ``since``, which is after the last change of the limit has settled."""

    since: float
    answers: int = 0
    log_latency: float = 0.0
    refused: int = 0
    starved: int = 0
    """Ends at which neither the limit was reached nor anybody waited."""

    @property
    def typical_s(self) -> float:
        return math.exp(self.log_latency / self.answers) if self.answers else 0.0

    @property
    def mostly_starved(self) -> bool:
        return 2 * self.starved > self.answers


class _Trial(NamedTuple):
    """A step whose worth is being measured."""

    before: int
    answers_per_s: float


class AdaptiveLimiter:
    """A ``gate.Limiter`` whose limit moves. ``start``: the first limit; ``most``: never above it."""

    def __init__(self, start: int = START, most: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        if not 1 <= start <= most:
            raise ValueError(f"start = {start}, most = {most}: give 1 <= start <= most")
        self._clock = clock
        self._most = most
        self._limit = start
        self._in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._waiting = 0
        now = clock()
        self._doubling = True
        self._ceiling: int | None = None
        """Calls that were in flight when one more was refused."""
        self._probe_step = 0
        """How far the last upward try went at once; 0 while none runs."""
        self._wait_s = _MIN_WAIT_S
        self._next_try = now
        self._cut_at = now - 1.0
        self._trial: _Trial | None = None
        self._stride = _STEP_UP
        self._try_down = True
        """Whether the next step may be one down: not right after one that cost answers."""
        self._rate = 0.0
        self._mean_s = 0.0
        self._window = _Window(now)
        self._typical: deque[float] = deque(maxlen=_REMEMBERED_WINDOWS)

    # ---- gate.Limiter -------------------------------------------------------------------------------------------------------------

    async def acquire(self) -> None:
        if self._in_flight < self._limit and not self._waiting:
            self._in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._in_flight -= 1
                self._hand_out()
            else:
                turn.cancel()
                self._waiting -= 1
            raise

    def release(self, outcome: str, latency_s: float) -> None:
        now = self._clock()
        if outcome in REFUSED:
            self._on_refused(now, latency_s)
        elif outcome == "answered":
            self._on_answer(now, latency_s)
        self._in_flight -= 1
        self._hand_out()

    def load(self) -> Load:
        """Limit, calls in flight, calls that wait for leave."""
        return Load(self._limit, self._in_flight, self._waiting)

    def _hand_out(self) -> None:
        while self._waiters and self._in_flight < self._limit:
            turn = self._waiters.popleft()
            if not turn.done():
                self._waiting -= 1
                self._in_flight += 1
                turn.set_result(None)

    # ---- refusals -----------------------------------------------------------------------------------------------------------------

    def _on_refused(self, now: float, latency_s: float) -> None:
        self._window.refused += 1
        if now - latency_s < self._cut_at:
            return  # sent before the last cut: the same news
        level = max(1, min(self._in_flight - 1, self._limit))
        if self._doubling or self._probe_step:
            # the excess is the step itself: back under the level that was borne
            refused_again = self._probe_step > 0 and self._ceiling is not None and level <= self._ceiling
            self._wait_s = min(_MAX_WAIT_S, self._wait_s * 2.0) if refused_again else _MIN_WAIT_S
            self._ceiling = level
            limit = _under(level)
        else:
            refused = self._window.refused
            calls = refused + self._window.answers
            if refused <= _TOLERATED * max(calls, _TOLERATED_OF):
                self._next_try = max(self._next_try, now + self._wait_s)
                return
            deep = refused >= _DEEP_SHARE * calls
            limit = max(int(self._limit * (_DEEP_CUT if deep else _CUT)), 1 if deep else min(self._limit, _FLOOR))
            self._ceiling = limit + 1
            self._wait_s = _MIN_WAIT_S
        self._doubling = False
        self._probe_step = 0
        self._trial = None
        self._cut_at = now
        self._next_try = now + self._wait_s
        self._set(limit, now)

    # ---- answers ------------------------------------------------------------------------------------------------------------------

    def _on_answer(self, now: float, latency_s: float) -> None:
        latency_s = max(latency_s, 1e-6)
        weight = 2.0 / (1.0 + max(16.0, self._limit))
        self._mean_s = latency_s if not self._mean_s else self._mean_s + weight * (latency_s - self._mean_s)
        window = self._window
        if now < window.since:
            return  # sent under the limit before
        full = self._in_flight >= self._limit or self._waiting > 0
        window.answers += 1
        window.log_latency += math.log(latency_s)
        window.starved += not full
        if self._doubling:
            self._double(now, full)
        elif self._ceiling is not None:
            self._hover(now)
        else:
            self._climb(now)

    def _double(self, now: float, full: bool) -> None:
        """One more for each answer: twice as many each round trip."""
        window = self._window
        if window.answers >= max(_DOUBLING_SAMPLES, self._limit // 2) and now > window.since:
            rate, before = window.answers / (now - window.since), self._rate
            slow = bool(self._typical) and window.typical_s > _INFLATED * min(self._typical)
            stands = before > 0.0 and rate < _STILL_GROWS * before and not window.mostly_starved
            self._typical.append(window.typical_s)
            self._rate = rate
            self._window = _Window(now)
            if slow and stands:
                self._doubling = False
                self._next_try = now + self._wait_s
                # half was enough, as far as one can tell; waiting calls cost a server nothing, idle slots do
                self._set(math.ceil(self._limit / 2 * _STEP_UP), now)
                return
        if full and self._limit < self._most:
            self._limit += 1

    def _hover(self, now: float) -> None:
        """Just under what was refused; a try upward when its time has come, in growing steps while they are borne."""
        window = self._window
        assert self._ceiling is not None
        if self._probe_step and (window.answers < self._limit or now - window.since < 2.0 * self._mean_s):
            return
        if not self._probe_step and now < self._next_try:
            if window.answers >= max(_WINDOW_SAMPLES, _WINDOW_ROUNDS * self._limit):
                self._window = _Window(now)  # what was refused long ago says nothing of now
            return
        if window.mostly_starved:
            self._window = _Window(now)
            return  # the limit is not what bounds the calls
        if self._limit > _STEP_UP * self._ceiling:
            self._ceiling, self._probe_step = None, 0  # the server has grown
            self._typical.clear()
        else:
            self._probe_step = min(max(1, 2 * self._probe_step), max(1, self._limit // 4))
            self._limit = min(self._most, self._limit + self._probe_step)
        self._window = _Window(now)

    def _climb(self, now: float) -> None:
        """No refusal is known: judge steps by answers a second."""
        window = self._window
        elapsed = now - window.since
        if window.answers < max(_WINDOW_SAMPLES, _WINDOW_ROUNDS * self._limit) or elapsed < _WINDOW_ROUNDS * self._mean_s:
            return
        rate = window.answers / elapsed
        self._typical.append(window.typical_s)
        trial, self._trial = self._trial, None
        if window.mostly_starved:
            self._window = _Window(now)
            return
        if trial is not None:
            step = self._limit / trial.before
            gain = rate / trial.answers_per_s
            kept = gain >= 1.0 + _WORTH * (step - 1.0) if step > 1.0 else gain >= 1.0 - _DOWN_LOSS
            self._try_down = kept or step > 1.0
            if not kept:
                self._stride = _STEP_UP
                self._wait_s = min(_MAX_WAIT_S, self._wait_s * 2.0)
                self._next_try = now + self._wait_s
                self._set(trial.before, now)
                return
            if step > 1.0:
                self._stride = min(_STEP_UP_MOST, self._stride * _STEP_UP)
            self._wait_s, self._next_try = _MIN_WAIT_S, now
        if now < self._next_try:
            self._window = _Window(now)
            return
        inflated = self._try_down and window.typical_s > _INFLATED * min(self._typical)
        limit = int(self._limit * _STEP_DOWN) if inflated else math.ceil(self._limit * self._stride)
        self._trial = _Trial(self._limit, rate)
        self._set(limit, now)

    def _set(self, limit: int, now: float) -> None:
        """A new limit; what is measured begins once calls sent under the old one have ended."""
        self._limit = max(1, min(limit, self._most))
        self._window = _Window(now + self._mean_s)


def _under(level: int) -> int:
    """Where to hover: 3 % below."""
    return max(1, level - round(0.03 * level))
