from __future__ import annotations

from pathlib import Path

from rayeval.config import config_differences, differences, dotted, load_config

SMOKE = Path(__file__).parents[2] / "configs/smoke.yaml"


def test_a_config_does_not_differ_from_itself() -> None:
    assert config_differences(load_config(SMOKE).config, load_config(SMOKE).config) == []


def test_every_differing_key_is_listed_with_old_and_new() -> None:
    other = load_config(SMOKE, ["model.temperature=0", "execution.concurrency=8", "model.extra_body.a.b=1"]).config
    assert config_differences(load_config(SMOKE).config, other) == [
        ("model.temperature", 0.6, 0.0),
        ("model.extra_body.a.b", "(absent)", 1),
        ("execution.concurrency", 64, 8),
        ("model.extra_body", {}, "(absent)"),
    ]


def test_dotted_keeps_lists_and_empty_objects_whole() -> None:
    assert dotted({"a": {"b": [1], "c": {}}, "d": None}) == {"a.b": [1], "a.c": {}, "d": None}


def test_equal_values_of_other_types_differ() -> None:
    assert differences({"a": 1, "b": 1}, {"a": True, "b": 1.0}) == [("a", 1, True), ("b", 1, 1.0)]
