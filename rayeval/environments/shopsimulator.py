"""ShopSimulator over HTTP: the adapter knows the wire contract and none of the shop's rules.

Invariants of an episode:

* reset, interact and terminate are each sent at most once; what was lost stays lost and ends the attempt.
* A reset has no read time-out, for a server that is left waiting fills a slot that nobody can name. Its caller waits
  ``reset_timeout_s``; then, or when cancelled, the request is the reaper's, which releases the lease at the answer.
* ``on_lease("held")`` comes in the turn in which the answer is parsed, before anything else of it is checked; ``on_lease("ended")``
  once the server no longer counts the lease (200, or 409: already gone). A release is the one call that may be sent again.
* A lease that an answer names is held, whatever is wrong with the answer: no JSON, too large. No lease id gets into an error.
* ``guard`` runs right before each reset, interact and terminate, never before a release.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from rayeval.encoding import encode
from rayeval.environments._reaper import Reaper
from rayeval.environments._shop_answers import (
    UNAVAILABLE_STATUSES,
    excerpt,
    lease_of,
    no_answer,
    off_contract,
    parsed,
    public_reset,
    reset_start_fault,
    result_of,
    unavailable,
    without_lease,
)
from rayeval.environments.base import LeaseListener
from rayeval.environments.pages import reset_fault, step_fault, terminal_fault
from rayeval.environments.timeouts import EnvironmentTimeouts
from rayeval.exceptions import EnvironmentCallError, ReplyTooLargeError, TransportError
from rayeval.schemas import EnvironmentIdentity, EpisodeJob, ErrorKind, JsonObject, Lease, ServerCapacity
from rayeval.transport import HttpResponse, HttpTransport, public_url

_log = logging.getLogger(__name__)

INTERACTION_MODE = "single_turn"
MAX_PAGE_BYTES = 16 * 1024 * 1024

_HEADERS = {"Content-Type": "application/json"}
_RELEASE_BACKOFF_S = 0.2


class ShopSimulator:
    """Factory of episodes on one or several ShopSimulator servers. ``aclose`` closes the transport too."""

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        transport: HttpTransport,
        persona: bool = False,
        timeouts: EnvironmentTimeouts | None = None,
    ) -> None:
        self.servers = tuple(base_urls)
        self._transport = transport
        self._persona = persona
        self._timeouts = timeouts or EnvironmentTimeouts()
        self._reaper = Reaper()
        self._closed = False

    def identity(self) -> JsonObject:
        return {"adapter": "shopsimulator_http", "persona": self._persona, "interaction_mode": INTERACTION_MODE}

    async def capacity(self) -> list[ServerCapacity]:
        """Slots of every server, in the order given. Raises EnvironmentCallError naming the first that does not answer."""
        answers = await asyncio.gather(*map(self.server_capacity, self.servers), return_exceptions=True)
        found: list[ServerCapacity] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    async def server_capacity(self, server: str) -> ServerCapacity:
        """Slots and versions of one server from its health page. Raises EnvironmentCallError."""
        try:
            response = await self._transport.request(
                "GET", f"{server.rstrip('/')}/healthz", None, {}, self._timeouts.step_timeout_s, MAX_PAGE_BYTES
            )
        except TransportError as error:
            raise unavailable(server, "healthz", str(error)) from error
        body = parsed(response.body)
        if response.status != 200 or not isinstance(body, dict):
            raise unavailable(server, "healthz", f"HTTP {response.status}, {excerpt(response.body)}")
        slots, free = body.get("environment_slots"), body.get("free_slots")
        if body.get("ready") is not True or type(slots) is not int or type(free) is not int or not 0 <= free <= slots:
            raise unavailable(server, "healthz", f"not ready, or without slots: {excerpt(response.body)}")
        versions = (body.get(k) for k in EnvironmentIdentity._fields)
        return ServerCapacity(server, slots, free, EnvironmentIdentity(*(v if isinstance(v, str) else None for v in versions)))

    def open(self, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> ShopEpisode:
        if self._closed:
            raise RuntimeError("this ShopSimulator is closed: make a new one")
        return ShopEpisode(self, job, server, on_lease, guard)

    async def release(self, lease: Lease) -> None:
        """Release a lease by its description, whoever took it. 409 (already gone) is success. Raises EnvironmentCallError when the
        server did not say within ``release_timeout_s`` that it is free."""
        body = encode({"action": "release_one", "env_idx": lease.env_idx, "lease_id": lease.lease_id})
        give_up = time.monotonic() + self._timeouts.release_timeout_s
        pause = _RELEASE_BACKOFF_S
        while True:
            left = max(give_up - time.monotonic(), 0.05)
            try:
                response = await self.post(lease.server, body, min(left, self._timeouts.step_timeout_s))
            except TransportError as error:
                failure = unavailable(lease.server, "release_one", str(error))
            else:
                if response.status == 409:
                    return
                try:
                    result_of(response, lease.server, "release_one", lease)
                    return
                except EnvironmentCallError as error:
                    failure = error
                    if 400 <= response.status < 500 and response.status not in UNAVAILABLE_STATUSES:
                        raise
            if time.monotonic() + pause >= give_up:
                raise failure
            await asyncio.sleep(pause)
            pause *= 2

    async def release_all(self, server: str) -> None:
        """End every lease of a server, other runs' too: only for a server that is this run's alone. Raises EnvironmentCallError."""
        try:
            response = await self.post(server, encode({"action": "release_all"}), self._timeouts.release_timeout_s)
        except TransportError as error:
            raise unavailable(server, "release_all", str(error)) from error
        result_of(response, server, "release_all")

    def pending_resets(self, server: str) -> int:
        """Resets of ``server`` whose caller gave up and whose answer has not come: each may still take a slot."""
        return self._reaper.pending(server)

    def unanswered_resets(self) -> Mapping[str, int]:
        """``pending_resets`` of every server that has any. After ``aclose``: what was left unanswered."""
        return self._reaper.pending_by_server()

    def on_reset_reaped(self, listener: Callable[[str], None]) -> None:
        """Have ``listener(server)`` called each time ``pending_resets(server)`` has gone down and the lease, if any, is dealt with."""
        self._reaper.on_reaped = listener

    async def aclose(self) -> None:
        """Wait at most ``drain_timeout_s`` for abandoned resets and releases, then close connections; idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._reaper.drain(self._timeouts.drain_timeout_s)
        for server, n in self.unanswered_resets().items():
            _log.warning("%d resets at %s were never answered; their slots may be taken by nobody", n, public_url(server))
        await self._transport.aclose()

    # What episodes use.

    @property
    def persona(self) -> bool:
        return self._persona

    @property
    def timeouts(self) -> EnvironmentTimeouts:
        return self._timeouts

    @property
    def reaper(self) -> Reaper:
        return self._reaper

    async def post(self, server: str, body: bytes, timeout_s: float | None) -> HttpResponse:
        return await self._transport.request("POST", f"{server.rstrip('/')}/api/shop_agent", body, _HEADERS, timeout_s, MAX_PAGE_BYTES)


