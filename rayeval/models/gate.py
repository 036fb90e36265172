"""What stands between an episode and a model endpoint: circuits, shared pauses, and a limiter where one is asked for.

An endpoint's circuit opens when nothing listens there, when a gateway says eight times in a row that nothing is behind it, or when it is
stuck: a call has timed out, and then three probes in a row, with no answer to anything between them (after a cut connection one probe is
enough). A slow model is not stuck: its server
answers a probe, or another call. While a circuit is open no attempt is made there: calls wait (and so use up none of ``model_attempts``),
or go to another endpoint whose circuit is closed; so they do while a time-out is looked into, which at a living server takes one probe. A
probe each second closes a circuit, and that of a stuck endpoint any answer. A ``Retry-After`` of a second or more is meant for everybody:
no call of this process leaves for that endpoint before it is over, and ``pauses`` is told to the other processes. A shorter one is the
refused call's own affair.

Invariants: one event loop owns a gate; no await stands between a check and its change; each endpoint has at most one probe running.
Closing rule: ``aclose`` ends the probes; a call that waits here is ended by its own deadline or cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rayeval.transport import HttpTransport

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 5.0
GATEWAY_STRIKES = 8
"""Gateway errors in a row, without an answer between them, that open a circuit."""
SILENT_PROBES = 3
"""Probes that must fail in a row after a call has timed out: with their time-outs a quarter of a minute of silence on top of the call's."""
SHARED_PAUSE_S = 1.0
"""A ``Retry-After`` at least this long is shared; shorter ones would stop everybody for one refused call."""
PAUSE_CAP_S = 120.0
_GATEWAY = frozenset({"status_502", "status_503", "status_504"})

Probe = Callable[[str], Awaitable[bool]]
"""Whether an endpoint answers at all; bounded by the gate."""


class Limiter(Protocol):
    """Bounds the calls in flight at one endpoint."""

    async def acquire(self) -> None:
        """Wait for leave; cancellation gives the place in the queue back."""
        ...

    def release(self, outcome: str, latency_s: float) -> None:
        """A call that had leave has ended (``AttemptObserver.after``'s words)."""
        ...

    def load(self) -> tuple[int, int, int]:
        """(limit, calls in flight, calls that wait for leave)."""
        ...


@dataclass(slots=True)
class _Endpoint:
    open_since: float | None = None
    waits: bool = False
    """No attempt is made: the circuit is open, or a time-out is being looked into."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    strikes: int = 0
    answers: int = 0
    """Calls that got an answer of the endpoint's own."""
    heard: int = 0
    """``answers`` at the time-out that is looked into."""
    failed: int = 0
    """Probes that have failed since."""
    patience: int = 1
    """Probes that must fail in a row to open the circuit."""
    not_before: float = 0.0
    probe: asyncio.Task[None] | None = None
    started: dict[int, float] = field(default_factory=dict)


