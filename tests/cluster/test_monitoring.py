"""Dashboard, alerts and Prometheus' configuration: they ask for what the code gives, and Prometheus' own tools accept them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from rayeval.metric_names import METRICS, Kind, exported, given, series
from tests.cluster.queries import CLUSTER, Query, alert_queries, alerts, dashboard, filled, labels_asked, names, panel_queries, selectors

_DOCS = Path(__file__).parents[2] / "docs"
_ADDED_BY_RAY = {"SessionName", "WorkerId", "NodeAddress"}
_QUERIES = [*panel_queries(), *alert_queries()]


def promtool(*arguments: str) -> str:
    """Run promtool on files of ``cluster/``; -> what it said. Skips where it is not installed, fails in CI."""
    tool = shutil.which("promtool")
    if tool is None:
        assert not os.environ.get("CI"), "promtool is missing: apt-get install prometheus"
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run([tool, *arguments], cwd=CLUSTER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("query", _QUERIES, ids=lambda q: q.place)
def test_each_query_asks_for_metrics_and_labels_that_the_code_gives(query: Query) -> None:
    known = series()
    asked = names(query.expression)
    assert asked and asked <= set(known), f"{query.place}: no such metric: {asked - set(known)}"
    allowed = _ADDED_BY_RAY.union(*(known[name] for name in asked))
    assert labels_asked(query.expression) <= allowed, f"{query.place}: {labels_asked(query.expression) - allowed}"


@pytest.mark.parametrize("query", list(panel_queries()), ids=lambda q: q.place)
def test_each_panel_query_filters_by_session_and_run(query: Query) -> None:
    for selector in selectors(query.expression):
        if not query.place.startswith("variable"):
            assert 'SessionName=~"$session"' in selector and 'run=~"$run"' in selector, selector


def test_each_metric_is_shown() -> None:
    shown = set().union(*(names(q.expression) for q in _QUERIES))
    for metric in METRICS:
        parts = [
            exported(part)
            for part in given()
            if part.name == metric.name or (metric.kind is Kind.HISTOGRAM and part.name.startswith(metric.name))
        ]
        assert shown.intersection(parts), f"no panel or alert has {metric.name}"


def test_the_dashboard_file_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("rayeval_dashboard", CLUSTER / "grafana" / "dashboard.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (CLUSTER / "grafana" / "rayeval.json").read_text("utf-8")
    assert text == script.text(), "run: python cluster/grafana/dashboard.py"


def test_the_dashboard_keeps_the_conventions_of_grafana() -> None:
    board = dashboard()
    assert board["uid"] == "rayeval-runs" and board["schemaVersion"] >= 39
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert list(variables) == ["datasource", "session", "run"]
    assert variables["datasource"]["type"] == "datasource" and "current" not in variables["datasource"]
    panels = board["panels"]
    assert [p["id"] for p in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
    text = (CLUSTER / "grafana" / "rayeval.json").read_text("utf-8")
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"rayeval-runs", "${datasource}"}
    assert "iframe" not in text


def test_each_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in (_DOCS / "operations.md").read_text("utf-8").splitlines()
        if line.startswith("#")
    }
    told = (_DOCS / "metrics.md").read_text("utf-8")
    for rule in alerts():
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert set(notes) == {"summary", "description", "runbook_url"}, name
        document, _, anchor = notes["runbook_url"].partition("#")
        assert document == "docs/operations.md" and anchor in headings, f"{name}: no heading for {notes['runbook_url']}"
        assert f"| `{name}` | {rule['labels']['severity']} |" in told, f"docs/metrics.md does not tell of {name}"


def test_each_alert_has_a_case_that_fires_it() -> None:
    cases = yaml.safe_load((Path(__file__).parent / "alerts_test.yml").read_text("utf-8"))["tests"]
    fired = {test["alertname"] for case in cases for test in case["alert_rule_test"] if test["exp_alerts"]}
    assert fired == {rule["alert"] for rule in alerts()}


def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    assert "valid prometheus config" in promtool("check", "config", "prometheus.yml")
    assert f"{len(alerts())} rules found" in promtool("check", "rules", "alerts.yml")


def test_alerts_fire_when_they_should_and_else_not() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(Path(__file__).parent / "alerts_test.yml"))


def test_prometheus_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"q:{k}", "expr": filled(query.expression)} for k, query in enumerate(panel_queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))
