"""What a shopper reads off a page's text; the demo's pages have the layout of the environment's."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

PAGE_MARK = "页面："
_ITEM = re.compile(
    r"^\d+\. (?P<title>.*)\n   ASIN：(?P<asin>\d+)\n   价格：(?P<price>[\d.]+).*\n   品牌：.*\n"
    r"   类别：(?P<category>.*)\n   关键属性：(?P<attributes>.*)$",
    re.MULTILINE,
)
_AXIS = re.compile(r"^- (?P<axis>[^：\n]+)：(?:已选择 (?P<chosen>.+)|尚未选择)\n  可选值：(?P<values>.*)$", re.MULTILINE)
_PRICE = re.compile(r"^- 价格：(?P<low>[\d.]+)", re.MULTILINE)


class ListedProduct(NamedTuple):
    """One entry of a results page."""

    asin: str
    title: str
    price: float
    """The lowest price of the listing."""
    category: str
    attributes: tuple[str, ...]


class OptionAxis(NamedTuple):
    """One option axis of a product page."""

    name: str
    chosen: str | None
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageText:
    """A page as read."""

    can_search: bool
    clickable: tuple[str, ...]
    products: tuple[ListedProduct, ...]
    axes: tuple[OptionAxis, ...]
    price: float | None
    """Price on a product page, of the chosen variant once that is known."""


@functools.lru_cache(maxsize=4096)
def read_page(text: str) -> PageText:
    """Read a page; what is not there is empty."""
    _, _, below = text.partition("\n可点击元素：\n")
    clickable = tuple(line[2:] for line in below.split("\n") if line.startswith("- "))
    products = tuple(
        ListedProduct(m["asin"], m["title"], float(m["price"]), m["category"], tuple(a for a in m["attributes"].split("；") if a))
        for m in _ITEM.finditer(text)
    )
    axes = tuple(OptionAxis(m["axis"], m["chosen"], tuple(m["values"].split(" / "))) for m in _AXIS.finditer(text))
    price = _PRICE.search(text)
    return PageText(
        can_search="\n- 支持商品搜索" in text,
        clickable=clickable,
        products=products,
        axes=axes,
        price=None if price is None else float(price["low"]),
    )
