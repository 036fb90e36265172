"""The status of a run whose directory is not on this machine, from its mailbox in the cluster (``control_actor``).

Invariants: every call to Ray runs in a thread of its own that is waited for so long and no longer, for Ray's own connecting cannot be
bounded; a thread that is still there then is left behind, and ends with this process. One call is under way at a time.
A mailbox that is lost may have a successor, for a driver that lives makes a new one (``ClusterMailbox``): the name is looked up again for
``AGAIN_S`` before a run is called gone.
Closing rule: leaving the block leaves the cluster, if this joined it, within a deadline.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from actors import cluster
from actors.asking import within
from actors.control_actor import NAMESPACE, actor_name
from rayeval.exceptions import PlacementError, RefusedError, StoppedError
from rayeval.schemas import JsonObject

JOIN_S = 30.0
ANSWER_S = 10.0
AGAIN_S = 30.0
"""A driver that has lost its mailbox waits 10 s and needs a moment for the next one."""
_AGAIN_EVERY_S = 1.0
_LEAVE_S = 10.0

AskStatus = Callable[[int, float], JsonObject]
"""(number of the last answer, seconds to wait for a newer one) -> ``ControlBox.status``."""


class RunGoneError(StoppedError):
    """The run answers no more: it has ended, or its driver has."""


@contextlib.contextmanager
def far_status(
    address: str, run: str, *, join_s: float = JOIN_S, answer_s: float = ANSWER_S, again_s: float = AGAIN_S
) -> Iterator[AskStatus]:
    """Join the cluster at ``address`` for the length of the block; -> a function that asks the run of this name for its status.

    Raises PlacementError (the cluster does not answer in time), RefusedError (no such run on it). The function raises RunGoneError
    once the run has been gone for ``again_s``, PlacementError when nothing answers for so long. The numbers of a new mailbox begin anew.
    """
    watcher = uuid.uuid4().hex
    actor: Any = None

    def late(limit_s: float, hint: str = "") -> PlacementError:
        return PlacementError(f"the Ray cluster at {address} did not answer within {limit_s:g} s{hint}")

    with _quiet_core():
        joined = within(join_s, lambda: cluster.join(address, 1), late(join_s, "; give HOST:PORT of the head (its GCS, 6379)"))

    def find() -> Any:
        try:
            return ray.get_actor(actor_name(run), namespace=NAMESPACE)
        except ValueError:
            raise RefusedError(f"{run} is not running: no run of this name is on the cluster at {address}") from None

    def asked(actor: Any, after: int, wait_s: float) -> JsonObject:
        limit = wait_s + answer_s

        def get() -> JsonObject:
            try:
                answer: JsonObject = ray.get(actor.status.remote(after, wait_s, watcher), timeout=limit)
            except GetTimeoutError:
                raise PlacementError(f"{run}: its mailbox on the cluster at {address} did not answer within {limit:g} s") from None
            except RayError as error:
                raise RunGoneError(f"{run} has ended, or its driver has ({type(error).__name__})") from None
            return answer

        return within(limit + answer_s, get, late(limit + answer_s))

    def ask(after: int, wait_s: float) -> JsonObject:
        nonlocal actor
        lost_at: float | None = None
        while True:
            try:
                return asked(actor, after, wait_s)
            except (RunGoneError, PlacementError):
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                if now - lost_at >= again_s:
                    raise
            time.sleep(min(_AGAIN_EVERY_S, again_s))
            with contextlib.suppress(RefusedError, PlacementError):
                found = within(answer_s, find, late(answer_s))
                if found._actor_id != actor._actor_id:
                    actor, after = found, 0

    try:
        actor = within(answer_s, find, late(answer_s))
        yield ask
    finally:
        if joined.ours:
            with contextlib.suppress(PlacementError):
                within(_LEAVE_S, cluster.leave, PlacementError("Ray cannot be left"))


@contextlib.contextmanager
def _quiet_core() -> Iterator[None]:
    """Ray's core prints each of its attempts to connect on file descriptor 2 whatever its log level; one line is to tell the outcome."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
