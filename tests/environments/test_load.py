from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from rayeval.config import Config
from rayeval.environments import EnvironmentTimeouts, FakeEnvironment, ShopSimulator, load_environment
from rayeval.exceptions import ConfigurationError
from rayeval.models.scripted import ScriptedModel
from rayeval.prompts import PromptBuilder
from rayeval.runtime import AgentRuntime, RuntimeSettings
from rayeval.schemas import EnvironmentIdentity, EpisodeJob
from rayeval.skills import NoSkills

DOCS = Path(__file__).parents[2] / "docs" / "environments.md"
URLS = ["http://a:1", "http://b:2"]


def config(kind: str, **options: Any) -> Config:
    return Config.model_validate(
        {
            "experiment": {"name": "x", "output_dir": "/runs"},
            "tasks": {"split_file": "/splits/demo.json", "split": "val"},
            "environment": {"kind": kind, "base_url": URLS, "options": options},
            "prompt": {"system_prompt": "p"},
            "model": {"name": "m", "base_url": "http://m:1/v1"},
            "execution": {"reset_timeout_s": 11, "step_timeout_s": 12},
        }
    )


def test_shopsimulator_takes_servers_and_time_outs() -> None:
    shop = load_environment(config("shopsimulator"), True, URLS)
    assert isinstance(shop, ShopSimulator)
    assert shop.servers == tuple(URLS)
    assert shop.identity()["persona"] is True
    assert (shop.timeouts.reset_timeout_s, shop.timeouts.step_timeout_s) == (11, 12)


def test_a_dotted_path_gets_servers_persona_options_and_time_outs() -> None:
    fake = load_environment(config("rayeval.environments.FakeEnvironment", slots=3), True, URLS)
    assert isinstance(fake, FakeEnvironment)
    assert (fake.servers, fake.persona, fake.slots) == (tuple(URLS), True, 3)
    assert fake.timeouts == EnvironmentTimeouts(reset_timeout_s=11, step_timeout_s=12)


class Half:
    def __init__(self, **given: Any) -> None:
        """Takes everything and can do nothing."""

    def identity(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("no_such_package.Env", "no_such_package"),
        ("rayeval.environments.Missing", "Missing"),
        ("rayeval.schemas.TRACE_SCHEMA", "no class"),
        (f"{__name__}.Half", "capacity, open, release"),
    ],
)
def test_a_path_that_leads_to_no_environment_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as raised:
        load_environment(config(kind), False, URLS)
    assert raised.value.field == "environment.kind"


async def test_the_example_of_the_docs_plays_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    module = ModuleType("guess_from_the_docs")
    exec(compile(blocks[0], str(DOCS), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    environment = load_environment(config("guess_from_the_docs.GuessEnvironment", slots=2), False, URLS)
    capacity = await environment.capacity()
    assert [c.slots for c in capacity] == [2, 2]
    runtime = AgentRuntime(ScriptedModel(), PromptBuilder("p"), NoSkills(), RuntimeSettings(), {"plan_fingerprint": "f"})
    job, words = EpisodeJob(0, 0, 0, "val"), []
    finished = await runtime.run(
        job,
        1,
        environment.open(job, URLS[0], lambda word, lease: words.append(word), lambda: None),
        endpoint=None,
        server=URLS[0],
        environment_identity=environment.identity(),
        pinned=capacity[0].identity,
    )
    trace = orjson.loads(finished.line)
    assert (trace["status"], trace["error"], trace["final"]["reward"]) == ("completed", None, 1.0)
    assert words == ["held", "ended"]
    assert finished.identity == EnvironmentIdentity("guess-1", "guess-v1", "guess-r1")


def test_a_class_that_cannot_be_made_is_told_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match="JSONDecoder could not be made"):
        load_environment(config("json.JSONDecoder"), False, URLS)
