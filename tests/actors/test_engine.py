from pathlib import Path

import pytest

from actors.engine import RunRequest, run
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.exceptions import EndpointsOutError
from rayeval.plan import make_plan
from rayeval.schemas import ExitCode, JsonObject
from rayeval.store import RunDirectory, read_status
from tests.actors.plans import write_config


class Ended(NoDisplay):
    """Keeps what the run ended with."""

    def __init__(self) -> None:
        self.outcomes: list[JsonObject] = []

    def end(self, outcome: JsonObject) -> None:
        self.outcomes.append(outcome)


def test_an_error_before_the_first_episode_ends_status_and_display(tmp_path: Path) -> None:
    nothing_there = {"model.provider": "openai_chat", "model.base_url": "http://127.0.0.1:9/v1"}
    loaded = load_config(write_config(tmp_path, overrides=nothing_there))
    display = Ended()
    with pytest.raises(EndpointsOutError):
        run(RunRequest(loaded, make_plan(loaded), tmp_path / "run"), display)
    (outcome,) = display.outcomes
    status = read_status(RunDirectory(tmp_path / "run"))
    assert status == outcome["status"]
    assert (status["state"], status["exit_code"]) == ("ended", ExitCode.STOPPED)
    assert "nothing answers there" in status["reason"]
