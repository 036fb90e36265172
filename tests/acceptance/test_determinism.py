from pathlib import Path

import pytest

from tests.acceptance.rows_kill import torn_resume
from tests.acceptance.rows_sameness import determinism
from tests.acceptance.servers import DemoPair

EPISODES = 40


def test_one_hash_at_any_concurrency_after_a_resume_under_refusals_and_over_two_servers(tmp_path: Path) -> None:
    variants = ("concurrency-1", "concurrency-7", "order-plan", "resume", "refusals", "two-servers")
    determinism(DemoPair, tmp_path, EPISODES, variants, on_ray=False)


@pytest.mark.ray
def test_one_hash_over_two_actors_and_with_one_killed_midway(tmp_path: Path, ray_session: None) -> None:
    determinism(DemoPair, tmp_path, EPISODES, ("actors-2", "actor-killed"))


@pytest.mark.slow
@pytest.mark.ray
def test_one_hash_over_everything(tmp_path: Path, ray_session: None) -> None:
    determinism(DemoPair, tmp_path, EPISODES)


def test_a_file_cut_at_any_byte_runs_to_the_same_end(tmp_path: Path) -> None:
    torn_resume(DemoPair, tmp_path, EPISODES, on_ray=False)
