import gzip
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.models import Scrubber, call, completion, read_answer
from rayeval.models._answer import DEEPEST, RAW_JSON_BYTES, RAW_TEXT_CHARS
from rayeval.schemas import ModelOutput

KEY = "sk-answer-0123456789"


def read(body: bytes, offered: tuple[str, ...] = ("search", "click"), key: str | None = None) -> ModelOutput:
    return read_answer(body, offered, Scrubber(key), 1.0)


def body(**message: Any) -> bytes:
    return completion({"role": "assistant", **message})


def entry(**changes: Any) -> dict[str, Any]:
    function = {"name": "click", "arguments": '{"value": "a"}'}
    function.update(changes.pop("function", {}))
    return {"id": "c1", "type": "function", "function": function, **changes}


def test_a_good_call() -> None:
    message = call("click", {"value": "红色"}, call_id="c9", reasoning="because")
    output = read(completion({**message, "content": " \n"}, usage={"prompt_tokens": 5}))
    assert output.protocol_error is None and output.policy_failure is None and output.raw_response is None
    assert output.tool_calls == (("c9", "click", {"value": "红色"}, '{"value":"红色"}'),)
    assert (output.content, output.reasoning, output.finish_reason) == (" \n", "because", "tool_calls")
    assert output.usage == {"prompt_tokens": 5} and output.response_id == "scripted"
    assert output.metadata == {"model": "scripted"}


