from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.exceptions import ConfigurationError
from rayeval.selection import Selection, matching_tasks, task_ranges

FIELDS: dict[int, dict[str, Any]] = {
    1: {"category": "shoes", "price": 10, "tags": ["a", "b"]},
    2: {"category": "shoes", "price": 30.5},
    3: {"category": "tea", "price": None, "tags": ["b"]},
}


def matching(where: str) -> list[int]:
    return matching_tasks(where, [3, 1, 2, 4], "val", "val", True, FIELDS)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ('split == "val" and persona', [3, 1, 2, 4]),
        ("persona == true", [3, 1, 2, 4]),
        ("not persona", []),
        ("task_id >= 2", [3, 2, 4]),
        ("1 < task_id <= 3", [3, 2]),
        ("category == 'shoes' or task_id == 4", [1, 2, 4]),
        ("category != 'shoes'", [3, 4]),
        ("category in ['tea', 'shoes']", [3, 1, 2]),
        ("category not in ('tea', null)", [1, 2]),
        ("price < 20", [1]),
        ("price > -1", [1, 2]),
        ("price == null", [3, 4]),
        ("'b' in tags", [3, 1]),
        ("'sho' in category", [1, 2]),
        ("not (task_id == 1)", [3, 2, 4]),
    ],
)
def test_conditions_choose_by_manifest_fields(where: str, ids: list[int]) -> None:
    assert matching(where) == ids


def test_an_unknown_field_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        matching("colour == 'red'")
    assert "split, role, persona, task_id, category, price, tags" in str(caught.value)


@pytest.mark.parametrize("where", ["category < 5", "5 in task_id"])
def test_values_of_two_kinds_are_not_compared(where: str) -> None:
    with pytest.raises(ConfigurationError, match="of one kind"):
        matching(where)


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('id')",
        "task_id.__class__",
        "[x for x in tags]",
        "tags[0]",
        "task_id + 1 == 2",
        "lambda: 1",
        "f'{task_id}'",
        "1",
        "'x'",
        "task_id is 1",
        "task_id = 1",
        "task_id == 1j",
        "b'x' == 1",
        "{} == 1",
        "task_id in 5",
        "(y := 1) == 1",
        "task_id ==",
        "",
        "\0",
        "\udcff == 1",
        "not " * 500 + "persona",
        "(" * 900 + "persona" + ")" * 900,
        "task_id == 1 or " * 200 + "persona",
    ],
)
def test_anything_beyond_the_whitelist_is_refused(where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Selection(where=where)
    assert len(str(caught.value).splitlines()) == 1


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_refusal(text: str) -> None:
    try:
        selected = matching(text)
    except ConfigurationError:
        return
    assert set(selected) <= {1, 2, 3, 4}


@pytest.mark.parametrize(("text", "ranges"), [("12", [(12, 12)]), ("12,40-60", [(12, 12), (40, 60)]), (" 1 - 2 , 3 ", [(1, 2), (3, 3)])])
def test_ranges_include_both_ends(text: str, ranges: list[tuple[int, int]]) -> None:
    assert task_ranges(text) == ranges


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "1,,2", "1.5", "١", "9" * 30])
def test_unreadable_ranges_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="12,40-60"):
        Selection(task=text)


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_limit_is_a_number_of_episodes(limit: int) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        Selection(limit=limit)


def test_a_selection_has_one_spelling_and_words() -> None:
    first = Selection(limit=1, task=" 1 - 3,7", where='split=="val"  and  persona')
    assert first == Selection(limit=1, task="1-3,7", where="split == 'val' and (persona)")
    assert first.words == "tasks 1-3,7, where split == 'val' and persona, the first 1 episode"
    assert first.to_json() == {"limit": 1, "task": "1-3,7", "where": "split == 'val' and persona"}
    assert (Selection().words, Selection().to_json()) == ("", None)
