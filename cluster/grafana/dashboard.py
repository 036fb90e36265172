"""Writes ``rayeval.json``, the Grafana dashboard, from ``panels.yaml``: ``python cluster/grafana/dashboard.py``.

A test holds the file against this script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

JsonObject = dict[str, Any]
FILE = Path(__file__).with_name("rayeval.json")
PANELS = Path(__file__).with_name("panels.yaml")
UID = "rayeval-runs"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_FILTER = 'SessionName=~"$session",run=~"$run"'
_COLUMNS = 24


class Panel(NamedTuple):
    """One panel of ``panels.yaml``."""

    title: str
    about: str
    queries: dict[str, str]
    """Legend -> expression."""
    unit: str
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    decimals: int | None = None
    most: float | None = None
    """Upper end of the axis."""


def rows() -> Iterator[tuple[str, list[Panel]]]:
    """``panels.yaml``."""
    for row in yaml.safe_load(PANELS.read_text("utf-8")):
        yield row["row"], [Panel(p["title"], p["about"], p["queries"], **p["options"]) for p in row["panels"]]


def dashboard() -> JsonObject:
    """The dashboard as Grafana loads it."""
    return {
        "uid": UID,
        "title": "rayeval",
        "description": "Runs of rayeval on Ray. Names and meanings: docs/metrics.md; what to do: docs/operations.md.",
        "tags": ["rayeval", "ray"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{"title": "Ray's dashboards", "type": "dashboards", "tags": ["ray"], "asDropdown": True, "keepTime": True}],
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": list(_panels()),
    }


def _variables() -> list[JsonObject]:
    found: JsonObject = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    return [
        found,
        _labels("session", "Ray session", "label_values(ray_rayeval_run_active, SessionName)"),
        _labels("run", "Run", 'label_values(ray_rayeval_run_active{SessionName=~"$session"}, run)'),
    ]


def _labels(name: str, label: str, query: str) -> JsonObject:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def _panels() -> Iterator[JsonObject]:
    number, y = 0, 0
    for title, panels in rows():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
            "panels": [],
        }
        y, x = y + 1, 0
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + panel.height
            number += 1
            yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x += panel.width
        y += panels[-1].height


def _panel(number: int, panel: Panel, place: JsonObject) -> JsonObject:
    targets = [
        {
            "refId": chr(ord("A") + k),
            "datasource": _SOURCE,
            "expr": expression.replace("[R]", "[$__rate_interval]").replace("F}", f"{_FILTER}}}"),
            "legendFormat": legend,
            "range": panel.kind != "stat",
            "instant": panel.kind == "stat",
        }
        for k, (legend, expression) in enumerate(panel.queries.items())
    ]
    defaults: JsonObject = {"unit": panel.unit, "min": 0} if panel.title != "Mean reward" else {"unit": panel.unit}
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "stat":
        options: JsonObject = {
            "colorMode": "none",
            "graphMode": "none",
            "textMode": "value_and_name",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    else:
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0, "showPoints": "never", "stacking": stacking}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def text() -> str:
    """The content of ``rayeval.json``."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
