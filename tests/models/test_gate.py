import asyncio
from collections.abc import AsyncIterator

import pytest

from rayeval.exceptions import ConnectFailedError
from rayeval.models.gate import GATEWAY_STRIKES, PROBE_EVERY_S, PROBE_TIMEOUT_S, SILENT_PROBES, EndpointGate, http_probe
from rayeval.transport import FakeTransport, HttpResponse
from tests.waiting import until

A, B = "http://a/v1", "http://b/v1"
HANG_S = 10.0


class Endpoints:
    """What a probe finds."""

    def __init__(self) -> None:
        self.alive = {A: True, B: True}
        self.asked: list[str] = []

    async def probe(self, endpoint: str) -> bool:
        self.asked.append(endpoint)
        if not self.alive[endpoint]:
            raise ConnectFailedError("nothing listens")
        return True


@pytest.fixture
def endpoints() -> Endpoints:
    return Endpoints()


@pytest.fixture
async def gate(endpoints: Endpoints) -> AsyncIterator[EndpointGate]:
    gate = EndpointGate((A, B), endpoints.probe)
    yield gate
    await gate.aclose()


async def test_a_failed_connection_opens_the_circuit_and_calls_go_to_the_other(gate: EndpointGate, endpoints: Endpoints) -> None:
    endpoints.alive[A] = False
    gate.after(A, "connect", None)
    assert list(gate.open_circuits()) == [A]
    assert gate.route(A) == B and gate.route(B) == B


async def test_while_all_are_out_a_call_waits_and_goes_on_when_a_probe_is_answered(gate: EndpointGate, endpoints: Endpoints) -> None:
    endpoints.alive = {A: False, B: False}
    gate.after(A, "connect", None)
    gate.after(B, "connect", None)
    waiting = asyncio.create_task(gate.before(gate.route(A)))
    await asyncio.sleep(PROBE_EVERY_S / 4)
    assert not waiting.done() and gate.route(A) == A
    endpoints.alive[A] = True
    await asyncio.wait_for(waiting, HANG_S)
    assert list(gate.open_circuits()) == [B]


async def test_a_cut_connection_alone_opens_nothing(gate: EndpointGate, endpoints: Endpoints) -> None:
    gate.after(A, "disconnected", None)
    await asyncio.sleep(0.05)
    assert endpoints.asked == [A] and not gate.open_circuits()


async def test_a_cut_connection_to_a_dead_server_opens_its_circuit(gate: EndpointGate, endpoints: Endpoints) -> None:
    endpoints.alive[A] = False
    gate.after(A, "disconnected", None)
    await asyncio.sleep(0.05)
    assert list(gate.open_circuits()) == [A]


async def test_gateway_errors_open_the_circuit_only_in_a_row(gate: EndpointGate, endpoints: Endpoints) -> None:
    endpoints.alive[A] = False
    for _ in range(GATEWAY_STRIKES - 1):
        gate.after(A, "status_502", None)
    gate.after(A, "answered", None)
    for _ in range(GATEWAY_STRIKES - 1):
        gate.after(A, "status_503", None)
    assert not gate.open_circuits()
    gate.after(A, "status_504", None)
    assert list(gate.open_circuits()) == [A]


async def test_a_long_retry_after_holds_every_call_and_a_short_one_only_its_own(gate: EndpointGate) -> None:
    gate.after(A, "status_429", 0.5)
    await asyncio.wait_for(gate.before(A), HANG_S)
    assert gate.pauses() == {}
    gate.after(A, "status_429", 30.0)
    waiting = asyncio.create_task(gate.before(A))
    await asyncio.sleep(0.05)
    assert not waiting.done() and 29.0 < gate.pauses()[A] <= 30.0
    await asyncio.wait_for(gate.before(B), HANG_S)
    waiting.cancel()


async def test_a_pause_told_by_another_actor_counts_and_never_shortens(gate: EndpointGate) -> None:
    gate.pause(A, 20.0)
    gate.pause(A, 5.0)
    assert gate.pauses()[A] > 19.0
    assert not gate.ready(A) and gate.ready(B)


