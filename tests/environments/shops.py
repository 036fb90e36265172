"""Simulators on servers of the test's own, and answers by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from rayeval.environments import EnvironmentEpisode, EnvironmentTimeouts, ShopSimulator
from rayeval.schemas import EpisodeJob, Lease
from rayeval.transport import AiohttpTransport, FakeTransport, HttpResponse, SentRequest
from tests.environments.shop_server import HOME, ShopServer

JOB = EpisodeJob(3, 0, 7, "val")
QUICK = EnvironmentTimeouts(reset_timeout_s=1.0, step_timeout_s=5, release_timeout_s=1, drain_timeout_s=5)
URL = "http://shop.test:5700"


class Leases:
    """A lease listener that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Lease]] = []

    def __call__(self, event: str, lease: Lease) -> None:
        self.events.append((event, lease))

    @property
    def words(self) -> list[str]:
        return [event for event, _ in self.events]


def free() -> None:
    """A guard that lets everything pass."""


@contextlib.asynccontextmanager
async def simulator(*servers: ShopServer, timeouts: EnvironmentTimeouts = QUICK, persona: bool = False) -> AsyncIterator[ShopSimulator]:
    shop = ShopSimulator([s.url for s in servers], transport=AiohttpTransport(), persona=persona, timeouts=timeouts)
    try:
        yield shop
    finally:
        await shop.aclose()


def answering(*answers: HttpResponse | Exception) -> FakeTransport:
    """A transport that gives these answers in turn, the last one for ever."""
    left = list(answers)

    def handler(sent: SentRequest) -> HttpResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return FakeTransport(handler)


def ok(**fields: Any) -> HttpResponse:
    return HttpResponse(200, {}, orjson.dumps({"result": fields}))


def failing(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, {}, orjson.dumps({"result": {"error": text}}))


LEASE_FIELDS: dict[str, Any] = {"env_idx": 1, "lease_id": "ab" * 16}
PAGE: dict[str, Any] = {"observation": "页面", "observation_state": HOME}
RESET: dict[str, Any] = {**LEASE_FIELDS, **PAGE, "task_instruction": "买", "idx": 3}
RELEASED = ok(message="Environment 1 has been released")


def episode_on(transport: FakeTransport, leases: Leases | None = None, guard: Callable[[], None] = free) -> EnvironmentEpisode:
    shop = ShopSimulator([URL], transport=transport, timeouts=QUICK)
    return shop.open(JOB, URL, leases or Leases(), guard)
