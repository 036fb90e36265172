import time
from types import SimpleNamespace
from typing import Any

import pytest

import rayeval.models
from rayeval.config import ExecutionSection, ModelSection
from rayeval.exceptions import ConfigurationError
from rayeval.models import ChatModel, ModelRequest, OpenAIChat, ScriptedModel, load_model
from rayeval.transport import FakeTransport, HttpResponse
from tests.models.servers import TOOLS

TRANSPORT = FakeTransport(lambda sent: HttpResponse(200, {}, b""))


def config(provider: str, **model: Any) -> Any:
    section = ModelSection(provider=provider, name="m", base_url="http://h/v1", **model)
    return SimpleNamespace(model=section, execution=ExecutionSection(model_attempts=2, model_timeout_s=9))


class MyModel(ScriptedModel):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = given


class NoModel:
    def __init__(self, **given: Any) -> None:
        pass


def test_openai_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-0123456789")
    built = load_model(config("openai_chat", api_key_env="MY_KEY", checkpoint_id="c"), ["http://h/v1"], TRANSPORT)
    assert isinstance(built, OpenAIChat) and built.identity()["checkpoint_id"] == "c"
    assert built.transport_identity() == {"timeout_seconds": 9, "max_retries": 2, "retry_backoff_seconds": 0.5}


async def test_scripted_runs_long_without_growing() -> None:
    built = load_model(config("scripted"), [], TRANSPORT)
    assert isinstance(built, ScriptedModel)
    await built.generate(ModelRequest([b"{}"], TOOLS, 0, time.monotonic() + 60))
    assert built.requests == []


def test_a_class_of_ones_own() -> None:
    built = load_model(config(f"{__name__}.MyModel"), ["http://h/v1"], TRANSPORT)
    assert isinstance(built, MyModel) and isinstance(built, ChatModel)
    assert built.given["endpoints"] == ("http://h/v1",) and built.given["transport"] is TRANSPORT
    assert built.given["model"].name == "m" and built.given["model_attempts"] == 2


@pytest.mark.parametrize("path", ["no_such_package.Model", f"{__name__}.Missing", f"{__name__}.NoModel"])
def test_what_is_no_model_is_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.provider") as caught:
        load_model(config(path), ["http://h/v1"], TRANSPORT)
    assert path in str(caught.value)


def test_exports_are_there() -> None:
    names = rayeval.models.__all__
    assert len(set(names)) == len(names) and all(hasattr(rayeval.models, name) for name in names)