@pytest.fixture
async def quick(endpoints: Endpoints) -> AsyncIterator[EndpointGate]:
    """A gate whose probes follow each other at once."""
    gate = EndpointGate((A, B), endpoints.probe, probe_every_s=0.01)
    yield gate
    await gate.aclose()


async def test_a_server_that_answers_neither_a_call_nor_probes_is_out_until_one_is_answered(
    quick: EndpointGate, endpoints: Endpoints
) -> None:
    endpoints.alive[A] = False
    quick.after(A, "timeout", None)
    await until(lambda: list(quick.open_circuits()) == [A])
    assert len(endpoints.asked) == SILENT_PROBES and quick.route(A) == B
    waiting = asyncio.create_task(quick.before(A))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    endpoints.alive[A] = True
    await asyncio.wait_for(waiting, HANG_S)
    assert not quick.open_circuits()


async def test_the_calls_after_one_that_timed_out_wait_for_the_probe_and_no_longer() -> None:
    probed = asyncio.Event()

    async def probe(endpoint: str) -> bool:
        await probed.wait()
        return True

    gate = EndpointGate((A,), probe)
    gate.after(A, "timeout", None)
    waiting = asyncio.create_task(gate.before(A))
    await asyncio.sleep(0.05)
    assert not waiting.done() and not gate.ready(A)
    assert not gate.open_circuits(), "nobody is told of a doubt"
    probed.set()
    await asyncio.wait_for(waiting, HANG_S)
    assert gate.ready(A)
    probed.clear()
    gate.after(A, "timeout", None)
    waiting = asyncio.create_task(gate.before(A))
    await asyncio.sleep(0.05)
    gate.after(A, "answered", None)
    await asyncio.wait_for(waiting, PROBE_TIMEOUT_S / 2)  # at once, not at the end of the probe
    await gate.aclose()


async def test_a_slow_model_whose_server_answers_a_probe_is_not_out(quick: EndpointGate, endpoints: Endpoints) -> None:
    for _ in range(100):
        quick.after(A, "timeout", None)
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert not quick.open_circuits() and 1 <= len(endpoints.asked) <= 100


@pytest.mark.parametrize("outcome", ["answered", "status_429", "status_500", "too_large"])
async def test_a_server_too_busy_for_probes_that_answers_a_call_is_not_out(quick: EndpointGate, endpoints: Endpoints, outcome: str) -> None:
    endpoints.alive[A] = False
    quick.after(A, "timeout", None)
    await until(lambda: len(endpoints.asked) == SILENT_PROBES - 1)
    quick.after(A, outcome, None)
    await asyncio.sleep(0.1)
    assert not quick.open_circuits() and len(endpoints.asked) <= SILENT_PROBES
    quick.after(A, "timeout", None)  # and the next silence is measured from its own beginning
    await until(lambda: list(quick.open_circuits()) == [A])
    quick.after(A, outcome, None)
    await until(lambda: not quick.open_circuits())


async def test_a_timed_out_call_does_not_slow_down_what_a_cut_connection_asks_for(quick: EndpointGate, endpoints: Endpoints) -> None:
    endpoints.alive[A] = False
    quick.after(A, "timeout", None)
    quick.after(A, "disconnected", None)
    await until(lambda: list(quick.open_circuits()) == [A])
    assert len(endpoints.asked) == 1


async def test_a_cancelled_call_says_nothing(quick: EndpointGate, endpoints: Endpoints) -> None:
    quick.after(A, "cancelled", None)
    await asyncio.sleep(0.02)
    assert endpoints.asked == []


@pytest.mark.parametrize(
    ("status", "alive"), [(200, True), (401, True), (404, True), (500, True), (502, False), (503, False), (504, False)]
)
async def test_any_answer_but_a_gateways_is_a_sign_of_life(status: int, alive: bool) -> None:
    async def answer(*_: object, **__: object) -> HttpResponse:
        return HttpResponse(status, {}, b"")

    assert await http_probe(FakeTransport(answer))(A) is (status < 502)
