from pathlib import Path

import pytest

from actors.engine import RunRequest, run
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.environments.fake import FakeEnvironment
from rayeval.exceptions import EndpointsOutError, InputError
from rayeval.plan import make_plan
from rayeval.schemas import ExitCode, JsonObject, ServerCapacity
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


class Blind(NoDisplay):
    """Cannot be told a status while the run lasts."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        self.asked = 0

    def note(self, level: str, text: str) -> None:
        self.notes.append((level, text))

    def update(self, status: JsonObject) -> None:
        self.asked += 1
        raise ValueError("a terminal that is gone")


def test_a_status_that_cannot_be_told_is_noted_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.telling._STATUS_EVERY_S", 0.05)
    loaded = load_config(write_config(tmp_path, overrides={"environment.options": {"delay_s": 0.02}}))
    display = Blind()
    outcome = run(RunRequest(loaded, make_plan(loaded), tmp_path / "run", show=True), display)
    assert outcome.exit_code == ExitCode.OK and outcome.status["done"] == 8
    assert display.asked > 1
    (said,) = [text for level, text in display.notes if level == "error"]
    assert said.startswith("the status could not be told") and "a terminal that is gone" in said


class Nameless(FakeEnvironment):
    """Names no server."""

    async def capacity(self) -> list[ServerCapacity]:
        return []


def test_an_environment_that_needs_no_url_runs_without_one(tmp_path: Path) -> None:
    loaded = load_config(write_config(tmp_path, overrides={"environment.base_url": None}))
    outcome = run(RunRequest(loaded, make_plan(loaded), tmp_path / "run", show=True), NoDisplay())
    assert outcome.exit_code == ExitCode.OK and outcome.status["done"] == 8


def test_an_environment_without_a_server_is_told_as_such(tmp_path: Path) -> None:
    kind = {"environment.base_url": None, "environment.kind": f"{__name__}.Nameless"}
    loaded = load_config(write_config(tmp_path, overrides=kind))
    with pytest.raises(InputError, match=r"environment\.base_url.*leads to no server"):
        run(RunRequest(loaded, make_plan(loaded), tmp_path / "run", show=True), NoDisplay())
