import asyncio
from collections.abc import AsyncIterator

import pytest

from rayeval.exceptions import ConnectFailedError
from rayeval.models.gate import GATEWAY_STRIKES, PROBE_EVERY_S, EndpointGate, http_probe
from rayeval.transport import FakeTransport, HttpResponse

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


@pytest.mark.parametrize(
    ("status", "alive"), [(200, True), (401, True), (404, True), (500, True), (502, False), (503, False), (504, False)]
)
async def test_any_answer_but_a_gateways_is_a_sign_of_life(status: int, alive: bool) -> None:
    async def answer(*_: object, **__: object) -> HttpResponse:
        return HttpResponse(status, {}, b"")

    assert await http_probe(FakeTransport(answer))(A) is (status < 502)