GOOD_CALL = entry()
REJECTED = {
    "empty": (b"", "invalid_json_response"),
    "html": (b"<html><body>502 Bad Gateway</body></html>", "invalid_json_response"),
    "event stream": (b'data: {"choices": []}\n\ndata: [DONE]\n\n', "invalid_json_response"),
    "truncated": (body(tool_calls=[GOOD_CALL])[:-20], "invalid_json_response"),
    "latin-1": ('{"choices": "é"}'.encode("latin-1"), "invalid_json_response"),
    "utf-16": ('{"choices": []}'.encode("utf-16"), "invalid_json_response"),
    "byte order mark": (b"\xef\xbb\xbf{}", "invalid_json_response"),
    "invalid utf-8": (b'{"choices": "\xff\xfe"}', "invalid_json_response"),
    "NaN": (b'{"choices": NaN}', "invalid_json_response"),
    "infinity": (b'{"choices": 1e999}', "invalid_json_response"),
    "lone surrogate": (b'{"id": "\\ud800", "choices": []}', "invalid_json_response"),
    "two documents": (b"{}{}", "invalid_json_response"),
    "beyond the parser's depth": (b"[" * 5000 + b"]" * 5000, "invalid_json_response"),
    "beyond our depth": (b'{"choices":' + b"[" * DEEPEST + b"]" * DEEPEST + b"}", "invalid_json_response"),
    "gzip unannounced": (gzip.compress(b"{}"), "invalid_json_response"),
    "list": (b"[]", "invalid_response_body"),
    "null": (b"null", "invalid_response_body"),
    "number": (b"123456789012345678901234567890", "invalid_response_body"),
    "string": (b'"choices"', "invalid_response_body"),
    "no choices": (b'{"error": {"message": "overloaded"}}', "missing_choices"),
    "choices are an object": (b'{"choices": {}}', "missing_choices"),
    "choices are empty": (b'{"choices": []}', "missing_choices"),
    "choices twice, the last counts": (b'{"choices": [{"message": {}}], "choices": []}', "missing_choices"),
    "choice is a string": (b'{"choices": ["text"]}', "invalid_choice"),
    "no message": (b'{"choices": [{"text": "x"}]}', "invalid_message"),
    "message is a list": (b'{"choices": [{"message": []}]}', "invalid_message"),
    "content is a list": (body(content=[{"type": "text", "text": "x"}]), "invalid_message"),
    "calls are an object": (body(tool_calls={"0": GOOD_CALL}), "invalid_tool_calls"),
    "call is a string": (body(tool_calls=["click"]), "invalid_tool_call"),
    "call of another type": (body(tool_calls=[entry(type="custom")]), "invalid_tool_call"),
    "function is text": (body(tool_calls=[{"id": "1", "type": "function", "function": "f"}]), "missing_function"),
    "id is a number": (body(tool_calls=[entry(id=7)]), "missing_tool_call_id"),
    "id is empty": (body(tool_calls=[entry(id="")]), "missing_tool_call_id"),
    "no name": (body(tool_calls=[entry(function={"name": None})]), "missing_tool_name"),
    "arguments are an object": (body(tool_calls=[entry(function={"arguments": {}})]), "invalid_arguments_type"),
    "arguments are null": (body(tool_calls=[entry(function={"arguments": None})]), "invalid_arguments_type"),
    "arguments are empty": (body(tool_calls=[entry(function={"arguments": ""})]), "invalid_arguments_json"),
    "arguments are cut": (body(tool_calls=[entry(function={"arguments": '{"value'})]), "invalid_arguments_json"),
    "arguments hold NaN": (body(tool_calls=[entry(function={"arguments": '{"v":NaN}'})]), "invalid_arguments_json"),
    "arguments are deep": (
        body(tool_calls=[entry(function={"arguments": '{"v":' + "[" * 150 + "]" * 150 + "}"})]),
        "invalid_arguments_json",
    ),
    "arguments are a list": (body(tool_calls=[entry(function={"arguments": "[1]"})]), "invalid_arguments_object"),
    "another tool": (body(tool_calls=[entry(function={"name": "buy" * 99})]), "unavailable_tool"),
    "two calls": (body(tool_calls=[GOOD_CALL, GOOD_CALL]), "tool_call_count"),
    "two calls and text": (body(content="x", tool_calls=[GOOD_CALL, GOOD_CALL]), "tool_call_count"),
    "text alone": (body(content="Action: click[a]"), "tool_call_count"),
    "text alone, calls empty": (body(content="x", tool_calls=[]), "tool_call_count"),
    "text and a call": (body(content="I click.", tool_calls=[GOOD_CALL]), "mixed_content"),
    "nothing": (body(content=None), "empty_response"),
    "blank": (body(content=" \n\t", tool_calls=None), "empty_response"),
    "reasoning alone": (body(content="", reasoning_content="hmm"), "empty_response"),
    "the old function_call": (body(content=None, function_call={"name": "click"}), "empty_response"),
    "empty message": (b'{"choices": [{"message": {}}]}', "empty_response"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_each_broken_answer_has_one_code(name: str) -> None:
    given_body, code = REJECTED[name]
    output = read(given_body)
    assert output.protocol_error is not None and output.protocol_error.code == code
    assert output.policy_failure is None and output.raw_response is not None
    assert "\n" not in output.protocol_error.message and len(output.protocol_error.message) < 300
    orjson.dumps(output.raw_response)


def test_the_first_failing_check_wins() -> None:
    ladder: list[tuple[dict[str, Any], str]] = [
        ({"type": "x", "function": 1, "id": 1}, "invalid_tool_call"),
        ({"type": "function", "function": 1, "id": 1}, "missing_function"),
        ({"type": "function", "function": {"arguments": 1}, "id": 1}, "missing_tool_call_id"),
        ({"type": "function", "function": {"arguments": 1}, "id": "c"}, "missing_tool_name"),
        ({"type": "function", "function": {"arguments": 1, "name": "zz"}, "id": "c"}, "invalid_arguments_type"),
        ({"type": "function", "function": {"arguments": "[", "name": "zz"}, "id": "c"}, "invalid_arguments_json"),
        ({"type": "function", "function": {"arguments": "[]", "name": "zz"}, "id": "c"}, "invalid_arguments_object"),
        ({"type": "function", "function": {"arguments": "{}", "name": "zz"}, "id": "c"}, "unavailable_tool"),
    ]
    for broken, code in ladder:
        error = read(body(content="text too", tool_calls=[broken, GOOD_CALL])).protocol_error
        assert error is not None and error.code == code


def cut(**message: Any) -> ModelOutput:
    return read(completion({"role": "assistant", **message}, finish_reason="length"))


def test_length_with_one_good_call_is_an_answer() -> None:
    output = cut(tool_calls=[GOOD_CALL])
    assert output.protocol_error is None and output.policy_failure is None and len(output.tool_calls) == 1


def test_length_with_cut_arguments_is_a_protocol_error() -> None:
    output = cut(tool_calls=[entry(function={"arguments": '{"val'})])
    assert output.protocol_error is not None and output.protocol_error.code == "invalid_arguments_json"
    assert output.policy_failure is None


@pytest.mark.parametrize("message", [{"content": "half a sen"}, {"content": None}, {"tool_calls": [GOOD_CALL] * 2}])
def test_length_with_none_or_several_good_calls_ends_the_episode(message: dict[str, Any]) -> None:
    output = cut(**message)
    assert output.protocol_error is None and output.raw_response is not None
    assert output.policy_failure is not None and output.policy_failure.code == "generation_length"


def test_length_with_one_call_and_text_is_mixed_content() -> None:
    error = cut(content="text", tool_calls=[GOOD_CALL]).protocol_error
    assert error is not None and error.code == "mixed_content"


def test_decoded_calls_stay_beside_an_error() -> None:
    broken = entry(function={"arguments": "{"})
    unknown = entry(id="c2", function={"name": "buy"})
    output = read(body(tool_calls=[broken, GOOD_CALL, unknown]))
    assert [c.call_id for c in output.tool_calls] == ["c1", "c2"]
    assert output.protocol_error is not None and output.protocol_error.code == "invalid_arguments_json"


def test_without_tools_no_call_is_available() -> None:
    error = read(body(tool_calls=[GOOD_CALL]), offered=()).protocol_error
    assert error is not None and error.code == "unavailable_tool"


@pytest.mark.parametrize("odd", [None, 7, ["stop"], {"a": 1}, True])
def test_odd_envelopes_do_no_harm(odd: Any) -> None:
    raw = {
        "id": odd,
        "model": odd,
        "usage": odd if not isinstance(odd, dict) else "x",
        "choices": [{"message": {"tool_calls": [GOOD_CALL], "reasoning_content": odd}, "finish_reason": odd}],
    }
    output = read(orjson.dumps(raw))
    assert output.protocol_error is None
    assert (output.usage, output.response_id, output.finish_reason, output.reasoning) == ({}, None, None, None)


def test_reasoning_falls_back() -> None:
    assert read(body(reasoning="r", reasoning_content="rc")).reasoning == "rc"
    assert read(body(reasoning="r", reasoning_content="")).reasoning == "r"
    assert read(body(reasoning="r")).reasoning == "r"


def test_raw_text_is_cut_and_large_json_kept_as_text() -> None:
    assert read(b"x" * 1_000_000).raw_response == "x" * RAW_TEXT_CHARS
    assert read(body(content="x" * 200_000)).raw_response["id"] == "scripted"
    assert isinstance(read(body(content="x" * RAW_JSON_BYTES)).raw_response, str)


def spelled(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


ECHOES = {
    "content": body(content=f"your key is {KEY}"),
    "spelled in escapes": body(content="SECRET").replace(b"SECRET", spelled(KEY).encode()),
    "arguments": body(tool_calls=[entry(function={"arguments": orjson.dumps({"value": KEY}).decode()})]),
    "arguments spelled in escapes": body(tool_calls=[entry(function={"arguments": f'{{"value": "{spelled(KEY)}"}}'})]),
    "id and usage": orjson.dumps({"id": KEY, "usage": {KEY: KEY}, "model": KEY, "choices": []}),
    "not JSON": f"Authorization: Bearer {KEY}".encode(),
    "not JSON, utf-16": f"Authorization: Bearer {KEY}".encode("utf-16-le"),
    "another token": body(content="Authorization: Bearer " + "abcDEF0123456789xyz"),
    "cut JSON, spelled in escapes": f'{{"error": "{spelled(KEY)}'.encode(),
    "across the cut": b"x" * (RAW_TEXT_CHARS - 5) + KEY.encode() + b"y" * 100,
}


@pytest.mark.parametrize("name", ECHOES)
def test_an_echoed_key_is_taken_out(name: str) -> None:
    shown = repr(read(ECHOES[name], key=KEY))
    assert KEY not in shown and KEY[:12] not in shown and "abcDEF" not in shown
    assert KEY not in shown.replace("\\\\", "\\").encode("ascii", "backslashreplace").decode("unicode_escape")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return strategy | json_values


functions = st.fixed_dictionaries(
    {"name": maybe(st.sampled_from(["click", "search", "buy"]))},
    optional={"arguments": maybe(st.sampled_from(['{"value":"a"}', "{", "[]", "{}"]))},
)
entries = st.fixed_dictionaries({"type": maybe(st.just("function")), "function": maybe(functions), "id": maybe(st.text())})
messages = st.fixed_dictionaries(
    {}, optional={"content": maybe(st.text()), "tool_calls": maybe(st.lists(maybe(entries), max_size=3)), "reasoning": json_values}
)
choices = st.fixed_dictionaries({"message": maybe(messages), "finish_reason": maybe(st.sampled_from(["stop", "length"]))})
envelopes = st.fixed_dictionaries(
    {"choices": maybe(st.lists(maybe(choices), max_size=2))}, optional={"id": json_values, "usage": json_values}
)


def holds(output: ModelOutput) -> None:
    orjson.dumps([output.content, output.reasoning, [c._asdict() for c in output.tool_calls], output.finish_reason])
    orjson.dumps([output.usage, output.response_id, output.raw_response, output.metadata])
    assert output.protocol_error is None or output.policy_failure is None
    if output.protocol_error is None and output.policy_failure is None:
        assert len(output.tool_calls) == 1 and not (output.content or "").strip()


@given(st.binary())
def test_no_bytes_raise(noise: bytes) -> None:
    holds(read(noise))


@given(maybe(envelopes))
def test_no_json_raises(value: Any) -> None:
    try:
        encoded = orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, surrogates
        return
    holds(read(encoded))
    holds(read(encoded, key=KEY))


@given(envelopes, st.data())
def test_the_key_never_comes_through(value: Any, data: st.DataObject) -> None:
    try:
        encoded = orjson.dumps(value)
    except TypeError:
        return
    places = [i for i in range(len(encoded)) if encoded[i : i + 1] == b'"']
    if not places:
        return
    where = data.draw(st.sampled_from(places))
    output = read(encoded[: where + 1] + KEY.encode() + encoded[where + 1 :], key=KEY)
    assert KEY not in repr(output)
