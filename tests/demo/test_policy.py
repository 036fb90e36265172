import json
from collections import Counter
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.demo import policy
from rayeval.demo.catalogue import demo_catalogue
from rayeval.demo.page_text import read_page
from rayeval.demo.policy import CAREFUL, SCRIPTED, Habits
from rayeval.demo.shop import Shop
from tests.demo.shopping import STATIC_TOOLS, Played, function_tool, opening_messages, play, tools_for

SHOP = Shop(demo_catalogue())
VAL = range(40)
FLAWLESS = Habits(0, 0, 0, 0, 0, 0)


def _played(habits: Habits | None, **how: bool) -> list[Played]:
    return [play(SHOP, task_id, sample_id, habits, **how) for task_id in VAL for sample_id in range(2)]


@pytest.mark.parametrize("static", [False, True])
def test_the_scripted_shopper_is_worth_comparing(static: bool) -> None:
    scripted, careful, random = (_played(h, static=static) for h in (SCRIPTED, CAREFUL, None))
    means = [fmean(p.reward for p in played) for played in (scripted, careful, random)]
    print(f"mean reward: scripted {means[0]:.3f}, careful {means[1]:.3f}, random {means[2]:.3f}")
    rewards = sorted({round(p.reward, 3) for p in scripted})
    print(f"distinct rewards of the scripted shopper: {rewards}")
    reasons = Counter(p.reason for p in scripted)
    assert len(rewards) >= 4
    assert means[0] > means[2] + 0.3
    assert means[1] > means[0]
    assert reasons["generation_length"] >= 1
    assert sum(p.protocol_errors for p in scripted) >= 5
    assert any(p.protocol_errors and p.reason == "purchase" for p in scripted)
    assert sum(p.invalid_actions for p in scripted) == 0


def test_tool_schemas_do_not_change_what_is_bought() -> None:
    assert [p[:5] for p in _played(SCRIPTED, static=True)] == [p[:5] for p in _played(SCRIPTED, static=False)]


def test_two_samples_of_a_task_differ_somewhere() -> None:
    played = _played(SCRIPTED)
    pairs = zip(played[::2], played[1::2], strict=True)
    assert any(a.messages != b.messages for a, b in pairs)


def test_an_answer_depends_on_its_arguments_alone() -> None:
    for task_id in range(0, 40, 7):
        messages = play(SHOP, task_id, 0, SCRIPTED).messages
        for end in range(2, len(messages) + 1):
            seen = messages[:end]
            if seen[-1]["role"] != "assistant":
                copied = json.loads(json.dumps(seen))
                first = policy.shop(seen, STATIC_TOOLS, 17)
                assert first == policy.shop(copied, STATIC_TOOLS, 17)


def test_a_flawless_shopper_buys_what_was_asked_where_everything_is_said() -> None:
    rewards = [play(SHOP, task_id, 0, FLAWLESS, persona=False).reward for task_id in VAL]
    assert fmean(rewards) > 0.85


def test_an_error_is_put_right_after_the_feedback() -> None:
    always_wrong = Habits(protocol_error=1.0, generation_length=0.0)
    session = SHOP.open(0)
    messages = opening_messages(session)
    tools = tools_for(session.state, static=False)
    wrong = policy.shop(messages, tools, 5, always_wrong)
    feedback = json.dumps({"type": "tool_protocol_error", "code": "tool_call_count"})
    messages.append({"role": "user", "content": feedback})
    right = policy.shop(messages, tools, 6, always_wrong)
    assert right.calls[0][0] == "search" and len(right.calls) == 1
    assert wrong.calls != right.calls


@pytest.mark.parametrize(("luck", "calls"), [(0.1, 0), (0.3, 2), (0.6, 1), (0.9, 1)])
def test_four_ways_to_break_the_protocol(luck: float, calls: int) -> None:
    answer = policy.malformed(policy.Choice("click", "x", "why"), luck)
    assert len(answer.calls) == calls
    if luck == 0.6:
        with pytest.raises(ValueError):
            json.loads(answer.calls[0][1])
    if luck == 0.9:
        assert answer.calls[0][0] == "finish"


