"""A model server and its callers on a clock that jumps: an hour of calls in a second."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.adaptive import episodes_wanted
from rayeval.models.limiter import AdaptiveLimiter

T = TypeVar("T")


class _Jump(selectors.DefaultSelector):
    """Waits for nothing: the time it should have waited is what the clock moves on by."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits and no timer is set")
        self.now += max(0.0, timeout)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once. Nothing in it may wait for the outside."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def simulate(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on jumping time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(make())


@dataclass
class Server:
    """``slots`` calls at once; one more is refused, or queues."""

    slots: int
    latency: Callable[[], float]
    refuses: bool
    requests: int = 0
    refused: int = 0
    answered: int = 0
    busy: int = 0
    queue: deque[asyncio.Future[None]] = field(default_factory=deque)

    async def call(self) -> str:
        self.requests += 1
        if self.busy >= self.slots:
            if self.refuses:
                self.refused += 1
                await asyncio.sleep(0.001)
                return "status_429"
            turn = asyncio.get_running_loop().create_future()
            self.queue.append(turn)
            await turn  # the slot comes with it
        else:
            self.busy += 1
        await asyncio.sleep(self.latency())
        self.answered += 1
        if self.queue and self.busy <= self.slots:
            self.queue.popleft().set_result(None)
        else:
            self.busy -= 1
        return "answered"


def fixed(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def lognormal(mean: float, sigma: float, seed: int) -> Callable[[], float]:
    rng = random.Random(seed)
    mu = math.log(mean) - sigma**2 / 2
    return lambda: rng.lognormvariate(mu, sigma)


@dataclass
class Outcome:
    """What one run of callers came to."""

    answers_per_s: float
    refused_share: float
    limits: list[int]
    """Each second."""


async def drive(
    server: Server,
    limiter: AdaptiveLimiter | None,
    *,
    seconds: float,
    callers: int | None = None,
    after: float = 0.0,
    events: tuple[tuple[float, Callable[[], None]], ...] = (),
    seed: int = 1,
) -> Outcome:
    """Episodes that call, rest 5 ms, call again, and wait as the model client does after a refusal. ``callers``: how many; None: as many
    as ``actors.adaptive`` would keep in flight. Answers are counted from ``after`` on."""
    loop = asyncio.get_running_loop()
    rng = random.Random(seed)
    started = loop.time()
    tasks: list[asyncio.Task[None]] = []
    surplus = 0

    async def episode() -> None:
        nonlocal surplus
        refusals = 0
        while True:
            if limiter is not None:
                await limiter.acquire()
            sent = loop.time()
            outcome = await server.call()
            if limiter is not None:
                limiter.release(outcome, loop.time() - sent)
            if outcome == "answered":
                refusals = 0
                if surplus:
                    surplus -= 1
                    return
                await asyncio.sleep(0.005)
            else:
                refusals += 1
                await asyncio.sleep(min(30.0, 0.5 * 2.0 ** (refusals - 1)) * rng.uniform(0.5, 1.0))

    limits: list[int] = []
    counted = 0
    pending = sorted(events, key=lambda e: e[0])
    while loop.time() - started < seconds:
        tasks = [t for t in tasks if not t.done()]
        if callers is not None:
            wanted = callers
        else:
            assert limiter is not None
            wanted = episodes_wanted([limiter.load()], len(tasks) - surplus)
        more = wanted - (len(tasks) - surplus)
        if more < 0:
            surplus -= more
        else:
            revived = min(more, surplus)
            surplus -= revived
            tasks += [asyncio.create_task(episode()) for _ in range(more - revived)]
        if limiter is not None:
            limits.append(limiter.load().limit)
        await asyncio.sleep(1.0)
        if loop.time() - started <= after:
            counted = server.answered
        while pending and loop.time() - started >= pending[0][0]:
            pending.pop(0)[1]()
    rate = (server.answered - counted) / (loop.time() - started - after)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return Outcome(rate, server.refused / max(1, server.requests), limits)
