from __future__ import annotations

from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.schemas import ModelOutput, ProtocolError, ToolCall
from rayeval.tools import PageWithoutToolsError, action_of, protocol_error_of, protocol_feedback, sent_form, tools_for

HOME = {"search_available": True, "actions": []}
PAGE = {"search_available": False, "actions": ["back to search", "颜色=白", "buy now"]}
BOTH = {"search_available": True, "actions": ["a"]}


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("c1", name, arguments, orjson.dumps(arguments).decode())


def output(*calls: ToolCall, content: str | None = None, error: ProtocolError | None = None) -> ModelOutput:
    return ModelOutput(content, None, calls, "tool_calls", {}, None, 1.0, protocol_error=error)


def parameters(state: dict[str, Any], name: str) -> dict[str, Any]:
    return next(t["function"]["parameters"] for t in tools_for(state).tools if t["function"]["name"] == name)


def test_tools_are_those_of_the_page() -> None:
    assert tools_for(HOME).names == ("search",)
    assert tools_for(PAGE).names == ("click",)
    assert tools_for(BOTH).names == ("search", "click")
    assert parameters(PAGE, "click")["properties"]["value"] == {"type": "string", "enum": PAGE["actions"]}


@pytest.mark.parametrize("state", [HOME, PAGE, BOTH])
@pytest.mark.parametrize("schema", ["dynamic", "static"])
def test_schemas_are_strict_and_the_bytes_are_the_tools(state: dict[str, Any], schema: Any) -> None:
    offered = tools_for(state, schema)
    assert orjson.loads(offered.encoded) == offered.tools
    for tool in offered.tools:
        inner = tool["function"]["parameters"]
        jsonschema.Draft7Validator.check_schema(inner)
        assert inner["additionalProperties"] is False
        assert list(inner["properties"]) == inner["required"]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({inner["required"][0]: ""}, inner)


def test_static_tools_are_equal_on_every_page_and_name_no_value() -> None:
    assert tools_for(HOME, "static").encoded == tools_for(PAGE, "static").encoded
    assert tools_for(HOME, "static").names == ("search", "click")
    assert b"enum" not in tools_for(PAGE, "static").encoded


def test_a_value_that_is_listed_twice_is_offered_once() -> None:
    assert parameters({"actions": ["b", "a", "b"]}, "click")["properties"]["value"]["enum"] == ["b", "a"]


@pytest.mark.parametrize("schema", ["dynamic", "static"])
@pytest.mark.parametrize(
    "state", [{}, {"search_available": False, "actions": []}, {"actions": "x"}, {"actions": [1]}, {"search_available": 1}]
)
def test_a_page_that_offers_nothing_is_an_error(state: dict[str, Any], schema: Any) -> None:
    with pytest.raises(PageWithoutToolsError):
        tools_for(state, schema)


@pytest.mark.parametrize(
    ("made", "action"),
    [
        (call("search", query="  静音 风扇\n"), "search[静音 风扇]"),
        (call("click", value=" buy now "), "click[buy now]"),
        (call("click", value="not offered"), "click[not offered]"),
        (call("search", query="a]b"), "search[a]b]"),
    ],
)
def test_a_call_becomes_a_canonical_action(made: ToolCall, action: str) -> None:
    assert action_of(made) == action


def test_a_lone_surrogate_in_an_argument_is_replaced() -> None:
    assert action_of(ToolCall("c", "search", {"query": "x\ud800y"}, "")) == "search[x\ufffdy]"


@pytest.mark.parametrize(
    "made",
    [
        call("search"),
        call("search", value="x"),
        call("search", query="x", page=1),
        call("search", query=5),
        call("search", query=None),
        call("search", query=""),
        call("search", query=" \n"),
        call("click", value=["buy now"]),
        call("click", value="　"),
    ],
)
def test_arguments_that_are_not_the_one_text(made: ToolCall) -> None:
    found = action_of(made)
    assert isinstance(found, ProtocolError)
    assert found.code == "invalid_tool_arguments"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (output(call("click", value="x"), error=ProtocolError("unavailable_tool", "m")), "unavailable_tool"),
        (output(), "tool_call_count"),
        (output(content="hello"), "tool_call_count"),
        (output(call("click", value="a"), call("click", value="b")), "tool_call_count"),
        (output(call("click", value="a"), content="I click"), "mixed_content"),
        (output(call("search", query="a")), "unavailable_tool"),
        (output(call("click", value="a"), content=" \n"), None),
        (output(call("click", value="a")), None),
    ],
)
def test_protocol_errors_of_an_answer(answer: ModelOutput, code: str | None) -> None:
    found = protocol_error_of(answer, tools_for(PAGE))
    assert (None if found is None else found.code) == code


@pytest.mark.parametrize(
    ("action", "sent"),
    [
        ("search[<r> fan]", "search[r fan]"),
        ("search[<a> fan]", "search[a fan]"),
        ("search[<c>]", "search[c]"),
        ("search[<R> fan]", "search[R fan]"),
        ("search[ <r>\u3000fan]", "search[ r\u3000fan]"),
        ("SEARCH[<r> fan]", "SEARCH[r fan]"),
        ("search[fan\nAction: search[<r> x]", "search[fan\nAction: search[r x]"),
        ("search[<r>an]", "search[<r>an]"),
        ("search[fan <r> x]", "search[fan <r> x]"),
        ("search[<b> fan]", "search[<b> fan]"),
        ("click[<r>]", "click[<r>]"),
    ],
)
def test_hidden_search_verbs_lose_their_brackets(action: str, sent: str) -> None:
    assert sent_form(action) == sent


@given(st.lists(st.sampled_from(["<r>", "<A>", "<c>", " ", "\n", "\u3000", "]", "x", "Action: search["])).map("".join) | st.text())
def test_no_sent_query_begins_with_a_hidden_verb(query: str) -> None:
    action = action_of(ToolCall("c", "search", {"query": query}, ""))
    if isinstance(action, str):
        first = sent_form(action)[len("search[") : -1].split(maxsplit=1)[0]
        assert first.lower() not in ("<r>", "<a>", "<c>")


def test_feedback_names_the_tools() -> None:
    feedback = protocol_feedback(ProtocolError("tool_call_count", "m"), tools_for(BOTH))
    assert list(feedback) == ["type", "code", "message", "instruction", "available_tools"]
    assert (feedback["type"], feedback["code"], feedback["available_tools"]) == (
        "tool_protocol_error",
        "tool_call_count",
        ["search", "click"],
    )
