import pytest

from rayeval.stages import STAGES, EpisodeMark, read_stage


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("pacing", ("pacing", 0)),
        ("reset", ("resetting", 0)),
        ("skill_selection", ("resetting", 0)),
        ("model_step_1", ("model", 1)),
        ("model_step_30", ("model", 30)),
        ("environment_step_7", ("environment", 7)),
        ("policy_termination_step_3", ("environment", 3)),
        ("action_limit_termination", ("environment", 0)),
        ("release", ("releasing", 0)),
        ("of another version", ("environment", 0)),
        ("model_step_x", ("environment", 0)),
    ],
)
def test_what_the_runtime_writes_is_read(text: str, read: tuple[str, int]) -> None:
    assert read_stage(text) == read and read[0] in STAGES


def test_an_episode_begins_by_waiting_for_its_turn() -> None:
    assert read_stage(EpisodeMark().stage)[0] == "pacing"
