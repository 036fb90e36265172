from pathlib import Path

import pytest

from tests.acceptance.rows_sameness import real_load
from tests.acceptance.servers import DemoPair


@pytest.mark.slow
@pytest.mark.ray
def test_every_reset_is_released_once(tmp_path: Path) -> None:
    real_load(DemoPair, tmp_path, 40)