class EndpointGate:
    """The ``AttemptObserver`` of an actor's model client."""

    def __init__(
        self,
        endpoints: Sequence[str],
        probe: Probe,
        limiters: Mapping[str, Limiter] | None = None,
        clock: Callable[[], float] = time.monotonic,
        probe_every_s: float = PROBE_EVERY_S,
    ) -> None:
        self._probe_every_s = probe_every_s
        self._endpoints = {endpoint: _Endpoint() for endpoint in endpoints}
        self._probe = probe
        self._limiters = limiters or {}
        self._clock = clock

    # ---- AttemptObserver ----------------------------------------------------------------------------------------------------------

    def route(self, endpoint: str) -> str:
        """The endpoint to use: the preferred one, or while its circuit is open the first one whose circuit is closed."""
        if not self._of(endpoint).waits:
            return endpoint
        return next((other for other, state in self._endpoints.items() if not state.waits), endpoint)

    def ready(self, endpoint: str) -> bool:
        """Whether nothing stands in the way of a call."""
        state = self._of(endpoint)
        return not state.waits and endpoint not in self._limiters and state.not_before <= self._clock()

    async def before(self, endpoint: str) -> None:
        """Wait until the circuit is closed, no shared pause runs and the limiter gives leave."""
        state = self._of(endpoint)
        limiter = self._limiters.get(endpoint)
        while True:
            if state.waits:
                await state.closed.wait()
            elif (left := state.not_before - self._clock()) > 0:
                await asyncio.sleep(left)
            elif limiter is None:
                return
            else:
                await limiter.acquire()
                if not state.waits and state.not_before <= self._clock():
                    break
                limiter.release("cancelled", 0.0)  # the endpoint has closed while this call waited for its turn
        state.started[id(asyncio.current_task())] = self._clock()

    def after(self, endpoint: str, outcome: str, retry_after_s: float | None) -> None:
        """Learn from an attempt's end."""
        state = self._of(endpoint)
        limiter = self._limiters.get(endpoint)
        if limiter is not None:
            started = state.started.pop(id(asyncio.current_task()), self._clock())
            limiter.release(outcome, self._clock() - started)
        if outcome == "connect":
            self._open(endpoint, state)
        elif outcome == "disconnected":
            self._look(endpoint, state)
        elif outcome in _GATEWAY:
            state.strikes += 1
            if state.strikes >= GATEWAY_STRIKES:
                self._open(endpoint, state)
        elif outcome == "timeout":
            self._doubt(endpoint, state)
        elif outcome != "cancelled":
            state.strikes = 0
            state.answers += 1
            if state.waits and state.patience > 1:
                self._close(state)
        if retry_after_s is not None and retry_after_s >= SHARED_PAUSE_S and outcome in ("status_429", "status_503"):
            self.pause(endpoint, retry_after_s)

    # ---- what the actor tells and is told -------------------------------------------------------------------------------------------

    def pause(self, endpoint: str, seconds: float) -> None:
        """No call leaves for ``endpoint`` in the next ``seconds`` (at most ``PAUSE_CAP_S``)."""
        state = self._of(endpoint)
        state.not_before = max(state.not_before, self._clock() + min(seconds, PAUSE_CAP_S))

    def pauses(self) -> dict[str, float]:
        """Seconds left of every shared pause."""
        now = self._clock()
        return {endpoint: state.not_before - now for endpoint, state in self._endpoints.items() if state.not_before > now}

    def loads(self) -> dict[str, tuple[int, int, int]]:
        """For each endpoint with a limiter: (limit, calls in flight, calls that wait for leave)."""
        return {endpoint: limiter.load() for endpoint, limiter in self._limiters.items()}

    def open_circuits(self) -> dict[str, float]:
        """For each endpoint whose circuit is open: since how many seconds."""
        now = self._clock()
        return {e: now - s.open_since for e, s in self._endpoints.items() if s.open_since is not None}

    async def aclose(self) -> None:
        """End the probes."""
        probes = [s.probe for s in self._endpoints.values() if s.probe is not None]
        for probe in probes:
            probe.cancel()
        if probes:
            await asyncio.wait(probes, timeout=PROBE_TIMEOUT_S)

    # ---- circuits -----------------------------------------------------------------------------------------------------------------

    def _of(self, endpoint: str) -> _Endpoint:
        state = self._endpoints.get(endpoint)
        if state is None:
            state = self._endpoints[endpoint] = _Endpoint()
        return state

    def _open(self, endpoint: str, state: _Endpoint) -> None:
        state.patience = 1
        self._hold(state, out=True)
        self._start_probe(endpoint, state)

    def _hold(self, state: _Endpoint, out: bool) -> None:
        if out and state.open_since is None:
            state.open_since = self._clock()
        state.waits = True
        state.closed.clear()

    def _close(self, state: _Endpoint) -> None:
        state.open_since = None
        state.strikes = state.failed = 0
        state.waits = False
        state.closed.set()

    def _look(self, endpoint: str, state: _Endpoint) -> None:
        """A cut connection alone proves nothing: ask the endpoint."""
        if state.open_since is None:
            state.patience = 1  # also in a doubt: a cut connection and a probe without an answer are two signs
            self._start_probe(endpoint, state)

    def _doubt(self, endpoint: str, state: _Endpoint) -> None:
        """Nor does a call without an answer; but the next ones would be lost in the same way if it is stuck, so they wait for the probe."""
        if not state.waits:
            state.heard, state.failed = state.answers, 0
            state.patience = SILENT_PROBES
            self._hold(state, out=False)
            self._start_probe(endpoint, state)

    def _start_probe(self, endpoint: str, state: _Endpoint) -> None:
        if state.probe is None or state.probe.done():
            state.probe = asyncio.get_running_loop().create_task(self._probing(endpoint, state), name=f"probe {endpoint}")

    async def _probing(self, endpoint: str, state: _Endpoint) -> None:
        while True:
            answers = False
            with contextlib.suppress(Exception):  # of whatever kind: a probe that ended here would hold the calls back for ever
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    answers = await self._probe(endpoint)
            if answers or (state.patience > 1 and state.answers != state.heard):
                self._close(state)
                return
            state.failed += 1
            if state.failed >= state.patience:
                self._hold(state, out=True)
            await asyncio.sleep(self._probe_every_s)


def http_probe(transport: HttpTransport, headers: dict[str, str] | None = None) -> Probe:
    """A probe by ``GET {endpoint}/models``: any answer but a gateway's counts, a refusal too."""

    async def probe(endpoint: str) -> bool:
        response = await transport.request("GET", f"{endpoint.rstrip('/')}/models", None, headers or {}, PROBE_TIMEOUT_S, 1 << 20)
        return response.status not in (502, 503, 504)

    return probe
