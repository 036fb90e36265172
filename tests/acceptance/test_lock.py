from pathlib import Path

import pytest

from tests.acceptance.rows_lives import lock, lock_from_another_host
from tests.acceptance.servers import DemoPair


@pytest.mark.ray
def test_a_stopped_holder_keeps_its_run(tmp_path: Path) -> None:
    lock(DemoPair, tmp_path, 40, stopped_s=0.5, takeover=False)


@pytest.mark.slow
@pytest.mark.ray
def test_a_long_stopped_holder_keeps_its_run_and_a_killed_one_does_not(tmp_path: Path) -> None:
    lock(DemoPair, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.ray
def test_a_record_of_another_host_is_taken_over_after_a_minute(tmp_path: Path) -> None:
    lock_from_another_host(DemoPair, tmp_path, 40)
