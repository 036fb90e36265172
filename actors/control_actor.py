"""The mailbox of a run on a cluster without a shared file system: a named actor that the run's job owns.

It has the two sides of the mailbox in a run's directory (``rayeval.mailbox``): ``post`` for who steers, ``take`` and ``answer`` for the
driver. A request is given out once; one that nobody took in time is withdrawn. Beside it lies the run's newest status: ``publish`` for the
driver, ``status`` for who watches (``actors.far_status``). The actor ends with its job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from actors import cluster
from actors.asking import ask_head, end_actor
from actors.nodes import placed_without_cpu
from rayeval.control import ControlRequest, read_reply, refusal, request_of
from rayeval.exceptions import InputError, RefusedError
from rayeval.schemas import JsonObject

NAMESPACE = "rayeval"
_TAKE_S = 10.0
_ANSWER_S = 5.0
_RETRY_S = 10.0
_PUBLISH_S = 10.0
_FAREWELL_S = 5.0
_WATCHERS = 64
"""Who watch and wait for news; more get what there is at once."""
_HANDOVER_S = 3.0
"""How long the actor stays for those who have not been given the last status."""
_RECENT_S = 2.0
"""Who was answered longer ago and does not ask watches no more: nobody pauses for so long between two asks."""
_ON_ITS_WAY_S = 0.2
"""Time for an answer that was given to leave the actor's process."""
_KNOWN_WATCHERS = 1024
_SLACK_S = 10.0
_WAITING = 256
"""Requests that may wait; more are refused."""
_log = logging.getLogger(__name__)


def actor_name(run: str) -> str:
    """The name under which a run's mailbox is found."""
    return f"rayeval-control-{run}"


class ControlBox:
    """The mailbox itself; a plain class, on Ray by ``_RemoteControlBox``. Everything happens in its one loop."""

    def __init__(self) -> None:
        self._requests: deque[JsonObject] = deque()
        self._arrived = asyncio.Event()
        self._replies: dict[str, asyncio.Future[JsonObject]] = {}
        self._status: JsonObject | None = None
        self._published_at = 0.0
        self._published = asyncio.Condition()
        self._number = 0
        self._asking: dict[object, int] = {}
        """The calls of ``status`` under way, and the number they wait to see passed."""
        self._given: dict[str, tuple[int, float]] = {}
        """By watcher: the number of the last status it was given, and when; it may be about to ask again."""
        self._closed = False

    async def post(self, request: JsonObject, timeout_s: float) -> JsonObject:
        """-> the driver's reply; or ``{"withdrawn": true}``, ``{"taken": true}`` when there was none in time."""
        if self._closed:
            return {"ended": True}
        if len(self._replies) >= _WAITING or request["id"] in self._replies:
            return {"withdrawn": True}
        reply: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._replies[request["id"]] = reply
        self._requests.append(request)
        self._arrived.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            with contextlib.suppress(ValueError):
                self._requests.remove(request)
                return {"withdrawn": True}
            return {"taken": True}
        finally:
            del self._replies[request["id"]]

    async def take(self, wait_s: float) -> list[JsonObject]:
        """All that wait, as soon as there are any."""
        if not self._requests:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
        taken = list(self._requests)
        self._requests.clear()
        return taken

    async def answer(self, reply: JsonObject) -> None:
        """Hand a reply to whoever waits for it."""
        waiting = self._replies.get(str(reply.get("id")))
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    async def close(self) -> None:
        """Take no more requests; the status can still be asked for."""
        self._closed = True

    async def publish(self, status: JsonObject) -> None:
        """Take the run's newest status."""
        self._status, self._published_at = status, time.monotonic()
        async with self._published:
            self._number += 1
            self._published.notify_all()

    async def handed_over(self, wait_s: float) -> bool:
        """Whether everybody who watches has been given the newest status, as soon as that is so, at most after ``wait_s``. Who is between
        two asks watches too: it is waited for until it asks again, or has been away for so long that it asks no more."""
        until = time.monotonic() + wait_s
        while self._behind():
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(0.02)
        if self._given:
            await asyncio.sleep(_ON_ITS_WAY_S)
        return True

    def _behind(self) -> bool:
        self._forget()
        known = [*self._asking.values(), *(number for number, _ in self._given.values())]
        return any(number < self._number for number in known)

    def _forget(self) -> None:
        now = time.monotonic()
        self._given = {who: given for who, given in self._given.items() if now - given[1] < _RECENT_S}

    async def status(self, after: int, wait_s: float, watcher: str = "") -> JsonObject:
        """``{"number", "status", "age_s"}`` as soon as there is a status newer than number ``after``, else the newest after ``wait_s``.

        ``age_s`` counts from its arrival on one clock, so that no two clocks have to agree; ``status`` is null before the first one.
        ``watcher``: any name that who asks again and again keeps, so that the actor does not end between two asks of it."""
        ask = object()
        self._asking[ask] = after
        try:
            async with asyncio.timeout(wait_s if len(self._asking) <= _WATCHERS else 0.0), self._published:
                await self._published.wait_for(lambda: self._number > after)
        except TimeoutError:
            pass
        finally:
            del self._asking[ask]
        now = time.monotonic()
        if len(self._given) >= _KNOWN_WATCHERS:
            self._forget()
        if watcher and len(self._given) < _KNOWN_WATCHERS:
            self._given[watcher] = (self._number, now)
        age = now - self._published_at if self._status is not None else None
        return {"number": self._number, "status": self._status, "age_s": age}


