"""Which environment servers answer, as one actor sees it.

A server is asked once an attempt on it has failed as a lost server would make it fail. While it does not answer it gets no new episode;
it is asked again each second and put back when it answers. Invariants: one loop owns this; at most one question to a server is open.
Closing rule: ``aclose`` ends the questions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from rayeval.environments import Environment

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 5.0


class ServerWatch:
    """Servers that are out, and the questions that put them back."""

    def __init__(self, environment: Environment, on_back: Callable[[], None]) -> None:
        ask_one = getattr(environment, "server_capacity", None)
        self._ask: Callable[[str], Awaitable[object]] = ask_one if ask_one is not None else (lambda _: environment.capacity())
        self._on_back = on_back
        self._since: dict[str, float] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}

    def is_out(self, server: str) -> bool:
        """Whether the server was asked and did not answer."""
        return server in self._since

    def out(self) -> dict[str, float]:
        """For each server that is out: since how many seconds."""
        now = time.monotonic()
        return {server: now - since for server, since in self._since.items()}

    def suspect(self, server: str) -> None:
        """An attempt failed as if the server were gone: ask it."""
        if server not in self._questions:
            task = asyncio.get_running_loop().create_task(self._asking(server), name=f"ask {server}")
            self._questions[server] = task
            task.add_done_callback(lambda _: self._questions.pop(server, None))

    async def aclose(self) -> None:
        """End the questions."""
        tasks = list(self._questions.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=ASK_TIMEOUT_S)

    async def _asking(self, server: str) -> None:
        while True:
            answers = False
            with contextlib.suppress(Exception):  # also whatever a user's class raises: no answer is no answer
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    await self._ask(server)
                    answers = True
            if answers:
                if self._since.pop(server, None) is not None:
                    self._on_back()
                return
            self._since.setdefault(server, time.monotonic())
            await asyncio.sleep(ASK_EVERY_S)
