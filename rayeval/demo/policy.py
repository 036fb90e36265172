"""Scripted shoppers: they read what a model would read and answer with tool calls.

An answer is a function of (messages, tools, seed) alone. The careful part reads the task, the persona and the last
page; the mistakes are drawn from the seed: a wrong product, a wrong option, a blown budget, calls that break the tool
protocol (and are put right after the feedback), and now and then an answer that runs into its length limit.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from rayeval.demo.catalogue import terms
from rayeval.demo.faults import u01
from rayeval.demo.page_text import PAGE_MARK, ListedProduct, PageText, read_page
from rayeval.demo.pages import BACK, BUY, NEXT, PREVIOUS
from rayeval.schemas import JsonObject

FEEDBACK_MARK = "tool_protocol_error"

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*元")
_FILLER = re.compile(r"^(?:我|请|想|要|帮我?|给我|买|挑|选|一|个|件|款)+")
_SEPARATORS = re.compile(r"[\s/|]+")


@dataclass(frozen=True, slots=True)
class Habits:
    """How often a shopper goes wrong; each a probability for one occasion."""

    wrong_product: float = 0.15
    wrong_option: float = 0.10
    ignored_budget: float = 0.35
    look_further: float = 0.08
    """Turn the page once before choosing."""
    protocol_error: float = 0.05
    """A turn whose call is malformed."""
    generation_length: float = 0.012
    """A turn that ends at the length limit without a call."""


SCRIPTED = Habits()
CAREFUL = Habits(0.04, 0.03, 0.1, 0.05, 0.01, 0.001)


class Answer(NamedTuple):
    """One model turn: visible text, reasoning, (tool name, raw arguments) pairs and the finish reason."""

    content: str | None
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    finish_reason: str


class Choice(NamedTuple):
    """What a shopper wants to do, and why."""

    tool: str
    argument: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be bought, as far as the conversation tells."""

    instruction: str
    everything: str
    """Instruction and persona without spaces and separators, lower case."""
    words: frozenset[str]
    budget: float | None
    queries: tuple[str, ...]


def _squashed(text: str) -> str:
    return _SEPARATORS.sub("", text.lower())


def _persona_values(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, inner in value.items() if key != "user_id" for text in _persona_values(inner)]
    if isinstance(value, Sequence):
        return [text for inner in value for text in _persona_values(inner)]
    return []


@functools.lru_cache(maxsize=4096)
def _persona_of(system: str) -> tuple[str, ...]:
    """Texts of the longest JSON object that stands in the system message: a prompt may show small ones of its own."""
    longest, persona = 2, {}
    at = system.find("{")
    while at >= 0:
        try:
            found, end = json.JSONDecoder().raw_decode(system, at)
        except ValueError:
            end = at + 1
        else:
            if end - at > longest:
                longest, persona = end - at, found
        at = system.find("{", end)
    return tuple(_persona_values(persona))


@functools.lru_cache(maxsize=4096)
def _wish(system: str, first: str) -> Wish:
    head = first.partition(PAGE_MARK)[0]
    label, mark, rest = head.strip().replace(":", "：").partition("：")
    instruction = " ".join((rest if mark and len(label) <= 20 else head).split())
    persona = _persona_of(system)
    budget = _BUDGET.search(instruction)
    core = _FILLER.sub("", re.split("[，,。；]", instruction)[0])
    noun = core.rpartition("的")[2] or core
    detailed = " ".join([core, *(p for p in persona if len(p) <= 8)][:6])
    return Wish(
        instruction=instruction,
        everything=_squashed(" ".join([instruction, *persona])),
        words=frozenset(terms(" ".join([instruction, *persona]))),
        budget=None if budget is None else float(budget[1]),
        queries=tuple(q for q in (core, noun, detailed) if q.strip()) or (instruction or "商品",),
    )


@functools.lru_cache(maxsize=4096)
def _word_set(text: str) -> frozenset[str]:
    return frozenset(terms(text))


