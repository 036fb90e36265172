from collections.abc import Iterator

import pytest

from tests.actors.sessions import shared_ray


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """The session's Ray."""
    with shared_ray():
        yield
