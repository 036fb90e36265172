from collections.abc import Iterator

import pytest

from tests.acceptance.prometheus import PARTS, Asked, missing, row

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    with row() as made:
        yield made


@pytest.mark.parametrize("part", PARTS)
def test_prometheus(asked: Asked, part: str) -> None:
    assert getattr(asked, part)()
