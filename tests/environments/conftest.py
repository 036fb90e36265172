from collections.abc import AsyncIterator

import pytest

from tests.environments.shop_server import ShopServer


@pytest.fixture
async def server() -> AsyncIterator[ShopServer]:
    async with ShopServer() as shop:
        yield shop
