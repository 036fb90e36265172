import asyncio
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.models.gate import EndpointGate
from rayeval.models.limiter import AdaptiveLimiter
from tests.models.simulated import Outcome, Server, drive, fixed, lognormal, simulate

MINUTES = 120.0


@cache
def best_fixed(make: Callable[[], Server], change: tuple[float, int] | None = None) -> float:
    """Answers a second of the best fixed number of callers."""
    return max(played(make, change, callers).answers_per_s for callers in (24, 28, 32, 36, 48))


def played(make: Callable[[], Server], change: tuple[float, int] | None = None, callers: int | None = None) -> Outcome:
    """``change``: (when, slots from then on)."""

    async def run() -> Outcome:
        server = make()
        limiter = AdaptiveLimiter(clock=asyncio.get_running_loop().time) if callers is None else None
        events = () if change is None else ((change[0], lambda: setattr(server, "slots", change[1])),)
        return await drive(server, limiter, seconds=MINUTES, callers=callers, events=events)

    return simulate(run)


def refusing() -> Server:
    return Server(32, fixed(0.2), refuses=True)


def refusing_unevenly() -> Server:
    return Server(32, lognormal(0.5, 1.0, 7), refuses=True)


def queueing() -> Server:
    return Server(32, fixed(0.2), refuses=False)


def queueing_unevenly() -> Server:
    return Server(32, lognormal(0.5, 1.0, 7), refuses=False)


@pytest.mark.parametrize("make", [refusing, refusing_unevenly, queueing, queueing_unevenly])
def test_throughput_is_near_the_best_fixed_setting_and_few_calls_are_refused(make: Callable[[], Server]) -> None:
    outcome = played(make)
    assert outcome.answers_per_s >= 0.95 * best_fixed(make)
    assert outcome.refused_share < 0.015


