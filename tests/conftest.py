"""Fixtures of the whole suite. The environment is set before anything imports ray."""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from rayeval.demo import DemoServers, start_demo
from rayeval.transport import AiohttpTransport

# a busy machine is no finding
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def demo_servers() -> Iterator[DemoServers]:
    """Demo servers without faults, 64 slots, shared by the whole session: a test leaves no lease behind."""
    with start_demo(slots=64) as servers:
        yield servers


@pytest.fixture
def start_demo_with() -> Iterator[Callable[..., DemoServers]]:
    """A factory of demo servers with options of the test's own, closed after it."""
    with ExitStack() as stack:

        def start(**options: Any) -> DemoServers:
            return stack.enter_context(start_demo(**options))

        yield start


@pytest.fixture
async def transport() -> AsyncIterator[AiohttpTransport]:
    made = AiohttpTransport()
    yield made
    await made.aclose()
