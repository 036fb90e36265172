"""What the dashboard and the alerts ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"
_NAME = re.compile(r"\bray_rayeval_\w+")
_SELECTOR = re.compile(r"\b(ray_rayeval_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"[^\"]*\"")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


class Query(NamedTuple):
    """One expression and where it stands."""

    place: str
    expression: str


def dashboard() -> dict[str, Any]:
    """``rayeval.json``."""
    content: dict[str, Any] = json.loads((CLUSTER / "grafana" / "rayeval.json").read_text("utf-8"))
    return content


def alerts() -> list[dict[str, Any]]:
    """The rules of ``alerts.yml``."""
    content = yaml.safe_load((CLUSTER / "alerts.yml").read_text("utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


def panel_queries() -> Iterator[Query]:
    """Every query of every panel, and those of the variables as selectors."""
    board = dashboard()
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"panel {panel['title']!r} {target['refId']}", target["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield Query(f"variable {variable['name']}", variable["definition"].removeprefix("label_values(").rpartition(",")[0])


def alert_queries() -> Iterator[Query]:
    """The expression of every alert."""
    for rule in alerts():
        yield Query(f"alert {rule['alert']}", rule["expr"])


def filled(expression: str, run: str = ".*", interval: str = "1m") -> str:
    """With the dashboard's variables filled in."""
    done = expression.replace("$__rate_interval", interval).replace("$session", ".*").replace("$run", run)
    assert "$" not in done, f"a variable is left: {done}"
    return done


def selectors(expression: str) -> set[str]:
    """The instant selectors of ours in an expression."""
    return {name + (f"{{{matchers}}}" if matchers else "") for name, matchers in _SELECTOR.findall(expression)}


def names(expression: str) -> set[str]:
    """The metrics of ours in an expression."""
    return set(_NAME.findall(expression))


def labels_asked(expression: str) -> set[str]:
    """Labels that an expression matches or groups by."""
    matched = {label for _, matchers in _SELECTOR.findall(expression) for label in _MATCHER.findall(matchers)}
    grouped = {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")}
    return (matched | grouped) - {""}