class ShopEpisode:
    """One lease: reset, interacts, an end, a release. Used once and by one task at a time; ``close`` may be called from any."""

    def __init__(self, shop: ShopSimulator, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> None:
        self._shop = shop
        self._job = job
        self._server = server
        self._on_lease = on_lease
        self._guard = guard
        self._lease: Lease | None = None
        self._sent_reset = False
        self._releasing: asyncio.Task[None] | None = None

    @property
    def lease(self) -> Lease | None:
        return self._lease

    async def reset(self) -> JsonObject:
        if self._sent_reset:
            raise RuntimeError("an episode is reset once: open another")
        self._guard()
        self._sent_reset = True
        request = self._shop.reaper.start(self._requested())
        waited = self._shop.timeouts.reset_timeout_s
        try:
            await asyncio.wait({request}, timeout=waited)
        except asyncio.CancelledError:
            self._abandon(request)
            raise
        if not request.done():
            self._abandon(request)
            text = f"{public_url(self._server)}: reset of task {self._job.task_id} not answered within {waited:g} s; it is kept until it is"
            raise EnvironmentCallError(text, ErrorKind.RESET_TIMEOUT, True)
        result = result_of(await request, self._server, "reset", self._lease)
        fault = reset_fault(result) or reset_start_fault(result, self._job.task_id)
        if fault is not None:
            raise off_contract(self._server, "reset", fault, self._lease)
        return public_reset(result)

    async def step(self, action: str) -> JsonObject:
        result = await self._act("interact", {"response": action})
        fault = step_fault(result)
        if fault is not None:
            raise off_contract(self._server, "interact", fault, self._lease)
        return without_lease(result)

    async def terminate(self, reason: str) -> JsonObject:
        result = await self._act("terminate", {"termination_reason": reason})
        fault = terminal_fault(result)
        if fault is None and result.get("termination_reason") != reason:
            fault = f"termination_reason is not {reason!r}, as asked"
        if fault is not None:
            raise off_contract(self._server, "terminate", fault, self._lease)
        return without_lease(result)

    async def close(self) -> None:
        await self._release()  # nothing to do while an abandoned reset is out: the lease is the reaper's to learn and to end

    def _abandon(self, request: asyncio.Task[HttpResponse]) -> None:
        self._shop.reaper.abandon(self._server, request, self._release)

    async def _requested(self) -> HttpResponse:
        body = encode(
            {
                "action": "reset",
                "idx": self._job.task_id,
                "if_persona": self._shop.persona,
                "include_private_goal": False,
                "interaction_mode": INTERACTION_MODE,
            }
        )
        try:
            response = await self._shop.post(self._server, body, None)
        except TransportError as error:
            if isinstance(error, ReplyTooLargeError):
                self._learn_lease(error.start)
            raise no_answer(self._server, "reset", error) from error
        self._learn_lease(response.body)
        return response

    def _learn_lease(self, body: bytes) -> None:
        self._lease = lease_of(body, self._server)
        if self._lease is not None:
            self._on_lease("held", self._lease)

    async def _act(self, action: str, fields: JsonObject) -> JsonObject:
        lease = self._lease
        if lease is None:
            raise RuntimeError(f"{action} without a lease: reset first, and not after close")
        body = encode({"action": action, "env_idx": lease.env_idx, "lease_id": lease.lease_id, **fields})
        self._guard()
        try:
            response = await self._shop.post(self._server, body, self._shop.timeouts.step_timeout_s)
        except TransportError as error:
            raise no_answer(self._server, action, error) from error
        return result_of(response, self._server, action, lease)

    async def _release(self) -> None:
        if self._lease is None:
            return
        if self._releasing is None or self._releasing.done():  # a failed release may be tried again by another close
            self._releasing = self._shop.reaper.start(self._released(self._lease), must_end=True)
        await asyncio.shield(self._releasing)

    async def _released(self, lease: Lease) -> None:
        await self._shop.release(lease)
        self._lease = None
        self._on_lease("ended", lease)
