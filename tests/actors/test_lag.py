import asyncio
import time

from actors.lag import EVERY_S, LoopLag


def block(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_blocked_loop_is_late_by_the_time_it_was_blocked() -> None:
    lag = LoopLag()
    await asyncio.sleep(0)
    block(EVERY_S + 0.3)
    await asyncio.sleep(0.01)
    assert lag.take() >= 0.3
    lag.stop()


async def test_what_was_taken_is_told_once() -> None:
    lag = LoopLag()
    block(EVERY_S + 0.3)
    await asyncio.sleep(0.01)
    lag.take()
    assert lag.take() == 0.0
    lag.stop()


async def test_a_stopped_watch_measures_nothing() -> None:
    lag = LoopLag()
    lag.stop()
    block(EVERY_S + 0.1)
    await asyncio.sleep(0.01)
    assert lag.take() == 0.0
