"""Nested objects as dotted keys, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayeval.config._models import Config

ABSENT = "(absent)"
"""Stands for a key that only the other side has."""


def dotted(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``. Lists and empty objects are leaves."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and inner:
            flat.update(dotted(inner, f"{name}."))
        else:
            flat[name] = inner
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Rows (dotted key, old, new) for every leaf that differs, the new side's keys first in their order."""
    a, b = dotted(old), dotted(new)
    rows = []
    for key in (*b, *(k for k in a if k not in b)):
        left, right = a.get(key, ABSENT), b.get(key, ABSENT)
        if left != right or type(left) is not type(right):
            rows.append((key, left, right))
    return rows


def config_differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    """Rows (dotted key, value in ``a``, value in ``b``) in the order of the configuration."""
    return differences(a.model_dump(mode="json"), b.model_dump(mode="json"))
