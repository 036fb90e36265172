from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.demo.catalogue import Catalogue, demo_catalogue, option_label, parse_catalogue
from rayeval.demo.rewards import purchase_reward, similar, zero_reward

R_KEYS = {"r_loose", "r_strict", "r_success", "r_type", "r_att", "r_option", "r_price"}
CATALOGUE = demo_catalogue()


def _bought(task_id: int, **changed: object) -> dict[str, object]:
    task = replace(CATALOGUE.tasks[task_id], **changed)  # type: ignore[arg-type]
    gold = CATALOGUE.products[task.asin]
    wanted = [option_label(o) for o in CATALOGUE.tasks[task_id].options]
    selected = {axis: next((v for v in vs if v in wanted), vs[0]) for axis, vs in gold.options.items()}
    return purchase_reward(task, gold, gold, selected)


def test_the_asked_product_with_the_asked_options_is_worth_one() -> None:
    detail = _bought(1)
    assert {k: detail[k] for k in R_KEYS} == dict.fromkeys(R_KEYS, 1.0)
    assert detail["target_asin_match"] is True


def test_an_attribute_that_is_missing_costs_its_share() -> None:
    asked = (*CATALOGUE.tasks[1].attributes[:1], "没有的属性")
    detail = _bought(1, attributes=asked)
    assert (detail["r_att"], detail["r_strict"], detail["r_success"]) == (0.5, 0.5, 0)
    assert detail["r_loose"] == pytest.approx((1 + 2 + 1) / (2 + 2 + 1))


def test_a_wrong_option_costs_its_share() -> None:
    detail = _bought(1, options=(CATALOGUE.tasks[1].options[0], "没有的规格"))
    assert (detail["r_option"], detail["r_strict"]) == (0.5, 0.5)


def test_without_asked_options_r_option_is_one() -> None:
    assert _bought(1, options=())["r_option"] == 1.0


def test_over_budget_is_worth_nothing_even_for_the_gold_product() -> None:
    detail = _bought(1, price_upper=1.0)
    assert (detail["r_price"], detail["r_strict"], detail["target_asin_match"]) == (0.0, 0.0, True)


def test_no_budget_is_always_met() -> None:
    assert _bought(1, price_upper=None)["r_price"] == 1.0


def _two(title: str, category: str) -> Catalogue:
    one = {"asin": "10000001", "title": "甲乙丙丁", "shop_name": "s", "category": "a›b›c", "pricing": [1, 2]}
    task = {"task_id": 0, "task_uid": "t", "instruction": "i", "attributes": ["x"], "price_upper": 9}
    return parse_catalogue([{**one, "instructions": [task]}, {**one, "asin": "10000002", "title": title, "category": category}])


@pytest.mark.parametrize(
    ("title", "category", "r_type"),
    [
        ("别的", "a›b›z", 1.0),  # two nodes of the path
        ("别的", "a›y›z", 0.0),  # one node and no word of the title
        ("甲乙丙戊", "x›y›z", 1.0),  # two of three pairs
        ("甲乙", "x›y›z", 1.0),  # a third of the title
    ],
)
def test_r_type_by_category_then_title(title: str, category: str, r_type: float) -> None:
    catalogue = _two(title, category)
    gold, other = catalogue.products.values()
    assert purchase_reward(catalogue.tasks[0], gold, other, {})["r_type"] == r_type


@pytest.mark.parametrize(("words", "r_type"), [(4, 1.0), (6, 0.5), (11, 0.1)])
def test_r_type_steps_with_the_share_of_the_title(words: int, r_type: float) -> None:
    catalogue = _two("w0", "x")
    gold, other = catalogue.products.values()
    gold = replace(gold, title_terms=frozenset(f"w{i}" for i in range(words)))
    detail = purchase_reward(catalogue.tasks[0], gold, other, {})
    assert (detail["title_score"], detail["r_type"]) == (1 / words, r_type)


def test_a_price_range_without_a_price_axis_cannot_meet_a_budget() -> None:
    catalogue = _two("甲乙丙丁", "a›b›c")
    gold = catalogue.products["10000001"]
    detail = purchase_reward(catalogue.tasks[0], gold, gold, {})
    assert (detail["r_price"], detail["price_verifiable"]) == (0.0, False)
    assert detail["price_resolution"]["status"] == "unverifiable"


def test_the_zero_form_has_the_same_r_keys() -> None:
    assert {k for k in zero_reward("action_limit") if k.startswith("r_")} == R_KEYS
    assert {k for k in _bought(0) if k.startswith("r_")} == R_KEYS


def test_similar_texts() -> None:
    assert similar("USB供电", "usb供电")
    assert similar("雾白", "雾白 标准版")
    assert not similar("雾白", "石墨 | 黑")
    assert not similar("", "x")


@given(st.sampled_from(sorted(CATALOGUE.tasks)), st.sampled_from(sorted(CATALOGUE.products)), st.data())
def test_rewards_stay_in_bounds_and_fit_together(task_id: int, asin: str, data: st.DataObject) -> None:
    task, bought = CATALOGUE.tasks[task_id], CATALOGUE.products[asin]
    selected = {axis: data.draw(st.sampled_from(values)) for axis, values in bought.options.items()}
    d = purchase_reward(task, CATALOGUE.products[task.asin], bought, selected)
    assert all(0.0 <= d[k] <= 1.0 for k in R_KEYS)
    assert d["r_strict"] == d["r_type"] * d["r_att"] * d["r_option"] * d["r_price"]
    assert (d["r_success"] == 1) is (d["r_strict"] == 1.0)