class _Reading(NamedTuple):
    """The conversation as a shopper sees it."""

    wish: Wish
    page: PageText | None
    clicked: tuple[str, ...]
    searches: int
    corrected: bool
    """The last answer was refused and is to be put right."""
    seed: int
    turn: int

    def luck(self, what: str) -> float:
        return u01(self.seed, self.turn, what)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # content parts
        return "".join(p.get("text", "") for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def _calls_made(messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], int]:
    """-> (values clicked in order, searches made)."""
    clicked: list[str] = []
    searches = 0
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            try:
                arguments = orjson.loads(call["function"]["arguments"])
                name = call["function"]["name"]
            except (KeyError, TypeError, ValueError):
                continue  # our own malformed call, sent back to us
            if name == "search":
                searches += 1
            elif name == "click" and isinstance(arguments, dict):
                clicked.append(str(arguments.get("value", "")))
    return tuple(clicked), searches


def _read(messages: Sequence[Mapping[str, Any]], seed: int | None) -> _Reading:
    system = _text(messages[0]) if messages and messages[0].get("role") == "system" else ""
    first = next((_text(m) for m in messages if m.get("role") == "user"), "")
    page: PageText | None = None
    for message in reversed(messages):
        if message.get("role") in ("user", "tool"):
            text = _text(message)
            if PAGE_MARK in text:
                page = read_page(text)
                break
    clicked, searches = _calls_made(messages)
    last = _text(messages[-1]) if messages else ""
    if seed is None:
        seed = zlib.crc32(first.encode("utf-8", "surrogatepass"))
    return _Reading(_wish(system, first), page, clicked, searches, FEEDBACK_MARK in last, seed, len(messages))


def _likeness(item: ListedProduct, wish: Wish) -> float:
    score = 0.3 * len(_word_set(item.title) & wish.words)
    score += sum(2.0 for a in item.attributes if _squashed(a) in wish.everything)
    if _squashed(item.category.rpartition("›")[2]) in wish.everything:
        score += 4.0
    return score


def _choose_product(r: _Reading, page: PageText, habits: Habits) -> Choice:
    fresh = [p for p in page.products if p.asin not in r.clicked]
    if not fresh:
        return Choice("click", BACK, "Nothing here that I have not looked at.")
    if NEXT in page.clickable and NEXT not in r.clicked and r.luck("further") < habits.look_further:
        return Choice("click", NEXT, "Let me see more before choosing.")
    budget = None if r.luck("budget") < habits.ignored_budget else r.wish.budget

    def rank(item: ListedProduct) -> tuple[float, str]:
        over = 4.0 if budget is not None and item.price > budget else 0.0
        return over - _likeness(item, r.wish), item.asin

    ranked = sorted(fresh, key=rank)
    if len(ranked) > 1 and r.luck("product") < habits.wrong_product:
        pick = ranked[1 + int(r.luck("which product") * min(4, len(ranked) - 1))]
        return Choice("click", pick.asin, f"{pick.title} looks interesting.")
    return Choice("click", ranked[0].asin, f"{ranked[0].title} fits best.")


def _choose_on_product(r: _Reading, page: PageText, habits: Habits) -> Choice:
    for axis in page.axes:
        if axis.chosen is not None:
            continue
        if r.luck("option") < habits.wrong_option:
            value = axis.values[int(r.luck("which option") * len(axis.values))]
            return Choice("click", f"{axis.name}={value}", f"Any {axis.name} will do.")
        named = [v for v in axis.values if _squashed(v) in r.wish.everything]
        value = max(named, key=len) if named else axis.values[0]
        return Choice("click", f"{axis.name}={value}", f"The {axis.name} that was asked for is {value}.")
    over = r.wish.budget is not None and page.price is not None and page.price > r.wish.budget
    if over and PREVIOUS in page.clickable and PREVIOUS not in r.clicked and r.luck("pay") >= habits.ignored_budget:
        return Choice("click", PREVIOUS, "This is over the budget; back to the list.")
    return Choice("click", BUY, "Everything is chosen; buy.")


