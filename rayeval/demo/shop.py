"""The shop's rules: sessions, navigation, options, the action limit, how an episode ends. No HTTP, slots or clock.

A session answers with the environment's result objects, without the lease fields, which are the server's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from rayeval.demo.actions import MESSAGES, feedback, parse_action
from rayeval.demo.catalogue import Catalogue, Product, Task
from rayeval.demo.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    home_state,
    missing_axes,
    product_state,
    render,
    results_state,
    terminal_state,
)
from rayeval.demo.rewards import purchase_reward, zero_reward
from rayeval.demo.search import MAX_RESULTS, SearchIndex
from rayeval.schemas import JsonObject

ENVIRONMENT_VERSION = "rayeval-demo-shop-v1"
ACTION_LIMITS = {"multi_turn": 40, "single_turn": 30}
TERMINATION_REASONS = ("action_limit", "generation_length")
PRIVATE_PERSONA_KEY = "__reasoning__"


class ShopError(RuntimeError):
    """A request that the engine answers with an error text (HTTP 500)."""


class Shop:
    """A catalogue open for business; sessions share it and never change it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.index = SearchIndex(catalogue)

    def open(self, idx: Any, interaction_mode: Any = "single_turn") -> Session:
        """A session for task ``idx``. Raises ShopError with the environment's texts."""
        if type(idx) is not int:
            raise ShopError("task idx must be an integer")
        if not isinstance(interaction_mode, str) or interaction_mode not in ACTION_LIMITS:
            choices = sorted(ACTION_LIMITS)
            raise ShopError(f"unsupported interaction_mode {interaction_mode!r}; choose one of {choices}")
        task = self.catalogue.tasks.get(idx)
        if task is None:
            raise ShopError(f"'unknown or inactive task_id {idx}'")
        return Session(self, task, interaction_mode)


