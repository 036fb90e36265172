from pathlib import Path

import pytest

from tests.acceptance.rows_kill import kill_and_resume
from tests.acceptance.servers import DemoPair

EPISODES = 40


@pytest.mark.ray
def test_a_killed_driver_loses_nothing_it_counted_and_leaves_no_lease(tmp_path: Path) -> None:
    kill_and_resume(DemoPair, tmp_path, EPISODES, marks=(0.4,))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("exclusive", [True, False])
def test_three_kills(tmp_path: Path, exclusive: bool) -> None:
    kill_and_resume(DemoPair, tmp_path, EPISODES, exclusive=exclusive)
