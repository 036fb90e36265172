from pathlib import Path

import pytest

from tests.acceptance.rows import actor_ends
from tests.acceptance.servers import DemoPair

pytestmark = pytest.mark.ray


def test_a_killed_actor_is_replaced_and_its_jobs_run_again(tmp_path: Path, ray_session: None) -> None:
    actor_ends(DemoPair, tmp_path, 40)


@pytest.mark.slow
def test_a_stopped_actor_is_replaced(tmp_path: Path, ray_session: None) -> None:
    actor_ends(DemoPair, tmp_path, 40, stop=True)
