"""The demo's products and tasks: a made-up catalogue in the environment's own file format.

``data/catalogue.json`` is a JSON list of products; a product's ``instructions`` are its tasks. Everything a page or
a reward needs over and over (labels, prices, terms) is worked out once, when the catalogue is loaded.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rayeval.exceptions import ConfigurationError
from rayeval.schemas import JsonObject

CATEGORY_SEPARATOR = "›"
MAX_KEY_ATTRIBUTES = 10
MAX_OPTION_VALUES = 100
PRICE_WHEN_NONE = 100.0

_ASIN = re.compile(r"\d{8,12}")
_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+)?[a-z0-9]*|[㐀-鿿]+")


def normalized(text: str) -> str:
    """Full-width forms folded, lower case, single spaces; empty when no letter or digit is left."""
    folded = " ".join(unicodedata.normalize("NFKC", text).lower().split())
    return folded if any(c.isalnum() for c in folded) else ""


def terms(text: str) -> tuple[str, ...]:
    """Search terms in order, repeats kept: words of Latin letters and digits, and character pairs of Chinese runs."""
    found: list[str] = []
    for run in _WORD.findall(normalized(text)):
        if run.isascii() or len(run) == 1:
            found.append(run)
        else:
            found.extend(run[i : i + 2] for i in range(len(run) - 1))
    return tuple(found)


def option_label(value: str) -> str:
    """A catalogue value as pages show it: stripped, ``/`` as `` | ``, lower case."""
    return value.strip().replace("/", " | ").lower()


@dataclass(frozen=True, slots=True)
class Task:
    """One shopping task; its gold product is the one it stands under."""

    task_id: int
    task_uid: str
    asin: str
    instruction: str
    instruction_simple: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Asked option values, as the catalogue writes them."""
    price_upper: float | None
    price_constraint: str | None


@dataclass(frozen=True, slots=True)
class Product:
    """One product with what its pages show."""

    asin: str
    title: str
    brand: str
    category: str
    attributes: tuple[str, ...]
    description: str
    options: Mapping[str, tuple[str, ...]]
    """Axis -> labels, in catalogue order."""
    price_axis: str | None
    """The one axis that changes the price."""
    option_prices: Mapping[str, float]
    """Label of the price axis -> price."""
    listing_price: float | None
    """The price when it is one number; None for a range."""
    price_text: str
    persona: JsonObject
    reason_key: Any
    source_product_index: int | None
    card: JsonObject
    """The product as pages give it: asin, title, brand, category, price, key_attributes."""
    category_nodes: frozenset[str]
    title_terms: frozenset[str]

    def price_of(self, selected: Mapping[str, str]) -> float | None:
        """Price of the chosen variant; None while it cannot be known."""
        if self.price_axis is not None:
            return self.option_prices.get(selected.get(self.price_axis, ""))
        return self.listing_price


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Products by ASIN and tasks by id, both in file order."""

    products: Mapping[str, Product]
    tasks: Mapping[int, Task]
    first_instruction: Mapping[str, str]
    """ASIN -> full instruction of its first task."""


def _product(raw: Mapping[str, Any], where: str) -> Product:
    asin = str(raw["asin"])
    if not _ASIN.fullmatch(asin):
        raise ConfigurationError(f"{where}.asin", asin, "give 8 to 12 digits")
    prices = [float(p) for p in raw.get("pricing") or [PRICE_WHEN_NONE]]
    options: dict[str, tuple[str, ...]] = {}
    axis_prices: dict[str, dict[str, float]] = {}
    for axis, values in (raw.get("customization_options") or {}).items():
        options[axis] = tuple(dict.fromkeys(option_label(v["value"]) for v in values))[:MAX_OPTION_VALUES]
        priced = {option_label(v["value"]): float(v["price"]) for v in values if v.get("price") is not None}
        if len(set(priced.values())) > 1:
            axis_prices[axis] = priced
    low, high = min(prices), max(prices)
    price_axis = next(iter(axis_prices)) if len(axis_prices) == 1 else None
    price_text = str(low) if low == high else f"{low} to {high}"
    attributes = tuple(str(a) for a in raw.get("attribute") or ())
    card: JsonObject = {
        "asin": asin,
        "title": raw["title"],
        "brand": raw["shop_name"],
        "category": raw["category"],
        "price": price_text,
        "key_attributes": list(attributes[:MAX_KEY_ATTRIBUTES]),
    }
    return Product(
        asin=asin,
        title=raw["title"],
        brand=raw["shop_name"],
        category=raw["category"],
        attributes=attributes,
        description=f"{raw.get('small_description') or ''} {raw.get('full_description') or ''}".strip(),
        options=options,
        price_axis=price_axis,
        option_prices=axis_prices[price_axis] if price_axis is not None else {},
        listing_price=low if low == high and not axis_prices else None,
        price_text=price_text,
        persona=dict(raw.get("user_persona") or {}),
        reason_key=raw.get("reason_key"),
        source_product_index=raw.get("source_product_index"),
        card=card,
        category_nodes=frozenset(n.strip() for n in raw["category"].split(CATEGORY_SEPARATOR) if n.strip()),
        title_terms=frozenset(terms(raw["title"])),
    )


def _tasks(raw: Mapping[str, Any]) -> Iterable[Task]:
    for entry in raw.get("instructions") or ():
        if entry.get("attributes"):  # the environment's rule: without attributes it is no task
            yield Task(
                task_id=entry["task_id"],
                task_uid=entry["task_uid"],
                asin=str(raw["asin"]),
                instruction=entry["instruction"],
                instruction_simple=entry.get("instruction_simple") or "",
                attributes=tuple(entry["attributes"]),
                options=tuple(entry.get("instruction_options") or ()),
                price_upper=None if entry.get("price_upper") is None else float(entry["price_upper"]),
                price_constraint=entry.get("price_constraint"),
            )


def parse_catalogue(raw: Any, source: str = "catalogue") -> Catalogue:
    """A catalogue from its JSON list. Raises ConfigurationError for a missing field, a bad ASIN or an id used twice."""
    if not isinstance(raw, list) or not raw:
        raise ConfigurationError(source, type(raw).__name__, "give a non-empty JSON list of products")
    products: dict[str, Product] = {}
    tasks: dict[int, Task] = {}
    first: dict[str, str] = {}
    for i, entry in enumerate(raw):
        where = f"{source}[{i}]"
        try:
            product = _product(entry, where)
            own = list(_tasks(entry))
        except KeyError as exc:
            raise ConfigurationError(f"{where}.{exc.args[0]}", None, "a product needs this field") from exc
        if product.asin in products:
            raise ConfigurationError(f"{where}.asin", product.asin, "each product needs an ASIN of its own")
        products[product.asin] = product
        for task in own:
            if task.task_id in tasks:
                raise ConfigurationError(f"{where}.instructions", task.task_id, "each task needs an id of its own")
            tasks[task.task_id] = task
            first.setdefault(product.asin, task.instruction)
    return Catalogue(products, tasks, first)


def read_catalogue(path: Path) -> Catalogue:
    """A catalogue from a JSON file. Raises ConfigurationError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigurationError("catalogue", str(path), f"give a readable JSON file ({exc})") from exc
    return parse_catalogue(raw, path.name)


@functools.cache
def demo_catalogue() -> Catalogue:
    """The bundled catalogue: 60 products, tasks 0..47."""
    text = resources.files("rayeval.demo").joinpath("data/catalogue.json").read_text(encoding="utf-8")
    return parse_catalogue(json.loads(text))
