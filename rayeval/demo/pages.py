"""Pages: what ``observation_state`` holds on each, and its text. The text is a pure function of the state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rayeval.demo.catalogue import Catalogue, Product, normalized
from rayeval.schemas import JsonObject

OBSERVATION_VERSION = "shopping-observation-v7"
PAGE_SIZE = 20
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
PRIVATE_KEYS = frozenset({"goal", "reward", "reward_detail", "target_asin", "answer"})


def _state(page_type: str, search_available: bool, actions: list[str], **fields: Any) -> JsonObject:
    return {
        "observation_version": OBSERVATION_VERSION,
        "page_type": page_type,
        "search_available": search_available,
        "actions": actions,
        **fields,
    }


def home_state() -> JsonObject:
    """The search page."""
    return _state("search_home", True, [])


def terminal_state() -> JsonObject:
    """The page after a purchase."""
    return _state("terminal", False, [])


def page_count(results: Sequence[str]) -> int:
    """Pages that hold the results; an empty result has one, empty."""
    return max(1, math.ceil(len(results) / PAGE_SIZE))


def results_state(catalogue: Catalogue, query: str, results: Sequence[str], page: int) -> JsonObject:
    """Page ``page`` (from 1) of a ranking."""
    total = page_count(results)
    start = (page - 1) * PAGE_SIZE
    shown = results[start : start + PAGE_SIZE]
    actions = [BACK, *([PREVIOUS] if page > 1 else []), *([NEXT] if page < total else []), *shown]
    return _state(
        "search_results",
        False,
        actions,
        search_text=query,
        normalized_search_text=normalized(query),
        page=page,
        total_pages=total,
        total_results=len(results),
        rank_start=start + 1 if shown else 0,
        rank_end=start + len(shown),
        products=[{"rank": start + i, **catalogue.products[asin].card} for i, asin in enumerate(shown, 1)],
    )


def missing_axes(product: Product, selected: Mapping[str, str]) -> list[str]:
    """Axes still to be chosen, in catalogue order."""
    return [axis for axis in product.options if axis not in selected]


def product_state(product: Product, selected: Mapping[str, str]) -> JsonObject:
    """A product with what is chosen so far."""
    missing = missing_axes(product, selected)
    open_options = [f"{axis}={label}" for axis, labels in product.options.items() for label in labels if selected.get(axis) != label]
    state = _state(
        "product_detail",
        False,
        [BACK, PREVIOUS, *([] if missing else [BUY]), *open_options],
        product=product.card,
        selected_options=dict(selected),
        available_options={axis: list(labels) for axis, labels in product.options.items()},
        missing_option_axes=missing,
        options_complete=not missing,
    )
    price = product.price_of(selected)
    if price is not None:
        state["selected_price"] = price
    return state


def _results_block(state: JsonObject) -> list[str]:
    lines = [
        "页面：搜索结果",
        f"搜索词：{state['search_text']}",
        f"结果：第 {state['page']}/{state['total_pages']} 页，共 {state['total_results']} 项，"
        f"当前显示排名 {state['rank_start']}-{state['rank_end']}",
        "",
        "商品列表：",
    ]
    for item in state["products"]:
        lines.append(
            f"{item['rank']}. {item['title']}\n   ASIN：{item['asin']}\n   价格：{item['price']}\n"
            f"   品牌：{item['brand']}\n   类别：{item['category']}\n   关键属性：{'；'.join(item['key_attributes'])}"
        )
    if not state["products"]:
        lines.append("（本页没有商品）")
    return lines


def _product_block(state: JsonObject) -> list[str]:
    product, selected = state["product"], state["selected_options"]
    lines = [
        "页面：商品详情",
        "商品：",
        f"- 标题：{product['title']}",
        f"- ASIN：{product['asin']}",
        f"- 价格：{state.get('selected_price', product['price'])}",
        f"- 品牌：{product['brand']}",
        f"- 类别：{product['category']}",
        f"- 关键属性：{'；'.join(product['key_attributes'])}",
        "",
        "规格选择：",
    ]
    for axis, labels in state["available_options"].items():
        chosen = f"已选择 {selected[axis]}" if axis in selected else "尚未选择"
        lines.append(f"- {axis}：{chosen}\n  可选值：{' / '.join(labels)}")
    if state["options_complete"]:
        lines.append("规格状态：已选择全部规格，可以购买")
    else:
        lines.append(f"仍需选择：{'、'.join(state['missing_option_axes'])}")
    return lines


def _last_action_block(feedback: JsonObject) -> list[str]:
    lines = [
        "",
        "上次交互结果：",
        f"- 结果：{'成功' if feedback['valid'] else '无效'}",
        f"- 说明：{feedback['message']}",
    ]
    if not feedback["valid"]:
        lines.append(f"- 原因代码：{feedback['reason']}")
    return lines


def render(state: JsonObject) -> str:
    """The page as text. Raises ValueError for a state that carries anything private."""
    leaked = PRIVATE_KEYS.intersection(state)
    if leaked:
        raise ValueError(f"observation_state must not carry {', '.join(sorted(leaked))}")
    page_type = state["page_type"]
    if page_type == "search_results":
        lines = _results_block(state)
    elif page_type == "product_detail":
        lines = _product_block(state)
    elif page_type == "terminal":
        lines = ["页面：任务已终止", "不能再执行操作。"]
    else:
        lines = ["页面：搜索首页"]
    if "last_action" in state:
        lines += _last_action_block(state["last_action"])
    if state["search_available"]:
        lines += ["", "页面能力：", "- 支持商品搜索"]
    if state["actions"]:
        lines += ["", "可点击元素：", *(f"- {label}" for label in state["actions"])]
    elif not state["search_available"]:
        lines += ["", "当前页面没有可交互元素。"]
    return "\n".join(lines) + "\n"
