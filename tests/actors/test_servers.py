import asyncio
from typing import Any

import pytest

from actors.recovery import living_capacities
from actors.servers import ServerWatch

SHOP = "http://shop.invalid"


class Odd:
    """An environment whose look at its slots raises what no contract names."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def capacity(self) -> list[Any]:
        self.failures -= 1
        if self.failures >= 0:
            raise LookupError("a client of its own")
        return []


async def test_a_server_is_put_back_whatever_its_class_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.servers.ASK_EVERY_S", 0.01)
    back = asyncio.Event()
    environment: Any = Odd(2)
    watch = ServerWatch(environment, back.set)
    watch.suspect(SHOP)
    async with asyncio.timeout(20.0):
        await back.wait()
    assert not watch.is_out(SHOP) and environment.failures == -1
    await watch.aclose()


async def test_a_look_at_slots_that_fails_oddly_finds_nothing() -> None:
    environment: Any = Odd(1)
    assert await living_capacities(environment, [SHOP]) == []