@pytest.mark.parametrize("make", [refusing, refusing_unevenly])
def test_the_limit_hovers_just_under_what_was_refused(make: Callable[[], Server]) -> None:
    limits = sorted(played(make).limits[10:])
    assert limits[len(limits) // 20] >= 29
    assert limits[-1] <= 34


@pytest.mark.parametrize("make", [queueing, queueing_unevenly])
def test_a_queue_is_not_filled_without_end(make: Callable[[], Server]) -> None:
    limits = sorted(played(make).limits)
    assert limits[len(limits) // 2] <= 3 * 32
    assert limits[-1] <= 5 * 32


@pytest.mark.parametrize("make", [refusing, refusing_unevenly, queueing])
def test_half_the_server_going_away_is_noticed(make: Callable[[], Server]) -> None:
    outcome = played(make, (60.0, 16))
    assert outcome.answers_per_s >= 0.95 * best_fixed(make, (60.0, 16))
    assert outcome.refused_share < 0.02
    if make is not queueing:
        assert max(outcome.limits[70:]) <= 18


@pytest.mark.parametrize("make", [refusing, refusing_unevenly])
def test_a_server_that_grows_is_found_out(make: Callable[[], Server]) -> None:
    outcome = played(make, (60.0, 64))
    assert max(outcome.limits[100:]) >= 58
    assert outcome.refused_share < 0.02


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_a_small_server_is_filled(slots: int) -> None:
    outcome = played(lambda: Server(slots, fixed(0.2), refuses=True))
    assert outcome.answers_per_s >= 0.9 * slots / 0.205
    assert outcome.refused_share < 0.05


def test_without_demand_the_limit_stays() -> None:
    outcome = played(lambda: Server(1000, fixed(0.2), refuses=True), callers=None)
    assert max(outcome.limits) > 500  # callers follow the limit: it grows

    async def run() -> Outcome:
        return await drive(
            Server(1000, fixed(0.2), refuses=True), AdaptiveLimiter(clock=asyncio.get_running_loop().time), seconds=60.0, callers=20
        )

    assert max(simulate(run).limits) <= 21


@pytest.mark.parametrize(("one_in", "least", "usual"), [(100, 4, 24), (20, 4, 4)])
def test_refusals_by_chance_leave_a_working_limit(one_in: int, least: int, usual: int) -> None:
    async def run() -> Outcome:
        limiter = AdaptiveLimiter(clock=asyncio.get_running_loop().time)
        server = Server(1000, fixed(0.2), refuses=True)
        calls = 0
        honest = server.call

        async def call() -> str:
            nonlocal calls
            calls += 1
            if calls % one_in == 0:
                await asyncio.sleep(0.001)
                return "status_429"
            return await honest()

        server.call = call  # type: ignore[method-assign]
        return await drive(server, limiter, seconds=MINUTES)

    limits = sorted(simulate(run).limits[10:])
    assert limits[0] >= least
    assert limits[len(limits) // 2] >= usual


# ---- the turnstile ----------------------------------------------------------------------------------------------------------------------


async def test_waiters_come_in_the_order_in_which_they_asked() -> None:
    limiter = AdaptiveLimiter(start=1, most=1)
    await limiter.acquire()
    came: list[int] = []

    async def call(n: int) -> None:
        await limiter.acquire()
        came.append(n)
        limiter.release("answered", 0.1)

    tasks = [asyncio.create_task(call(n)) for n in range(5)]
    await asyncio.sleep(0)
    assert limiter.load() == (1, 1, 5)
    limiter.release("answered", 0.1)
    await asyncio.wait_for(asyncio.gather(*tasks), 10.0)
    assert came == [0, 1, 2, 3, 4]
    assert limiter.load() == (1, 0, 0)


async def test_a_waiter_cancelled_with_its_place_in_hand_gives_it_on() -> None:
    limiter = AdaptiveLimiter(start=1, most=1)
    await limiter.acquire()
    first, second = (asyncio.create_task(limiter.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    limiter.release("answered", 0.1)  # the place is the first one's, who has not run yet
    first.cancel()
    await asyncio.wait_for(second, 10.0)
    assert first.cancelled()
    assert limiter.load() == (1, 1, 0)


def test_a_start_beyond_the_most_is_refused() -> None:
    with pytest.raises(ValueError, match="start = 9, most = 8"):
        AdaptiveLimiter(start=9, most=8)


actions = st.lists(
    st.tuples(
        st.sampled_from(["ask", "answered", "status_429", "status_503", "timeout", "cancelled", "cancel", "wait"]), st.integers(0, 30)
    ),
    max_size=200,
)


@given(actions, st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_places_are_neither_lost_nor_made_up(steps: list[tuple[str, int]], start: int) -> None:
    async def run() -> None:
        now = 0.0
        limiter = AdaptiveLimiter(start=start, most=16, clock=lambda: now)
        asking: list[asyncio.Task[None]] = []
        calling = 0

        async def settle() -> None:
            nonlocal calling
            for _ in range(3):
                await asyncio.sleep(0)
            for task in [t for t in asking if t.done()]:
                asking.remove(task)
                calling += not task.cancelled()

        for step, n in steps:
            before = limiter.load()
            match step:
                case "ask":
                    asking.append(asyncio.create_task(limiter.acquire()))
                case "cancel" if asking:
                    asking[n % len(asking)].cancel()
                    if n % 2 and calling:  # a place may come in the very moment
                        calling -= 1
                        limiter.release("answered", 0.1)
                case "wait":
                    now += n
                case _ if step not in ("cancel",) and calling:
                    calling -= 1
                    limiter.release(step, n / 10)
            await settle()
            load = limiter.load()
            assert load.in_flight == calling
            assert load.waiting == len(asking)
            assert 1 <= load.limit <= 16
            assert load.in_flight <= max(load.limit, before.in_flight)
            assert not load.waiting or load.in_flight >= load.limit
        for task in asking:
            task.cancel()
        await settle()
        for _ in range(calling):
            limiter.release("answered", 0.1)
        assert limiter.load()[1:] == (0, 0)

    asyncio.run(run())


# ---- in the gate ------------------------------------------------------------------------------------------------------------------------

MODEL = "http://model.invalid/v1"


async def never(endpoint: str) -> bool:
    await asyncio.sleep(60.0)
    return False


async def test_a_gate_lets_as_many_calls_leave_as_the_limiter_says() -> None:
    gate = EndpointGate((MODEL,), never, {MODEL: AdaptiveLimiter(start=2)})
    assert not gate.ready(MODEL)

    async def call() -> None:
        await gate.before(MODEL)
        await asyncio.sleep(0.01)
        assert gate.loads()[MODEL][1] <= gate.loads()[MODEL][0]
        gate.after(MODEL, "answered", None)

    await asyncio.wait_for(asyncio.gather(*(call() for _ in range(20))), 10.0)
    limit, in_flight, waiting = gate.loads()[MODEL]
    assert limit > 2
    assert (in_flight, waiting) == (0, 0)


async def test_a_call_whose_endpoint_closes_while_it_waits_for_its_turn_gives_the_turn_back() -> None:
    gate = EndpointGate((MODEL,), never, {MODEL: AdaptiveLimiter(start=1, most=1)})
    await gate.before(MODEL)
    waiting = asyncio.create_task(gate.before(MODEL))
    await asyncio.sleep(0)
    gate.after(MODEL, "status_429", 30.0)  # a pause for everybody
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert gate.loads()[MODEL] == (1, 0, 0)
    waiting.cancel()
    await gate.aclose()


async def test_a_deadline_that_ends_the_wait_for_leave_keeps_no_place() -> None:
    gate = EndpointGate((MODEL,), never, {MODEL: AdaptiveLimiter(start=1, most=1)})
    await gate.before(MODEL)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gate.before(MODEL)
    gate.after(MODEL, "answered", None)
    assert gate.loads()[MODEL] == (1, 0, 0)


def test_a_gate_without_limiters_says_nothing_of_loads() -> None:
    assert EndpointGate((MODEL,), never).loads() == {}
    assert EndpointGate((MODEL,), never).ready(MODEL)
