"""The pool's seam to an actor: ``RayHandle`` for one on Ray, ``LocalHandle`` for one in the driver's own loop (``--show``, tests).

Both say the same three things when a call does not end in an answer:
* ``ActorGoneError``    the actor, its node or the way to it is gone; whether the call was executed is not known
* ``ReplyGoneError``    the call was executed, its result died with a node; the actor may live and keeps the reply
* ``ActorFaultError``   the actor's code raised: a defect of ours
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import traceback
from typing import Any, Protocol

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from actors.asking import HeadSilentError, ask_head, end_actor
from actors.messages import ActorInfo, ActorSpec, Order, Ping, Reply
from actors.nodes import living_nodes, what_is_missing
from actors.rollout import RolloutActor
from rayeval.exceptions import PlacementError, RayevalError

_log = logging.getLogger(__name__)

_ASK_S = 5.0


class ActorGoneError(RayevalError, ConnectionError):
    """The actor or the way to it is gone."""


class ReplyGoneError(RayevalError, ConnectionError):
    """The result of an executed call is lost."""


class ActorFaultError(RayevalError, RuntimeError):
    """The actor's own code raised; the message is its traceback."""


class ActorHandle(Protocol):
    """What the pool needs of an actor."""

    async def start(self, timeout_s: float) -> ActorInfo:
        """Wait until it runs. Raises PlacementError in time, or the actor's own InputError."""
        ...

    async def exchange(self, order: Order) -> Reply:
        """One exchange. Raises the three errors of this module."""
        ...

    def ping(self, timeout_s: float) -> Ping | None:
        """Blocking, for the health thread. None: no answer in time."""
        ...

    async def stop(self, ack: int, timeout_s: float) -> Reply | None:
        """Graceful end. -> the last reply, with all that came after reply ``ack`` in ``missed``; None when there was none."""
        ...

    async def lost_its_node(self, timeout_s: float) -> bool:
        """Whether the node it ran on is known to be gone; False when that cannot be told in time."""
        ...

    def kill(self) -> None:
        """End it without ceremony; idempotent."""
        ...


class _RayRolloutActor(RolloutActor):
    """The plain actor with the node's id and the control thread's mark."""

    async def start(self) -> ActorInfo:
        os.environ["RAYEVAL_NODE_ID"] = ray.get_runtime_context().get_node_id()
        return await super().start()

    async def ping(self) -> Ping:
        return await super().ping()


_RayRolloutActor.ping = ray.method(concurrency_group="control")(_RayRolloutActor.ping)  # type: ignore[method-assign,assignment]
_RemoteRolloutActor: Any = ray.remote(concurrency_groups={"control": 2})(_RayRolloutActor)  # type: ignore[call-overload]


class RayHandle:
    """One actor process on Ray: never restarted by Ray, no call ever sent twice."""

    def __init__(self, spec: ActorSpec, **options: Any) -> None:
        self._actor_id = spec.actor_id
        self._node_id: str | None = None
        self._actor = _RemoteRolloutActor.options(
            num_cpus=1,  # never 0: an actor without CPUs lands on the head
            scheduling_strategy="SPREAD",  # the default packs all actors on one node
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=8,
            **options,
        ).remote(spec)

    async def start(self, timeout_s: float) -> ActorInfo:
        try:
            async with asyncio.timeout(timeout_s):
                info = await self._actor.start.remote()
        except TimeoutError as error:
            self.kill()
            try:
                missing = await ask_head(what_is_missing, _ASK_S)
            except HeadSilentError as silent:
                missing = str(silent)
            raise PlacementError(f"actor {self._actor_id} was not running after {timeout_s:.0f} s: {missing}") from error
        except RayTaskError as error:
            if isinstance(error.cause, RayevalError):
                raise error.cause from error
            raise ActorFaultError(str(error)) from error
        except RayError as error:
            raise ActorGoneError(_one_line(error)) from error
        assert isinstance(info, ActorInfo)
        self._node_id = info.node_id
        return info

    async def exchange(self, order: Order) -> Reply:
        try:
            reply = await self._actor.exchange.remote(order)
        except (RayTaskError, RaySystemError) as error:
            # a system error here is a reply that cannot be read: driver and actor are not of one version
            raise ActorFaultError(str(error)) from error
        except ObjectLostError as error:
            raise ReplyGoneError(_one_line(error)) from error
        except RayError as error:
            raise ActorGoneError(_one_line(error)) from error
        assert isinstance(reply, Reply)
        return reply

    def ping(self, timeout_s: float) -> Ping | None:
        try:
            answer = ray.get(self._actor.ping.remote(), timeout=timeout_s)
        except (GetTimeoutError, RayActorError, RayTaskError, ActorDiedError):
            return None
        return answer if isinstance(answer, Ping) else None

    async def stop(self, ack: int, timeout_s: float) -> Reply | None:
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._actor.stop.remote(ack)
        except (TimeoutError, RayError):
            return None
        return reply if isinstance(reply, Reply) else None

    async def lost_its_node(self, timeout_s: float) -> bool:
        if self._node_id is None:
            return False
        with contextlib.suppress(Exception):  # of whatever kind: then it is not known
            nodes = await ask_head(living_nodes, timeout_s)
            return all(node.node_id != self._node_id for node in nodes)
        return False

    def kill(self) -> None:
        end_actor(self._actor)


class LocalHandle:
    """The same actor in the driver's own process and loop."""

    def __init__(self, spec: ActorSpec, on_event: Any = None) -> None:
        self._actor = RolloutActor(spec, own_process=False, on_event=on_event)
        self._gone = asyncio.Event()

    async def start(self, timeout_s: float) -> ActorInfo:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._actor.start()
        except TimeoutError as error:
            raise PlacementError(f"the local actor was not running after {timeout_s:.0f} s") from error
        except RayevalError:
            raise
        except Exception as error:
            raise _fault(error) from error

    async def exchange(self, order: Order) -> Reply:
        call = asyncio.ensure_future(self._actor.exchange(order))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((call, gone), return_when=asyncio.FIRST_COMPLETED, timeout=order.idle_s + 60.0)
            if not call.done():
                raise ActorGoneError("the local actor was killed")
            return call.result()
        except RayevalError:
            raise
        except Exception as error:
            raise _fault(error) from error
        finally:
            call.cancel()
            gone.cancel()

    def ping(self, timeout_s: float) -> Ping | None:
        return None if self._gone.is_set() else Ping(0.0)

    async def stop(self, ack: int, timeout_s: float) -> Reply | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._actor.stop(ack)
        except Exception:
            _log.warning("the local actor did not stop in order", exc_info=True)
            return None

    async def lost_its_node(self, timeout_s: float) -> bool:
        return False

    def kill(self) -> None:
        self._gone.set()
        self._actor.revoke("it was declared dead")


def _fault(error: Exception) -> ActorFaultError:
    return ActorFaultError("".join(traceback.format_exception(error)).rstrip())


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