def _choose(r: _Reading, habits: Habits) -> Choice | None:
    page = r.page
    if page is None:
        return None
    if page.can_search:
        query = r.wish.queries[r.searches % len(r.wish.queries)]
        return Choice("search", query, f"The task is: {r.wish.instruction}. I search for {query}.")
    if page.products:
        return _choose_product(r, page, habits)
    if BUY in page.clickable or any(axis.chosen is None for axis in page.axes):
        return _choose_on_product(r, page, habits)
    if page.clickable:
        return Choice("click", page.clickable[0], "Nothing to choose here.")
    return None


def _choose_at_random(r: _Reading) -> Choice | None:
    page = r.page
    if page is None:
        return None
    if page.can_search:
        words = sorted(r.wish.words) or ["商品"]
        return Choice("search", words[int(r.luck("word") * len(words))], "Some word.")
    if page.clickable:
        return Choice("click", page.clickable[int(r.luck("label") * len(page.clickable))], "Some label.")
    return None


def _offered(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    functions = [t["function"] for t in tools if isinstance(t.get("function"), dict)]
    return {f["name"]: f for f in functions if isinstance(f.get("name"), str)}


def _choose_from_tools(r: _Reading, offered: Mapping[str, Mapping[str, Any]]) -> Choice | None:
    """For pages that are not in the layout known here: the tools alone say what can be done."""
    if "search" in offered:
        return Choice("search", r.wish.queries[0], "A page I cannot read; I search.")
    try:
        enum = offered["click"]["parameters"]["properties"]["value"]["enum"]
    except (KeyError, TypeError):
        return None
    labels = [label for label in enum if isinstance(label, str)] if isinstance(enum, list) else []
    if not labels:
        return None
    forward = [label for label in labels if label not in (BACK, PREVIOUS)] or labels
    return Choice("click", BUY if BUY in labels else forward[0], "A page I cannot read; I take what is offered.")


def _arguments(tool: str, argument: str) -> str:
    return orjson.dumps({"query" if tool == "search" else "value": argument}).decode()


def malformed(choice: Choice, luck: float) -> Answer:
    """An answer that breaks the tool protocol; ``luck`` in (0, 1) picks how."""
    call = (choice.tool, _arguments(choice.tool, choice.argument))
    kind = int(luck * 4)
    if kind == 0:
        return Answer(f"I would {choice.tool} {choice.argument}.", choice.reason, (), "stop")
    if kind == 1:
        return Answer(None, choice.reason, (call, call), "tool_calls")
    if kind == 2:
        return Answer(None, choice.reason, ((call[0], call[1][:-1]),), "tool_calls")
    return Answer(None, choice.reason, (("finish", "{}"),), "tool_calls")


def shop(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    seed: int | None,
    habits: Habits | None = SCRIPTED,
) -> Answer:
    """The next answer of a shopper with these habits; None shops at random (well-formed calls, no thought)."""
    r = _read(messages, seed)
    offered = _offered(tools)
    choice = _choose_at_random(r) if habits is None else _choose(r, habits)
    if choice is None or choice.tool not in offered:
        choice = _choose_from_tools(r, offered)
    if choice is None:
        return Answer("There is nothing left to do.", "No tool is offered.", (), "stop")
    if habits is not None and not r.corrected:
        if r.luck("length") < habits.generation_length:
            return Answer(None, f"{choice.reason} But then again, " * 12, (), "length")
        if r.luck("protocol") < habits.protocol_error:
            return malformed(choice, r.luck("which error"))
    return Answer(None, choice.reason, ((choice.tool, _arguments(choice.tool, choice.argument)),), "tool_calls")


def random_policy(messages: Sequence[JsonObject], tools: Sequence[JsonObject], seed: int | None) -> Answer:
    """A shopper that clicks whatever is there: the floor that a reward must clear."""
    return shop(messages, tools, seed, None)
