"""Canonical action strings: ``search[<query>]`` and ``click[<value>]``, and the feedback that answers them."""

from __future__ import annotations

import re
from typing import NamedTuple

from rayeval.schemas import JsonObject

MESSAGES = {
    "search": "搜索完成",
    "click": "点击完成",
    "buy": "购买完成",
    "format": "请使用 search[...] 或 click[...] 的写法",
    "newline": "search[...] 与 click[...] 中不能换行",
    "empty_query": "search[...] 缺少关键词",
    "empty_click": "click[...] 缺少点击值",
    "several": "每次只能提交一个动作",
    "no_search": "这个页面不能搜索",
}

_ACTION_LINE = re.compile(r"^[ \t]*action[ \t]*:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_ONE = re.compile(r"(search|click)\[(.*)\]", re.IGNORECASE)
_ONE_WITH_NEWLINE = re.compile(r"(search|click)\[.*\]", re.IGNORECASE | re.DOTALL)
_SEVERAL = re.compile(r"\][\s,;，；、]*(?:action\s*:\s*)?(?:search|click)\s*\[", re.IGNORECASE)


class ParsedAction(NamedTuple):
    """An action string taken apart; ``reason`` is ``executed`` when it is well formed."""

    text: str
    verb: str
    argument: str
    reason: str
    message: str


def parse_action(response: str) -> ParsedAction:
    """An agent's text taken apart: an escaped newline becomes one; a single ``Action:`` line stands for the whole."""
    text = response.replace("\\n", "\n")
    lines = _ACTION_LINE.findall(text)
    text = (lines[0] if len(lines) == 1 else text).strip()
    if _SEVERAL.search(text):
        return ParsedAction(text, "", "", "multiple_actions_not_allowed", MESSAGES["several"])
    match = _ONE.fullmatch(text)
    if match is None:
        message = MESSAGES["newline"] if _ONE_WITH_NEWLINE.fullmatch(text) else MESSAGES["format"]
        return ParsedAction(text, "", "", "invalid_format", message)
    verb, argument = match[1].lower(), match[2]
    if not argument.strip():
        message = MESSAGES["empty_query" if verb == "search" else "empty_click"]
        return ParsedAction(text, verb, argument, "empty_argument", message)
    return ParsedAction(text, verb, argument, "executed", MESSAGES[verb])


def feedback(text: str, reason: str, message: str, **extra: object) -> JsonObject:
    """``action_feedback``: only ``executed`` is valid."""
    return {"action": text, "valid": reason == "executed", "reason": reason, "message": message, **extra}
