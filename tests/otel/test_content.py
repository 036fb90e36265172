import orjson
import pytest

from rayeval.otel.content import CUT, HISTORY_CHARS, TEXT_CHARS, Content, content_wanted, messages_before
from rayeval.scrub import Scrub
from tests.otel.lines import TOOLS, conversation, step

CONTENT = Content(Scrub())


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("true", True),
        (" TRUE ", True),
        ("1", True),
        ("span_only", True),
        ("SPAN_AND_EVENT", True),
        ("event_only", False),
        ("no_content", False),
        ("false", False),
        ("", False),
        (None, False),
    ],
)
def test_the_variable_asks_for_content_on_spans_or_not(word: str | None, wanted: bool) -> None:
    assert content_wanted(word) is wanted


def test_a_history_in_the_conventions_form() -> None:
    text, left_out = CONTENT.input_messages(conversation(1))
    assert left_out == 0
    assert orjson.loads(text or "") == [
        {"role": "user", "parts": [{"type": "text", "content": "Buy tea."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "call_1", "name": "search", "arguments": {"query": "tea 1"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "result": "page 1"}]},
    ]
    assert orjson.loads(CONTENT.system_instructions(conversation(1)) or "") == [{"type": "text", "content": "Be a shopper."}]


def test_an_answer_in_the_conventions_form() -> None:
    (message,) = orjson.loads(CONTENT.output_messages(step()["model"]))
    assert message == {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "Tea it is."},
            {"type": "tool_call", "id": "call_1", "name": "search", "arguments": {"query": "tea 1"}},
        ],
        "finish_reason": "tool_calls",
    }
    assert orjson.loads(CONTENT.tool_definitions(TOOLS) or "") == TOOLS


def test_a_long_text_is_cut_and_a_long_history_keeps_its_newest() -> None:
    page = "p" * (TEXT_CHARS + 1)
    cut = CONTENT.result(page) or ""
    assert len(cut) == TEXT_CHARS and cut.endswith(CUT)
    long = [{"role": "user", "content": f"{i} {page}"} for i in range(20)]
    text, left_out = CONTENT.input_messages(long)
    kept = orjson.loads(text or "")
    assert len(text or "") <= HISTORY_CHARS + 100 and left_out == 20 - len(kept) > 0
    assert kept[-1]["parts"][0]["content"].startswith("19 ") and kept[0]["parts"][0]["content"].startswith(f"{left_out} ")


def test_what_a_turn_was_asked_with_is_found_again() -> None:
    """The four ways in which the runtime goes on after an answer."""
    two_calls = step(1, action=None, environment=None, protocol_error={"code": "tool_call_count", "message": "m"})
    two_calls["model"] = {**two_calls["model"], "tool_calls": two_calls["model"]["tool_calls"] * 2}
    visible = step(3, action=None, environment=None, protocol_error={"code": "tool_call_count", "message": "m"})
    visible["model"] = {**visible["model"], "tool_calls": [], "content": "I think"}
    blank = step(4, action=None, environment=None, protocol_error={"code": "empty_response", "message": "m"})
    blank["model"] = {**blank["model"], "tool_calls": [], "content": " "}
    said = [{"role": "user", "content": str(i)} for i in range(40)]
    steps = [two_calls, step(2), visible, blank, step(5)]
    assert messages_before(said, steps) == [2, 2 + 3, 5 + 2, 7 + 2, 9 + 1]
    assert messages_before(said[:6], steps) == [2, 5, 6, 6, 6]
