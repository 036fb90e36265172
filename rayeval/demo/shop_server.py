"""The shop over HTTP: slots, leases and the environment's envelopes and errors.

Invariants:
* A slot is in ``_free``, or holds one lease, or is on its way to a woken reset. Every change happens without an await
  between check and change, so no lock is needed.
* A release hands its slot straight to the longest waiting reset; a slot enters ``_free`` only when nobody waits.
* A lease ends by ``release_one`` with the right pair, by ``release_all``, by the roll-back of its own failed reset,
  or by the lease-lost fault. Nothing else ends it: no time, no disconnect, no ``done``.
* A client that leaves does not cancel its request. A queued reset whose client has gone still takes its slot, and
  nobody knows the lease: the leak that the real server has, counted as ``leaked_to_nobody``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from rayeval.demo.faults import Latency, Refusals
from rayeval.demo.options import DemoOptions
from rayeval.demo.pages import OBSERVATION_VERSION
from rayeval.demo.serving import Tally, client_gone, flask_json, html_page
from rayeval.demo.shop import ENVIRONMENT_VERSION, TERMINATION_REASONS, Session, Shop, ShopError
from rayeval.exceptions import ConfigurationError
from rayeval.schemas import JsonObject

API_PATH = "/api/shop_agent"
ACTIONS = ("reset", "interact", "terminate", "release_one", "release_all")
FAULTS = ("fault_500", "fault_hang", "fault_lease_lost")
COUNTERS = (
    "requests",
    *ACTIONS,
    "bad_requests",
    "stale_lease",
    "after_done",
    "invalid_actions",
    "reset_on_full_pool",
    "answered_nobody",
    "leaked_to_nobody",
    "episodes_done",
    "purchase",
    *TERMINATION_REASONS,
    "reward_sum",
    *FAULTS,
)
GAUGES = ("leases_held", "resets_in_flight", "resets_waiting")


class Reply(NamedTuple):
    """A status and the ``result`` object."""

    status: int
    result: JsonObject

    @classmethod
    def error(cls, status: int, text: str) -> Reply:
        return cls(status, {"error": text})


@dataclass(slots=True)
class HeldLease:
    """One slot in use."""

    env_idx: int
    lease_id: str
    session: Session
    since: float = field(default_factory=time.monotonic)

    def to_json(self) -> JsonObject:
        return {"env_idx": self.env_idx, "lease_id": self.lease_id}


class ShopServer:
    """Handler of the shop's port."""

    def __init__(self, shop: Shop, options: DemoOptions) -> None:
        self._shop = shop
        self._options = options
        self._latency = Latency.parse(options.env_latency, "env_latency")
        self._refusals = Refusals(options.fault_seed)
        self._free: deque[int] = deque(range(options.slots))
        self._leases: list[HeldLease | None] = [None] * options.slots
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._tasks_seen: set[int] = set()
        self._log = self._opened(options.request_log)
        self._handlers: dict[str, Callable[[JsonObject], Reply]] = {
            "interact": self._interact,
            "terminate": self._terminate,
            "release_one": self._release_one,
            "release_all": self._release_all,
        }
        self.tally = Tally(COUNTERS, GAUGES)

    @staticmethod
    def _opened(path: str | None) -> FileIO | None:
        if path is None:
            return None
        try:
            return FileIO(path, "ab")
        except OSError as exc:
            raise ConfigurationError("request_log", path, f"give a file that can be appended to ({exc})") from exc

    def close(self) -> None:
        """Close the request log."""
        if self._log is not None:
            self._log.close()

    def reset_stats(self) -> None:
        """Counters, peaks and refusals from the start; leases stay."""
        self.tally.reset()
        self._refusals.clear()
        self._tasks_seen.clear()

    def stats(self) -> JsonObject:
        """Counters and gauges with their peaks."""
        now = time.monotonic()
        held = [lease for lease in self._leases if lease is not None]
        return {
            **self.tally.to_json(),
            "slots": self._options.slots,
            "free_slots": len(self._free),
            "oldest_lease_s": max((now - lease.since for lease in held), default=0.0),
            "never_released_done": sum(lease.session.done for lease in held),
            "distinct_tasks": len(self._tasks_seen),
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request of the shop's port, ``/stats`` excepted."""
        if request.path == API_PATH:
            if request.method != "POST":
                return html_page(405, "Method Not Allowed", "This URL takes POST.")
            return await self._api(request)
        if request.path == "/healthz" and request.method == "GET":
            return flask_json(self._health())
        return html_page(404, "Not Found", "Nothing is served under this URL.")

    def _health(self) -> JsonObject:
        return {
            "ready": True,
            "environment_slots": self._options.slots,
            "free_slots": len(self._free),
            "tasks": len(self._shop.catalogue.tasks),
            "environment_version": ENVIRONMENT_VERSION,
            "primary_reward": "r_strict",
            "observation_version": OBSERVATION_VERSION,
            "debug_ui": "/stats",
            "replay_ui": "/stats",
        }

    async def _api(self, request: web.BaseRequest) -> web.Response:
        self.tally.add("requests")
        try:
            body = orjson.loads(await request.read())
        except ValueError:
            self.tally.add("bad_requests")
            return self._answer(request, "-", {}, Reply.error(200, "No JSON data provided"))
        if not isinstance(body, dict):
            self.tally.add("bad_requests")
            self._write_log("-", {}, {}, 500)
            return html_page(500, "Internal Server Error", "The body has to be a JSON object.")
        action = body.get("action")
        if not isinstance(action, str) or action not in ACTIONS:
            self.tally.add("bad_requests")
            return self._answer(request, "-", body, Reply.error(400, f"unsupported action: {action!r}"))
        reply = await self._fault(action, body)
        if reply is None:
            self.tally.add(action)
            reply = await self._reset(request, body) if action == "reset" else self._handlers[action](body)
        return self._answer(request, action, body, reply)

    def _answer(self, request: web.BaseRequest, action: str, body: JsonObject, reply: Reply) -> web.Response:
        if client_gone(request):
            self.tally.add("answered_nobody")
            if action == "reset" and reply.status == 200:
                self.tally.add("leaked_to_nobody")
        self._write_log(action, body, reply.result, reply.status)
        return flask_json({"result": reply.result}, reply.status)

    def _write_log(self, action: str, body: JsonObject, result: JsonObject, status: int) -> None:
        if self._log is not None:
            env_idx = body.get("env_idx", result.get("env_idx", "-"))
            lease_id = body.get("lease_id", result.get("lease_id", "-"))
            self._log.write(f"{time.time():.6f} {action} {env_idx} {lease_id} {status}\n".encode())

    async def _fault(self, action: str, body: JsonObject) -> Reply | None:
        """Delay the request; -> the answer when a fault takes its place."""
        options = self._options
        lease = self._find(body)
        key = (lease.session.task.task_id, lease.session.actions_taken) if lease else (str(body.get("idx")), 0)
        if not action.startswith("release"):
            if self._refusals.strikes("500", options.env_fault_500, action, *key):
                self.tally.add("fault_500")
                return Reply.error(500, "demo fault: the environment failed")
            if self._refusals.strikes("hang", options.env_fault_hang, action, *key):
                self.tally.add("fault_hang")
                await asyncio.sleep(options.hang_s)
                return Reply.error(504, "demo fault: the environment hung")
        delay = self._latency.draw(action, *key)
        if delay > 0:
            await asyncio.sleep(delay)
        return None

    async def _reset(self, request: web.BaseRequest, body: JsonObject) -> Reply:
        self.tally.move("resets_in_flight", +1)
        try:
            if body.get("env_idx") is not None:
                return Reply.error(400, "reset must not include env_idx; the server assigns a slot")
            if body.get("idx") is None:
                return Reply.error(500, "reset action requires idx parameter")
            slot = await self._take_slot()
            return self._open(slot, body)
        finally:
            self.tally.move("resets_in_flight", -1)

    async def _take_slot(self) -> int:
        if self._free:
            return self._free.popleft()
        self.tally.add("reset_on_full_pool")
        woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        self.tally.move("resets_waiting", +1)
        try:
            return await woken
        finally:
            self.tally.move("resets_waiting", -1)

    def _give_back(self, slot: int) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # a cancelled one belongs to a server that is closing
                waiter.set_result(slot)
                return
        self._free.append(slot)

    def _open(self, slot: int, body: JsonObject) -> Reply:
        try:
            session = self._shop.open(body["idx"], body.get("interaction_mode", "single_turn"))
        except ShopError as exc:
            self._give_back(slot)
            return Reply.error(500, str(exc))
        lease = HeldLease(slot, os.urandom(16).hex(), session)
        self._leases[slot] = lease
        self.tally.move("leases_held", +1)
        self._tasks_seen.add(session.task.task_id)
        opening = session.opening(bool(body.get("if_persona", False)), bool(body.get("include_private_goal", False)))
        return Reply(200, {**opening, **lease.to_json()})

    def _find(self, body: JsonObject) -> HeldLease | None:
        env_idx, lease_id = body.get("env_idx"), body.get("lease_id")
        if type(env_idx) is not int or not 0 <= env_idx < len(self._leases):
            return None
        lease = self._leases[env_idx]
        return lease if lease is not None and lease.lease_id == lease_id else None

    def _lease(self, action: str, body: JsonObject) -> HeldLease | Reply:
        env_idx, lease_id = body.get("env_idx"), body.get("lease_id")
        if type(env_idx) is not int or not isinstance(lease_id, str) or not lease_id:
            self.tally.add("bad_requests")
            return Reply.error(400, f"{action} requires a valid env_idx and lease_id")
        lease = self._find(body)
        if lease is None:
            self.tally.add("stale_lease")
            return Reply.error(409, f"stale or invalid lease for environment {env_idx}")
        return lease

    def _end_lease(self, lease: HeldLease) -> None:
        self._leases[lease.env_idx] = None
        self.tally.move("leases_held", -1)
        self._give_back(lease.env_idx)

    def _played(self, lease: HeldLease, play: Callable[[], JsonObject]) -> Reply:
        session = lease.session
        was_done = session.done
        try:
            result = play()
        except ShopError as exc:
            self.tally.add("after_done" if was_done else "bad_requests")
            return Reply.error(500, str(exc))
        if session.done:
            self.tally.add("episodes_done")
            self.tally.add(str(session.termination_reason))
            self.tally.add("reward_sum", result["reward"])
        name = f"slot-{lease.env_idx}-{session.task.task_id}"
        return Reply(200, {**result, **lease.to_json(), "idx": name})

    def _interact(self, body: JsonObject) -> Reply:
        lease = self._lease("interact", body)
        if isinstance(lease, Reply):
            return lease
        session = lease.session
        lost = self._options.env_fault_lease_lost
        if self._refusals.strikes("lease_lost", lost, session.task.task_id, session.actions_taken):
            self.tally.add("fault_lease_lost")
            self._end_lease(lease)
            return Reply.error(409, f"stale or invalid lease for environment {lease.env_idx}")
        reply = self._played(lease, lambda: session.interact(body.get("response")))
        if reply.status == 200 and not reply.result["action_feedback"]["valid"]:
            self.tally.add("invalid_actions")
        return reply

    def _terminate(self, body: JsonObject) -> Reply:
        lease = self._lease("terminate", body)
        if isinstance(lease, Reply):
            return lease
        reason: Any = body.get("termination_reason", "action_limit")
        return self._played(lease, lambda: lease.session.terminate(reason))

    def _release_one(self, body: JsonObject) -> Reply:
        lease = self._lease("release_one", body)
        if isinstance(lease, Reply):
            return lease
        self._end_lease(lease)
        return Reply(200, {"message": f"Environment {lease.env_idx} has been released"})

    def _release_all(self, body: JsonObject) -> Reply:
        for lease in [held for held in self._leases if held is not None]:
            self._end_lease(lease)
        return Reply(200, {"message": "All environments have been initialized"})
