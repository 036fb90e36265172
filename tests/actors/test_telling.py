from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson

from actors.progress import Progress
from actors.telling import Telling
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.schemas import ExitCode, JsonObject
from rayeval.store import RunDirectory
from tests.actors.plans import write_config


class Broken(NoDisplay):
    """A display that is gone."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def note(self, level: str, text: str) -> None:
        self.notes.append((level, text))

    def update(self, status: JsonObject) -> None:
        raise ValueError("a terminal that is gone")


def telling(root: Path, display: NoDisplay, status: Any) -> tuple[Telling, list[JsonObject], list[JsonObject]]:
    config = load_config(write_config(root)).config
    made = Telling(RunDirectory(root / "run").create(), config, display)
    published: list[JsonObject] = []
    metered: list[JsonObject] = []
    made.begin(cast(Progress, SimpleNamespace(status=status)), published.append)
    made._metrics = cast(Any, SimpleNamespace(tell=metered.append, end=lambda status, unaccounted: metered.append(status)))
    return made, published, metered


def test_what_one_listener_cannot_bear_the_others_hear(tmp_path: Path) -> None:
    display = Broken()
    made, published, metered = telling(tmp_path, display, lambda state: {"state": state})
    made.tell("running")
    made.tell("running")
    assert published == metered == [{"state": "running"}] * 2
    assert orjson.loads((tmp_path / "run" / "status.json").read_bytes()) == {"state": "running"}
    ((level, text),) = display.notes
    assert level == "error" and text.startswith("the status could not be told") and text.endswith("ValueError: a terminal that is gone")


def test_a_status_that_cannot_be_made_is_noted_once_and_the_end_is_told(tmp_path: Path) -> None:
    def status(state: str) -> JsonObject:
        if state != "ended":
            raise KeyError("in_flight")
        return {"state": state}

    display = Broken()
    made, published, metered = telling(tmp_path, display, status)
    made.tell("running")
    made.tell("running")
    assert not published and len(display.notes) == 1
    assert made.end(ExitCode.REFUSED, "a cap", {}) == {"state": "ended", "exit_code": 4, "reason": "a cap"}
    assert orjson.loads((tmp_path / "run" / "status.json").read_bytes())["exit_code"] == 4 and len(metered) == 1
