"""The list of metrics, and that the document tells of each."""

from __future__ import annotations

import re
from pathlib import Path

from rayeval.metric_names import METRICS, RUN, Kind, exported, given, series

_DOCUMENT = Path(__file__).parents[1] / "docs" / "metrics.md"
_UNITS = ("_seconds", "_bytes")
_NO_IDS = {"episode", "episode_id", "task", "task_id", "actor", "actor_id", "worker", "pid"}


def test_names_are_unique_and_in_the_form_of_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"rayeval_[a-z]+(_[a-z]+)*", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith("_seconds")
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", metric.name), metric.name
        assert metric.meaning.endswith(".")


def test_labels_are_few_and_never_an_id() -> None:
    for metric in METRICS:
        assert len(metric.labels) <= 2
        assert RUN not in metric.labels and not _NO_IDS & set(metric.labels), metric.name


def test_names_as_prometheus_sees_them() -> None:
    by_name = {metric.name: exported(metric) for metric in given()}
    assert by_name["rayeval_steps_total"] == "ray_rayeval_steps_total"
    assert by_name["rayeval_slots"] == "ray_rayeval_slots"
    assert by_name["rayeval_model_latency_seconds_bucket"] == "ray_rayeval_model_latency_seconds_bucket_total"
    assert series()["ray_rayeval_model_latency_seconds_bucket_total"] == {"run", "endpoint", "le"}
    assert series()["ray_rayeval_model_latency_seconds_sum_total"] == {"run", "endpoint"}


def test_the_document_names_every_series_with_its_labels_and_nothing_else() -> None:
    told = {}
    for line in _DOCUMENT.read_text("utf-8").splitlines():
        row = re.match(r"\| `(ray_rayeval_\w+)` \| ([^|]*) \| (\w+) \| (.*) \|$", line)
        if row:
            told[row[1]] = (frozenset(re.findall(r"`(\w+)`", row[2])), row[3], row[4])
    of_histograms = {f"ray_{m.name}" for m in METRICS if m.kind is Kind.HISTOGRAM}
    expected = {}
    for metric in METRICS:
        name = f"ray_{metric.name}" if metric.kind is Kind.HISTOGRAM else exported(metric)
        expected[name] = (frozenset(metric.labels), metric.kind.value, metric.meaning)
    assert told == expected
    text = _DOCUMENT.read_text("utf-8")
    others = set(re.findall(r"ray_rayeval_\w+", text)) - set(series()) - of_histograms
    assert not others, f"no such series: {others}"
