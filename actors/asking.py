"""What Ray may never come back from while the head of the cluster is gone: questions to it, orders to end an actor, a whole job.

A question of Ray's state (which nodes there are, what is free) to a head that does not answer blocks its thread, and after 60 s Ray's core
ends this process, whatever its settings say. So it is asked only when the head takes a connection at this moment, and in a thread of its
own that nobody joins: the default executor's are joined at the end of the loop. ``within`` is the same for callers without a loop.
Closing rule: ``cluster.leave`` first waits, for some seconds, until the orders to end an actor are sent (``endings_are_sent``); any other
thread that is still there then ends with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray

CONNECT_S = 3.0
T = TypeVar("T")
_endings: set[threading.Thread] = set()
_endings_lock = threading.Lock()


class HeadSilentError(TimeoutError):
    """The head takes no connection, or has not answered in time."""


async def takes_connections(address: str, within_s: float = CONNECT_S) -> bool:
    """Whether anything listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    return False


async def ask_head(call: Callable[[], T], timeout_s: float) -> T:
    """What ``call`` gives or raises, from a thread. Raises HeadSilentError."""
    address = ray.get_runtime_context().gcs_address
    if not await takes_connections(address, min(CONNECT_S, timeout_s)):
        raise HeadSilentError(f"the head of the Ray cluster ({address}) does not answer")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return  # nobody waits any more
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def ask() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=ask, name="ask-head", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        raise HeadSilentError(f"the head of the Ray cluster ({address}) has not answered within {timeout_s:g} s") from None


def within(limit_s: float, call: Callable[[], T], late: Exception) -> T:
    """What ``call`` gives or raises, from a thread; ``late`` is raised when that takes longer than ``limit_s``.

    A signal's exception (KeyboardInterrupt) reaches the caller meanwhile, whatever ``call`` hangs in.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise late
    return results[0]


def end_actor(actor: Any) -> None:
    """``ray.kill`` from a thread of its own, for it does not come back while the head is gone. Waits for nothing, raises nothing."""

    def end() -> None:
        try:
            with contextlib.suppress(Exception):  # Ray is left, or is being left, or the head has ended the actor already
                ray.kill(actor, no_restart=True)
        finally:
            with _endings_lock:
                _endings.discard(threading.current_thread())

    thread = threading.Thread(target=end, name="end-actor", daemon=True)
    with _endings_lock:  # nobody may join it before it has begun
        _endings.add(thread)
        thread.start()


def endings_are_sent(within_s: float) -> bool:
    """Wait for what ``end_actor`` has under way. -> whether it is all sent."""
    deadline = time.monotonic() + within_s
    with _endings_lock:
        threads = tuple(_endings)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
