import importlib.util
from collections.abc import Iterator

import pytest

from tests.acceptance.job import PARTS, Row, row

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(importlib.util.find_spec("aiohttp_cors") is None, reason="no job server: pip install '.[cluster]'"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Row]:
    with row() as made:
        yield made


@pytest.mark.parametrize("part", PARTS)
def test_job(cluster: Row, part: str) -> None:
    assert getattr(cluster, part)()
