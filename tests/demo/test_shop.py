from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.demo.catalogue import demo_catalogue
from rayeval.demo.pages import PRIVATE_KEYS, render
from rayeval.demo.shop import Session, Shop, ShopError

SHOP = Shop(demo_catalogue())


@pytest.fixture
def session() -> Session:
    return SHOP.open(1)


def _act(session: Session, *actions: str) -> dict[str, Any]:
    return [session.interact(a) for a in actions][-1]


def _reason(session: Session, action: str) -> str:
    return str(session.interact(action)["action_feedback"]["reason"])


def test_search_works_on_the_home_page_only(session: Session) -> None:
    assert _reason(session, "search[台灯]") == "executed"
    assert _reason(session, "search[台灯]") == "search_unavailable"
    assert _reason(session, "click[back to search]") == "executed"
    assert session.state["search_available"] is True


def test_sixty_results_fill_three_pages(session: Session) -> None:
    _act(session, "search[旗舰店]")
    assert session.state["actions"][:2] == ["back to search", "next >"]
    _act(session, "click[next >]")
    assert session.state["actions"][1:3] == ["< prev", "next >"]
    _act(session, "click[next >]")
    assert "next >" not in session.state["actions"]
    assert (session.state["page"], session.state["rank_start"], session.state["rank_end"]) == (3, 41, 60)
    assert session.state["total_pages"] == 3
    _act(session, "click[< prev]")
    assert session.state["page"] == 2


def test_prev_from_a_product_returns_to_its_page_and_clears_the_options(session: Session) -> None:
    _act(session, "search[旗舰店]", "click[next >]")
    asin = next(p["asin"] for p in session.state["products"] if "颜色分类" in SHOP.catalogue.products[p["asin"]].options)
    _act(session, f"click[{asin}]")
    option = next(a for a in session.state["actions"] if a.startswith("颜色分类="))
    _act(session, f"click[{option}]")
    assert session.state["selected_options"]
    _act(session, "click[< prev]")
    assert session.state["page"] == 2
    _act(session, f"click[{asin}]")
    assert session.state["selected_options"] == {}


def test_buying_needs_every_option(session: Session) -> None:
    asin = session.task.asin
    _act(session, "search[台灯]", f"click[{asin}]")
    refused = session.interact("click[buy now]")
    assert refused["action_feedback"]["reason"] == "incomplete_options"
    assert refused["action_feedback"]["missing_option_axes"] == ["颜色分类", "款式"]
    assert (refused["reward"], refused["message"]) == (0, "Invalid action")
    _act(session, "click[颜色分类=暖白]")
    assert _reason(session, "click[颜色分类=暖白]") == "already_selected"
    result = _act(session, "click[款式=标准款]", "click[buy now]")
    assert (result["done"], result["reward"], result["termination_reason"]) == (True, 1.0, "purchase")
    assert session.state["page_type"] == "terminal"


def test_buy_now_stands_before_the_options(session: Session) -> None:
    _act(session, "search[台灯]", f"click[{session.task.asin}]", "click[颜色分类=暖白]", "click[款式=标准款]")
    assert session.state["actions"] == ["back to search", "< prev", "buy now", "颜色分类=深空灰", "款式=带笔筒款"]


def test_click_is_case_sensitive_and_not_trimmed(session: Session) -> None:
    _act(session, "search[台灯]")
    assert _reason(session, "click[Back To Search]") == "unavailable_action"
    assert _reason(session, "click[ back to search ]") == "unavailable_action"


def test_a_product_without_options_can_be_bought_at_once() -> None:
    session = SHOP.open(14)
    assert not SHOP.catalogue.products[session.task.asin].options
    _act(session, "search[加湿器]", f"click[{session.task.asin}]")
    assert session.state["options_complete"] is True
    assert session.state["selected_price"] == SHOP.catalogue.products[session.task.asin].listing_price
    assert _act(session, "click[buy now]")["done"] is True