def test_a_length_ending_has_no_call() -> None:
    session = SHOP.open(0)
    answer = policy.shop(opening_messages(session), STATIC_TOOLS, 1, Habits(generation_length=1.0))
    assert (answer.finish_reason, answer.calls, answer.content) == ("length", (), None)


def test_an_unknown_page_is_answered_from_the_tools() -> None:
    messages = [{"role": "user", "content": "Buy something nice."}]
    answer = policy.shop(messages, [function_tool("click", "value", ["back to search", "1234", "buy now"])], 1, FLAWLESS)
    assert answer.calls == (("click", '{"value":"buy now"}'),)
    answer = policy.shop(messages, [function_tool("search", "query")], 1, FLAWLESS)
    assert answer.calls[0][0] == "search"
    assert policy.shop(messages, [], 1, FLAWLESS).calls == ()


def test_content_parts_are_read_as_text() -> None:
    messages = opening_messages(SHOP.open(3))
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    assert policy.shop(parts, STATIC_TOOLS, 1, FLAWLESS) == policy.shop(messages, STATIC_TOOLS, 1, FLAWLESS)


def test_the_persona_decides_where_the_instruction_is_silent() -> None:
    task = next(t for t in SHOP.catalogue.tasks.values() if t.task_id == 1)
    assert all(option not in task.instruction_simple for option in task.options)
    assert play(SHOP, 1, 0, FLAWLESS, persona=True).reward == 1.0


def test_a_page_is_read_back_from_its_text() -> None:
    session = SHOP.open(1)
    session.interact("search[台灯]")
    state = session.state
    page = read_page(session.interact("nonsense")["observation"])
    assert list(page.clickable) == state["actions"]
    assert [p.asin for p in page.products] == [p["asin"] for p in state["products"]]
    assert page.can_search is False
    session.interact(f"click[{session.task.asin}]")
    page = read_page(session.interact("click[颜色分类=暖白]")["observation"])
    assert [(a.name, a.chosen) for a in page.axes] == [("颜色分类", "暖白"), ("款式", None)]


_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.none() | st.text(max_size=60)},
    optional={"tool_calls": st.lists(st.fixed_dictionaries({"function": st.none() | st.just({"name": 1})}), max_size=2)},
)


@given(st.lists(_MESSAGE, min_size=1, max_size=4), st.none() | st.integers(0, 2**32))
def test_any_conversation_gets_an_answer(messages: list[dict[str, object]], seed: int | None) -> None:
    for habits in (SCRIPTED, None):
        answer = policy.shop(messages, STATIC_TOOLS, seed, habits)
        assert answer == policy.shop(messages, STATIC_TOOLS, seed, habits)
    assert answer == policy.random_policy(messages, STATIC_TOOLS, seed)


@pytest.mark.parametrize("tool", [{}, {"function": {}}, {"function": {"name": "click"}}, {"function": {"name": 3}}])
def test_tools_of_any_shape_are_survived(tool: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "x", "tool_calls": 1}]
    assert policy.shop(messages, [tool], 1, FLAWLESS).calls == ()


def test_the_persona_is_the_longest_object_of_the_system_message() -> None:
    messages = opening_messages(SHOP.open(1))
    messages[0]["content"] = 'Answer {"like": "this"} or { so }.\n' + messages[0]["content"]
    messages[1]["content"] = messages[1]["content"].replace("Shopping task:\n", "")
    session = SHOP.open(1)
    for action in ("search[台灯]", f"click[{session.task.asin}]"):
        page = session.interact(action)["observation"]
    messages.append({"role": "tool", "tool_call_id": "c", "content": page})
    answer = policy.shop(messages, STATIC_TOOLS, 1, FLAWLESS)
    assert json.loads(answer.calls[0][1]) == {"value": "颜色分类=暖白"}
