"""Waiting in tests for what has no event of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Return once ``condition()`` is true; raises TimeoutError as a hang guard."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (conditions on a server's side have no event)
            await asyncio.sleep(0.002)