@pytest.mark.parametrize(("mode", "limit"), [("single_turn", 30), ("multi_turn", 40)])
def test_the_last_action_ends_the_episode_with_the_page_alive(mode: str, limit: int) -> None:
    session = SHOP.open(0, mode)
    for _ in range(limit - 1):
        assert session.interact("nonsense")["done"] is False
    result = session.interact("search[台灯]")
    assert (result["done"], result["termination_reason"], result["reward"]) == (True, "action_limit", 0.0)
    assert result["action_feedback"]["valid"] is True
    assert result["observation_state"]["page_type"] == "search_results"


def test_a_purchase_on_the_last_action_wins() -> None:
    session = SHOP.open(14)
    _act(session, *["nonsense"] * 27, "search[加湿器]", f"click[{session.task.asin}]")
    assert _act(session, "click[buy now]")["termination_reason"] == "purchase"


def test_after_the_end_nothing_is_taken(session: Session) -> None:
    assert session.terminate("generation_length")["termination_reason"] == "generation_length"
    with pytest.raises(ShopError, match="reset before stepping"):
        session.interact("search[x]")
    with pytest.raises(ShopError, match="already terminated"):
        session.terminate("action_limit")


def test_a_bad_reason_leaves_the_episode_open(session: Session) -> None:
    with pytest.raises(ShopError, match="unsupported termination reason: tired"):
        session.terminate("tired")
    assert session.interact("search[台灯]")["done"] is False


def test_hidden_verbs() -> None:
    session = SHOP.open(0)
    with pytest.raises(ShopError, match="not subscriptable"):
        session.interact("search[<a> x]")
    with pytest.raises(ShopError):
        session.interact("search[<c>]")
    assert session.actions_taken == 2
    _act(session, "search[<c> 家用电器›照明›台灯]")
    assert session.state["total_results"] == 4
    _act(session, "click[back to search]", "search[<r>]")
    assert session.state["total_results"] == 60


@pytest.mark.parametrize(
    ("task_id", "persona", "mode", "simple"),
    [(0, True, "persona", True), (0, False, "standard", False), (3, True, "persona", False)],
)
def test_the_instruction_depends_on_the_persona(task_id: int, persona: bool, mode: str, simple: bool) -> None:
    opening = SHOP.open(task_id).opening(persona, False)
    task = SHOP.catalogue.tasks[task_id]
    assert opening["task_mode"] == mode
    assert opening["task_instruction"] == (task.instruction_simple if simple else task.instruction)


def test_the_private_reasoning_shows_in_the_goal_only() -> None:
    session = SHOP.open(0)
    opening = session.opening(True, True)
    assert opening["user_persona"] and "__reasoning__" not in opening["user_persona"]
    assert opening["private_task_instruction"] == session.task.instruction
    assert "__reasoning__" in session.terminate("action_limit")["goal"]["user_persona"]


def test_a_purchase_carries_the_bought_products_own_instruction() -> None:
    session = SHOP.open(0)
    other = SHOP.catalogue.tasks[14]
    result = _act(session, "search[加湿器]", f"click[{other.asin}]", "click[buy now]")
    assert result["purchase"]["instruction_text"] == other.instruction
    assert result["reward"] == 0.0


def test_a_state_with_private_keys_is_not_rendered(session: Session) -> None:
    for key in PRIVATE_KEYS:
        with pytest.raises(ValueError, match=key):
            render({**session.state, key: 1})


_WORDS = st.sampled_from(["search[台灯]", "search[旗舰店]", "search[]", "click[buy now]", "x", "click[back to search]"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(_WORDS, st.integers(0, 30)), max_size=34), st.sampled_from([0, 1, 14, 30]))
def test_any_walk_keeps_the_rules(walk: list[str | int], task_id: int) -> None:
    session = SHOP.open(task_id)
    for step in walk:
        labels = session.state["actions"]
        action = step if isinstance(step, str) else f"click[{labels[step % len(labels)] if labels else 'none'}]"
        if session.done:
            break
        offered = isinstance(step, int) and bool(labels)
        before = session.state
        result = session.interact(action)
        valid = result["action_feedback"]["valid"]
        assert not offered or valid
        assert result["observation"] == render(result["observation_state"])
        state = result["observation_state"]
        assert state["search_available"] is (state["page_type"] == "search_home")
        if not valid:
            assert {**state, "last_action": 0} == {**before, "last_action": 0}
        assert result["done"] is (result["over"]) is (bool(result["goal"]))
    assert session.actions_taken <= 30
