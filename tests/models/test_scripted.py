import asyncio
import time

import orjson
import pytest

from rayeval.exceptions import EpisodeDeadlineError
from rayeval.models import ChatModel, ModelRequest, ScriptedModel, call, completion
from rayeval.schemas import JsonObject, ModelOutput
from tests.models.servers import TOOLS


def request(deadline_s: float = 60) -> ModelRequest:
    return ModelRequest([b'{"role":"user","content":"hi"}'], TOOLS, 5, time.monotonic() + deadline_s)


async def test_the_script_sees_the_turn() -> None:
    def script(messages: list[JsonObject], tools: object, seed: int) -> JsonObject:
        return call("click", {"value": f"{messages[0]['content']} {seed}"})

    model = ScriptedModel(script)
    assert isinstance(model, ChatModel)
    output = await model.generate(request(), "http://m")
    assert output.tool_calls[0].arguments == {"value": "hi 5"} and output.protocol_error is None
    assert model.requests == [([{"role": "user", "content": "hi"}], TOOLS, 5, "http://m")]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("only text", "tool_call_count"),
        (call("buy", {}), "unavailable_tool"),
        (b"<html>", "invalid_json_response"),
        (completion(call("click", {})), None),
    ],
)
async def test_answers_go_through_the_checks(answer: str | bytes | JsonObject, code: str | None) -> None:
    async def script(*_: object) -> str | bytes | JsonObject:
        return answer

    output = await ScriptedModel(script).generate(request())
    assert (output.protocol_error.code if output.protocol_error else None) == code


async def test_an_output_passes_as_it_is_and_an_error_comes_out() -> None:
    output = ModelOutput(None, None, (), None, {}, None, 0.0)
    assert await ScriptedModel(lambda *_: output).generate(request()) is output

    def broken(*_: object) -> str:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await ScriptedModel(broken).generate(request())


async def test_the_deadline_holds() -> None:
    async def slow(*_: object) -> str:
        await asyncio.sleep(60)
        return ""

    with pytest.raises(EpisodeDeadlineError):
        await ScriptedModel(slow).generate(request(0.05))


@pytest.mark.parametrize("seed", range(4))
async def test_the_default_script_makes_valid_calls(seed: int) -> None:
    search = orjson.loads(orjson.dumps(TOOLS[0]))
    search["function"] = {
        "name": "search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
    model = ScriptedModel()
    output = await model.generate(ModelRequest([b"{}"], [search, *TOOLS], seed, time.monotonic() + 60))
    assert output.protocol_error is None
    assert output.tool_calls[0].name == ("search", "click")[seed % 2]
    await model.aclose()
    assert model.closed
