"""Environments in process that a driver and its local actors share, found by dotted path as a user's own class is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayeval.environments import FakeEnvironment

KIND = "tests.actors.worlds.SharedShop"
_worlds: dict[str, FakeEnvironment] = {}


class SharedShop(FakeEnvironment):
    """``options: {world: NAME}`` names a world made by ``new_world``; every construction gives that one."""

    def __new__(cls, base_urls: Sequence[str] = (), persona: bool = False, options: Any = None, timeouts: Any = None) -> Any:
        return _worlds[options["world"]]


def new_world(name: str, servers: Sequence[str], **options: Any) -> FakeEnvironment:
    """A fresh world under ``name``; ``hook`` and ``options`` as ``FakeEnvironment`` takes them."""
    hook = options.pop("hook", None)
    world = FakeEnvironment(servers, options=options or None, hook=hook)
    world.aclose = _stay_open  # type: ignore[method-assign]
    _worlds[name] = world
    return world


async def _stay_open() -> None:
    """One of several owners has closed it."""
