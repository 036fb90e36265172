"""What keeps a run from getting on, in words."""

from typing import Any

import pytest

from rayeval.cli.stuck import troubles
from tests.cli.statuses import RUNNING

NOBODY: dict[str, Any] = {
    **RUNNING,
    "in_flight": 0,
    "queued": 229,
    "elapsed_s": 40,
    "slowest": [],
    "notes": [],
    "model": [],
    "environment": [],
}


def actors(*states: tuple[str, float | None]) -> list[dict[str, Any]]:
    return [{"id": f"1-actor-{n:03d}", "state": state, "lag_s": 0.0, "starting_s": since} for n, (state, since) in enumerate(states)]


def test_a_run_whose_actors_have_found_no_place_says_so_and_what_they_need() -> None:
    found = troubles({**NOBODY, "actors": actors(("starting", 50.0), ("starting", 31.0))})
    assert found == ["no actor runs and 229 wait; 2 have been starting for 50 s: each needs a free CPU on one node (`ray status`)"]
    (one, dead) = troubles({**NOBODY, "actors": actors(("dead", None), ("starting", 21.0))})
    assert one.startswith("no actor runs and 229 wait; 1 has been starting for 21 s: ") and dead.startswith("1-actor-000 is dead")


@pytest.mark.parametrize("states", [[("starting", 5.0)], [("starting", 50.0), ("working", None)], [("starting", 50.0), ("slow", None)], []])
def test_actors_that_have_just_been_asked_for_and_those_beside_others_are_no_trouble(states: list[tuple[str, float | None]]) -> None:
    assert not any("no actor runs" in text for text in troubles({**NOBODY, "actors": actors(*states)}))


def test_a_status_of_the_version_before_has_no_such_figure() -> None:
    assert troubles({**NOBODY, "actors": [{"id": "a", "state": "starting"}]}) == []