_RemoteControlBox: Any = ray.remote(ControlBox)


class ClusterMailbox:
    """The driver's side: a ``rayeval.mailbox.Mailbox`` fed by a task of its own. ``aclose`` ends that; the actor lives until ``farewell``,
    ``kill`` or the end of the job, so that who watches hears how the run ended."""

    def __init__(self, run: str, note: Callable[[str, str], None]) -> None:
        self._run, self._note = run, note
        self._actor: Any = None
        self._taken: deque[ControlRequest] = deque()
        self._answers: set[asyncio.Task[None]] = set()
        self._publishing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._serve(), name="control")

    def poll(self) -> list[ControlRequest]:
        found = list(self._taken)
        self._taken.clear()
        return found

    def answer(self, reply: JsonObject) -> None:
        if self._actor is None:
            return
        task = asyncio.create_task(self._deliver(self._actor, reply))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def aclose(self) -> None:
        """Refuse what waits. Bounded."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for request in self.poll():
            self.answer(refusal(request, RefusedError("the run has ended")))
        if self._answers:
            await asyncio.wait(self._answers, timeout=_ANSWER_S)
        if self._actor is not None:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    await self._actor.close.remote()

    def publish(self, status: JsonObject) -> None:
        """Send the newest status on its way. One is under way at most: a cluster that does not keep up misses some."""
        if self._actor is not None and (self._publishing is None or self._publishing.done()):
            self._publishing = asyncio.get_running_loop().create_task(self._publish(self._actor, status), name="publish")

    async def farewell(self, status: JsonObject) -> None:
        """Send the last status, let those who watch have it, and end the actor. Bounded; raises nothing."""
        if self._publishing is not None:
            self._publishing.cancel()
        if self._actor is not None:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._actor.publish.remote(status)
                    await self._actor.handed_over.remote(_HANDOVER_S)
        self.kill()

    def kill(self) -> None:
        """End the actor, if there is one and the cluster still is; idempotent."""
        actor, self._actor = self._actor, None
        if actor is not None and ray.is_initialized():
            end_actor(actor)

    async def _publish(self, actor: Any, status: JsonObject) -> None:
        with contextlib.suppress(RayError, TimeoutError):  # the next one says more
            async with asyncio.timeout(_PUBLISH_S):
                await actor.publish.remote(status)

    async def _serve(self) -> None:
        told = False
        while True:
            try:
                if self._actor is None:
                    placed = await ask_head(placed_without_cpu, _TAKE_S)
                    self._actor = _RemoteControlBox.options(
                        name=actor_name(self._run), namespace=NAMESPACE, max_restarts=0, max_concurrency=_WAITING + 8, **placed
                    ).remote()
                async with asyncio.timeout(_TAKE_S + _SLACK_S):
                    requests = await self._actor.take.remote(_TAKE_S)
                for request in requests:
                    self._received(request)
                told = False
            except Exception as error:  # of whatever kind: not to be steered from afar is no reason to end, nor to end otherwise, a run
                # a name that is taken is another run's, or that of a driver which has just died
                self._actor = None
                if not told:
                    told = True
                    why = (str(error).strip().splitlines() or [type(error).__name__])[0]  # a TimeoutError has no text
                    self._note("warning", f"this run is not steered over the cluster for now: {why}")
                await asyncio.sleep(_RETRY_S)

    def _received(self, value: Any) -> None:
        try:
            self._taken.append(request_of(value))
        except InputError as error:
            self.answer(refusal(ControlRequest("", id=str(value.get("id")) if isinstance(value, dict) else ""), error))

    @staticmethod
    async def _deliver(actor: Any, reply: JsonObject) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await actor.answer.remote(reply)
        except (RayError, TimeoutError) as error:
            _log.warning("a reply to a control request was lost: %s", error)


def send_over_cluster(address: str, run: str, request: ControlRequest, timeout_s: float) -> JsonObject:
    """As ``rayeval.mailbox.send``, for the run of this name on the cluster at ``address``, which this process joins for the moment.

    Raises InputError, RefusedError, PlacementError (the cluster cannot be joined).
    """
    request = request.checked().signed()
    joined = cluster.join(address, 1)
    try:
        try:
            actor = ray.get_actor(actor_name(run), namespace=NAMESPACE)
        except ValueError:
            raise RefusedError(f"{run} is not running: no run of this name takes requests on the cluster at {address}") from None
        try:
            call: Any = actor.post.remote(request.to_json(), timeout_s)
            reply: JsonObject = ray.get(call, timeout=timeout_s + _SLACK_S)
        except GetTimeoutError:
            raise RefusedError(f"{run}: its mailbox did not answer within {timeout_s + _SLACK_S:g} s; see rayeval status") from None
        except RayError as error:
            raise RefusedError(f"{run} has ended meanwhile, or its mailbox has ({type(error).__name__})") from None
    finally:
        if joined.ours:
            cluster.leave()
    if reply.get("ended"):
        raise RefusedError(f"{run} is ending and takes no more requests")
    if reply.get("withdrawn"):
        raise RefusedError(f"{run} did not answer within {timeout_s:g} s; the request was withdrawn, nothing was done")
    if reply.get("taken"):
        raise RefusedError(f"{run} took the request and did not say what came of it; see rayeval status")
    return read_reply(reply)
