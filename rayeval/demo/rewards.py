"""What a purchase is worth: the environment's formulas over the demo's catalogue.

r_type   0, 0.1, 0.5 or 1 from the category path, else from the words of the title
r_att    asked attributes that the product has / asked
r_option asked option values that were chosen / asked (1 when none was asked)
r_price  1 without a budget; else 1 only for a known price within it
r_loose  r_type * (hits + r_price) / (asked + 1);  r_strict: the product of the four;  r_success: 1 when all four are 1
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping

from rayeval.demo.catalogue import Product, Task, normalized, option_label
from rayeval.schemas import JsonObject

REWARD_VERSION = "rayeval-demo-reward-v1"
PRICE_VERSION = "rayeval-demo-variant-price-v1"
SIMILAR_ENOUGH = 0.85
SAME_CATEGORY_NODES = 2


@functools.lru_cache(maxsize=65536)
def similar(a: str, b: str) -> bool:
    """Whether two short texts say the same: word sets that agree or contain one another, or nearly the same letters."""
    left, right = normalized(a), normalized(b)
    if not left or not right:
        return False
    words_left, words_right = set(left.split()), set(right.split())
    if words_left <= words_right or words_right <= words_left:
        return True
    joined = " ".join(sorted(words_left)), " ".join(sorted(words_right))
    return difflib.SequenceMatcher(None, *joined, autojunk=False).ratio() > SIMILAR_ENOUGH


@functools.lru_cache(maxsize=65536)
def _has_attribute(title: str, description: str, attributes: tuple[str, ...], asked: str) -> bool:
    wanted = normalized(asked)
    return wanted in normalized(title) or wanted in normalized(description) or any(similar(asked, a) for a in attributes)


def _type_score(gold: Product, bought: Product) -> tuple[float, bool, float]:
    """-> (r_type, category_match, title_score)."""
    title_score = len(gold.title_terms & bought.title_terms) / len(gold.title_terms) if gold.title_terms else 0.0
    if len(gold.category_nodes & bought.category_nodes) >= SAME_CATEGORY_NODES:
        return 1.0, True, title_score
    if title_score > 0.2:
        return 1.0, False, title_score
    if title_score == 0.0:
        return 0.0, False, title_score
    return (0.1 if title_score < 0.1 else 0.5), False, title_score


def price_resolution(product: Product, selected: Mapping[str, str]) -> JsonObject:
    """How the price of the chosen variant was found."""
    price = product.price_of(selected)
    if product.price_axis is not None:
        method, evidence = "selected_price_axis", {"price_axis": product.price_axis}
    else:
        method, evidence = "listing_price", {}
    status = "pass" if price is not None else "unverifiable"
    return {"status": status, "price": price, "version": PRICE_VERSION, "method": method, "evidence": evidence}


def purchase_reward(task: Task, gold: Product, bought: Product, selected: Mapping[str, str]) -> JsonObject:
    """``reward_detail`` of a purchase; its ``r_strict`` is the reward."""
    r_type, category_match, title_score = _type_score(gold, bought)
    attribute_hits = sum(_has_attribute(bought.title, bought.description, bought.attributes, asked) for asked in task.attributes)
    chosen = tuple(selected.values())
    option_hits = sum(any(similar(option_label(asked), value) for value in chosen) for asked in task.options)
    resolution = price_resolution(bought, selected)
    price = resolution["price"]
    within = task.price_upper is None or (price is not None and price <= task.price_upper)
    r_att = attribute_hits / len(task.attributes)
    r_option = option_hits / len(task.options) if task.options else 1.0
    r_price = 1.0 if within else 0.0
    asked_count = len(task.attributes) + len(task.options) + 1
    return {
        "reward_version": REWARD_VERSION,
        "termination_reason": "purchase",
        "r_type": r_type,
        "category_match": category_match,
        "title_score": title_score,
        "num_attr_matches": attribute_hits,
        "num_option_matches": option_hits,
        "r_att": r_att,
        "r_option": r_option,
        "r_price": r_price,
        "r_loose": r_type * (attribute_hits + option_hits + r_price) / asked_count,
        "r_strict": r_type * r_att * r_option * r_price,
        "r_success": int(r_type == r_att == r_option == r_price == 1.0),
        "target_asin_match": bought.asin == gold.asin,
        "price_verifiable": price is not None,
        "price_upper": task.price_upper,
        "price_resolution": resolution,
    }


def zero_reward(reason: str) -> JsonObject:
    """``reward_detail`` of an end without a purchase."""
    return {
        "reward_version": REWARD_VERSION,
        "termination_reason": reason,
        "r_loose": 0.0,
        "r_strict": 0.0,
        "r_success": 0,
        "r_type": 0.0,
        "r_att": 0.0,
        "r_option": 0.0,
        "r_price": 0.0,
        "target_asin_match": False,
        "price_verifiable": False,
    }
