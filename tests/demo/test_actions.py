import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.demo.actions import feedback, parse_action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "invalid_format"),
        ("buy[now]", "invalid_format"),
        ("click[a", "invalid_format"),
        ("search[a\nb]", "invalid_format"),
        (r"search[a\nb]", "invalid_format"),
        ("search[]", "empty_argument"),
        ("click[  ]", "empty_argument"),
        ("search[a] click[b]", "multiple_actions_not_allowed"),
        ("search[a],CLICK[b]", "multiple_actions_not_allowed"),
        ("Action: search[a]\nAction: click[b]", "multiple_actions_not_allowed"),
        ("Action: x\nAction: y", "invalid_format"),
        ("search[a]b]", "executed"),
        ("  SEARCH[a]  ", "executed"),
    ],
)
def test_reasons(text: str, reason: str) -> None:
    assert parse_action(text).reason == reason


def test_one_action_line_stands_for_the_whole_text() -> None:
    action = parse_action("Thought: back\naction: click[back to search]")
    assert (action.text, action.verb, action.argument) == ("click[back to search]", "click", "back to search")


def test_a_click_keeps_case_and_spaces() -> None:
    assert parse_action("Click[ Buy Now ]").argument == " Buy Now "


@given(st.text())
def test_any_text_gets_a_known_reason(text: str) -> None:
    action = parse_action(text)
    assert action.reason in {"executed", "invalid_format", "empty_argument", "multiple_actions_not_allowed"}
    assert feedback(action.text, action.reason, action.message)["valid"] is (action.reason == "executed")