@dataclass(slots=True)
class Session:
    """One episode of one task."""

    shop: Shop
    task: Task
    interaction_mode: str
    actions_taken: int = 0
    done: bool = False
    termination_reason: str | None = None
    query: str = ""
    results: tuple[str, ...] = ()
    page: int = 1
    product: Product | None = None
    selected: dict[str, str] = field(default_factory=dict)
    state: JsonObject = field(default_factory=home_state)
    """The page as it stands, ``last_action`` included."""

    @property
    def gold(self) -> Product:
        return self.shop.catalogue.products[self.task.asin]

    def opening(self, if_persona: bool, include_private_goal: bool) -> JsonObject:
        """The result of a reset."""
        persona = {k: v for k, v in self.gold.persona.items() if k != PRIVATE_PERSONA_KEY}
        simple = if_persona and bool(self.gold.persona)
        result: JsonObject = {
            "idx": self.task.task_id,
            "message": f"Task {self.task.task_id} started",
            "task_instruction": (self.task.instruction_simple or self.task.instruction) if simple else self.task.instruction,
            "task_mode": "persona" if if_persona else "standard",
            "interaction_mode": self.interaction_mode,
            "environment_version": ENVIRONMENT_VERSION,
            "observation": render(self.state),
            "observation_state": self.state,
            "user_persona": persona,
        }
        if include_private_goal:
            result["private_task_instruction"] = self.task.instruction
            result["goal_options"] = list(self.task.options)
            result["reason_key"] = self.gold.reason_key
        return result

    def interact(self, response: Any) -> JsonObject:
        """One action; valid or not, it counts. Raises ShopError, possibly with the action already counted."""
        if response is None:
            raise ShopError("interact action requires response parameter")
        if not isinstance(response, str):
            raise ShopError(f"{type(response).__name__!r} object has no attribute 'replace'")
        if self.done:
            raise ShopError("episode is already terminated; reset before stepping")
        self.actions_taken += 1
        answer, bought = self._act(response)
        self.state = {**self.state, "last_action": answer}
        reward: float = 0.0 if answer["valid"] else 0
        detail: JsonObject = {}
        purchase: JsonObject = {}
        if bought is not None:
            self._end("purchase")
            detail = purchase_reward(self.task, self.gold, bought, self.selected)
            reward = detail["r_strict"]
            purchase = self._purchase(bought)
        elif self.actions_taken >= ACTION_LIMITS[self.interaction_mode]:
            self._end("action_limit")
            detail = zero_reward("action_limit")
            reward = 0.0
        message = "Continue interaction" if answer["valid"] else "Invalid action"
        return {**self._result(message, reward, detail, purchase), "action_feedback": answer}

    def terminate(self, reason: Any) -> JsonObject:
        """An end without a purchase; the page stays as it is. Raises ShopError; a bad reason ends nothing."""
        if self.done:
            raise ShopError("episode is already terminated")
        if reason not in TERMINATION_REASONS:
            raise ShopError(f"unsupported termination reason: {reason}")
        self._end(reason)
        return self._result(f"Episode terminated: {reason}", 0.0, zero_reward(reason), {})

    def _end(self, reason: str) -> None:
        self.done, self.termination_reason = True, reason

    def _result(self, message: str, reward: float, detail: JsonObject, purchase: JsonObject) -> JsonObject:
        result: JsonObject = {
            "done": self.done,
            "over": self.done,
            "reward": reward,
            "reward_detail": detail,
            "purchase": purchase,
            "goal": self._goal() if self.done else {},
            "message": message,
            "observation": render(self.state),
            "observation_state": self.state,
        }
        if self.done:
            result["termination_reason"] = self.termination_reason
        return result

    def _goal(self) -> JsonObject:
        gold, task = self.gold, self.task
        return {
            "task_id": task.task_id,
            "task_uid": task.task_uid,
            "source_product_index": gold.source_product_index,
            "asin": gold.asin,
            "category": gold.category,
            "name": gold.title,
            "instruction_text": task.instruction,
            "instruction_simple": task.instruction_simple,
            "attributes": list(task.attributes),
            "price_upper": task.price_upper,
            "price_constraint": task.price_constraint,
            "goal_options": list(task.options),
            "user_persona": gold.persona,
            "reason_key": gold.reason_key,
            "weight": 1,
        }

    def _purchase(self, bought: Product) -> JsonObject:
        return {
            "asin": bought.asin,
            "category": bought.category,
            "name": bought.title,
            "product_category": "",
            "instruction_text": self.shop.catalogue.first_instruction.get(bought.asin, ""),
            "attributes": list(bought.attributes),
            "price": bought.price_of(self.selected),
            "options": dict(self.selected),
        }

    def _act(self, response: str) -> tuple[JsonObject, Product | None]:
        """-> (feedback, the product when it was bought)."""
        action = parse_action(response)
        if action.reason != "executed":
            return feedback(action.text, action.reason, action.message), None
        if action.verb == "search":
            if not self.state["search_available"]:
                return feedback(action.text, "search_unavailable", MESSAGES["no_search"]), None
            self._search(action.argument.strip())
            return feedback(action.text, "executed", action.message), None
        return self._click(action.text, action.argument)

    def _search(self, query: str) -> None:
        verb, _, rest = query.partition(" ")
        if verb == "<r>":
            # the environment's own verb is not deterministic either; a client has to neutralise it
            everything = list(self.shop.catalogue.products)
            results = tuple(random.sample(everything, min(MAX_RESULTS, len(everything))))
        elif verb == "<a>":
            raise ShopError("'NoneType' object is not subscriptable")
        elif verb == "<c>":
            if not rest.split():
                raise ShopError("list index out of range")
            results = self.shop.index.in_category(rest.split()[0])
        else:
            results = self.shop.index.search(query)
        self.query, self.results = query, results
        self._show_results(1)

    def _click(self, text: str, label: str) -> tuple[JsonObject, Product | None]:
        product = self.product
        if label not in self.state["actions"]:
            if product is not None and label == BUY:
                missing = missing_axes(product, self.selected)
                message = f"还没有选择规格：{'、'.join(missing)}"
                return feedback(text, "incomplete_options", message, missing_option_axes=missing), None
            axis, _, value = label.partition("=")
            if product is not None and value and self.selected.get(axis) == value:
                return feedback(text, "already_selected", f"规格已经是：{label}"), None
            return feedback(text, "unavailable_action", f"页面上没有这一项：{label}"), None
        if label == BUY:
            self.state = terminal_state()
            return feedback(text, "executed", MESSAGES["buy"]), product
        if label == BACK:
            self.product, self.selected, self.state = None, {}, home_state()
        elif product is not None and label != PREVIOUS:
            axis, value = next((a, v) for a, vs in product.options.items() for v in vs if label == f"{a}={v}")
            self.selected[axis] = value
            self.state = product_state(product, self.selected)
        elif product is not None:
            self._show_results(self.page)
        elif label in (PREVIOUS, NEXT):
            self._show_results(self.page + (1 if label == NEXT else -1))
        else:
            self.product, self.selected = self.shop.catalogue.products[label], {}
            self.state = product_state(self.product, self.selected)
        return feedback(text, "executed", MESSAGES["click"]), None

    def _show_results(self, page: int) -> None:
        self.page, self.product, self.selected = page, None, {}
        self.state = results_state(self.shop.catalogue, self.query, self.results, page)
