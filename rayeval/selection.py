"""``--limit``, ``--task`` and ``--where``: a part of a plan, in words and as data.

A ``--where`` condition sees only what the split manifest says: ``split``, ``role``, ``persona``, ``task_id`` and the
fields that the split gives its tasks. It is parsed with ``ast`` and walked here; nothing is evaluated as Python.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayeval.exceptions import ConfigurationError
from rayeval.schemas import JsonObject

MAX_WHERE = 2000
"""Characters of a condition."""

_OPERATORS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.In: ("in", lambda a, b: a in b),
    ast.NotIn: ("not in", lambda a, b: a not in b),
}
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_WORDS = {"true": True, "false": False, "null": None}
_ALLOWED = "give comparisons (==, !=, <, <=, >, >=, in, not in) of fields and constants, joined by and, or, not"


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a plan; all of it is semantic. Raises ConfigurationError when made of something unreadable."""

    limit: int | None = None
    """The first so many *episodes* in job order, after everything else."""
    task: str | None = None
    """``12,40-60``: single ids and ranges, both ends included."""
    where: str | None = None
    """A condition over the split manifest's fields."""

    def __post_init__(self) -> None:
        if self.limit is not None and (isinstance(self.limit, bool) or self.limit < 1):
            raise ConfigurationError("--limit", self.limit, "give a number of episodes, 1 or more")
        if self.task is not None:
            ranges = task_ranges(self.task)
            words = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
            object.__setattr__(self, "task", words)
        if self.where is not None:
            object.__setattr__(self, "where", ast.unparse(_parse(self.where)))

    @property
    def words(self) -> str:
        """As a sentence for people; empty when nothing is selected."""
        parts = []
        if self.task is not None:
            parts.append(f"tasks {self.task}")
        if self.where is not None:
            parts.append(f"where {self.where}")
        if self.limit is not None:
            parts.append(f"the first {self.limit} episode{'s' if self.limit > 1 else ''}")
        return ", ".join(parts)

    def to_json(self) -> JsonObject | None:
        """What enters the fingerprint; None when nothing is selected."""
        return {"limit": self.limit, "task": self.task, "where": self.where} if self.words else None


def task_ranges(text: str) -> list[tuple[int, int]]:
    """``12,40-60`` -> [(12, 12), (40, 60)], both ends included. Raises ConfigurationError."""
    ranges = []
    for part in text.split(","):
        low, dash, high = (p.strip() for p in part.partition("-"))
        ends = (low, high) if dash else (low, low)
        if not all(e.isascii() and e.isdigit() and len(e) <= 18 for e in ends) or int(ends[0]) > int(ends[1]):
            raise ConfigurationError("--task", text, "give ids and ranges, as 12,40-60")
        ranges.append((int(ends[0]), int(ends[1])))
    return ranges


def matching_tasks(
    where: str,
    ids: Sequence[int],
    split: str,
    role: str | None,
    persona: bool | None,
    fields: Mapping[int, JsonObject],
) -> list[int]:
    """The ids whose fields meet the condition, order kept. A field that a task lacks is null, and null is in no order.

    Raises ConfigurationError for an unknown field (naming the known ones) and for values that cannot be compared.
    """
    tree = _parse(where)
    base = {"split": split, "role": role, "persona": persona, "task_id": None}
    known = [*base, *sorted({name for t in ids for name in fields.get(t, ())} - set(base))]
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - set(_WORDS)
    for name in sorted(names):
        if name not in known:
            raise ConfigurationError("--where", name, f"no such field; the split manifest has {', '.join(known)}")
    kept = []
    for task_id in ids:
        values = {**fields.get(task_id, {}), **base, "task_id": task_id}
        try:
            if _value(tree, values):
                kept.append(task_id)
        except TypeError as error:
            raise ConfigurationError("--where", where, f"task {task_id}: {error}; compare values of one kind") from None
    return kept


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_WHERE:
        raise ConfigurationError("--where", text, f"give at most {MAX_WHERE} characters")
    try:
        text.encode()
        with warnings.catch_warnings(action="ignore"):  # of odd literals, which _check refuses or takes as they are
            tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, text, condition=True)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        problem = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigurationError("--where", text, f"{problem}; {_ALLOWED}") from None
    except (RecursionError, MemoryError):
        raise ConfigurationError("--where", text, "is nested too deeply; give a simpler condition") from None
    return tree


def _check(node: ast.expr, text: str, condition: bool = False) -> None:
    """Refuse everything but the whitelist."""
    match node:
        case ast.BoolOp():
            for part in node.values:
                _check(part, text, condition=True)
        case ast.UnaryOp(op=ast.Not()):
            _check(node.operand, text, condition=True)
        case ast.Compare() if all(type(op) in _OPERATORS for op in node.ops):
            for op, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Constant) and not isinstance(right.value, str):
                    raise ConfigurationError("--where", text, "give a list, a text or a field after 'in'")
            for part in (node.left, *node.comparators):
                _check(part, text)
        case ast.Name():
            pass
        case ast.Constant(value=bool() | None):
            pass
        case ast.Constant(value=str() | int() | float()) if not condition:
            pass
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())) if not condition:
            pass
        case ast.List() | ast.Tuple() if not condition:
            for part in node.elts:
                _check(part, text)
        case _:
            raise ConfigurationError("--where", text, f"{ast.unparse(node)!r} is not read here; {_ALLOWED}")


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And()):
            return all(_value(part, values) for part in node.values)
        case ast.BoolOp():
            return any(_value(part, values) for part in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, values)
        case ast.UnaryOp(operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Compare():
            return _compare(node, values)
        case ast.Name():
            return _WORDS[node.id] if node.id in _WORDS else values.get(node.id)
        case ast.List() | ast.Tuple():
            return [_value(part, values) for part in node.elts]
        case ast.Constant():
            return node.value
    raise AssertionError(f"{ast.dump(node)} passed the check")


def _compare(node: ast.Compare, values: Mapping[str, Any]) -> bool:
    left = _value(node.left, values)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, values)
        missing = (right is None and not isinstance(op, ast.Eq | ast.NotEq)) or (left is None and isinstance(op, _ORDER))
        if missing or not _OPERATORS[type(op)][1](left, right):
            return False
        left = right
    return True
