from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.config import TasksSection
from rayeval.exceptions import ConfigurationError, InputError, SplitError, TestSplitGuardError
from rayeval.selection import Selection
from rayeval.tasks import Split, guard_test_split, load_split, resolve_persona, select_tasks


def write(tmp_path: Path, entry: Any, name: str = "val", **top: Any) -> Path:
    path = tmp_path / "split.json"
    path.write_text(json.dumps({**top, "splits": {name: entry}}), encoding="utf-8")
    return path


def tasks(**given: Any) -> TasksSection:
    return TasksSection.model_validate({"split_file": "/s.json", "split": "val", **given})


def test_listed_ids_keep_their_order(tmp_path: Path) -> None:
    split = load_split(write(tmp_path, {"task_ids": [8, 3, 11], "persona": True}, version="v1"), "val")
    assert (split.task_ids, split.persona, split.version, split.role) == ((8, 3, 11), True, "v1", None)


def test_bounds_are_half_open(tmp_path: Path) -> None:
    assert load_split(write(tmp_path, {"start": 3, "end": 6}), "val").task_ids == (3, 4, 5)


def test_version_falls_back_to_the_schema(tmp_path: Path) -> None:
    assert load_split(write(tmp_path, {"task_ids": [1]}, schema_version="s1"), "val").version == "s1"
    assert load_split(write(tmp_path, {"task_ids": [1]}), "val").version is None


def test_the_frozen_form_is_read(tmp_path: Path) -> None:
    entry = {"role": "val", "persona": True, "task_count": 2, "group_count": 2, "task_ids": [0, 4800], "task_ids_sha256": "…"}
    split = load_split(write(tmp_path, entry, schema_version="s", checks={}, grouping={}, policy={}, source={}), "val")
    assert (split.role, split.task_ids) == ("val", (0, 4800))


@pytest.mark.parametrize(
    ("entry", "field", "hint"),
    [
        ({}, "splits.val", "has neither"),
        ({"task_ids": [1], "start": 0, "end": 2}, "splits.val", "has both"),
        ({"task_ids": []}, "splits.val.task_ids", "at least one"),
        ({"task_ids": {"0": 1}}, "splits.val.task_ids", "at least one"),
        ({"task_ids": [1, True]}, "splits.val.task_ids[1]", "whole number"),
        ({"task_ids": [1, 2.0]}, "splits.val.task_ids[1]", "whole number"),
        ({"task_ids": [-1]}, "splits.val.task_ids[0]", "whole number"),
        ({"task_ids": [1, 2, 1]}, "splits.val.task_ids[2]", "once"),
        ({"start": 0}, "splits.val.end", "whole number"),
        ({"start": True, "end": 3}, "splits.val.start", "whole number"),
        ({"start": 3, "end": 3}, "splits.val.end", "more than start"),
        ({"start": 0, "end": 10**12}, "splits.val.end", "at most"),
        ({"task_ids": [1], "persona": "yes"}, "splits.val.persona", "true, false or null"),
        ({"task_ids": [1], "role": 3}, "splits.val.role", "such as train"),
        ({"task_ids": [1], "task_count": 2}, "splits.val.task_count", "the split has 1"),
        ({"task_ids": [1], "task_count": True}, "splits.val.task_count", "the split has 1"),
        ({"task_ids": [1], "tasks": [1]}, "splits.val.tasks", "an object"),
        ({"task_ids": [1], "task_fields": {"x": {}}}, "splits.val.task_fields.x", "under a task id"),
        ([1], "splits.val", "an object"),
    ],
)
def test_a_wrong_split_names_the_place(tmp_path: Path, entry: Any, field: str, hint: str) -> None:
    with pytest.raises(SplitError) as caught:
        load_split(write(tmp_path, entry), "val")
    assert caught.value.field == field
    assert hint in caught.value.hint
    assert "split.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"", "line 1"),
        (b'{"splits":\n{', "line 2"),
        (b"[]", '"splits" at the top level'),
        (b"{}", "an object of splits"),
        (b'{"splits": {"val": {"task_ids": [1], "x": NaN}}}', "finite"),
        (b'{"splits": {"val": {"task_ids": [1]}, "val": {"task_ids": [2]}}}', "there twice"),
        (b'{"splits": {"val": {"task_ids": [1], "task_ids": [2]}}}', "there twice"),
        (b'{"version": 1, "splits": {"val": {"task_ids": [1]}}}', "give a text"),
        ("é".encode("latin-1"), "UTF-8"),
        (b"[" * 100_000, "plain JSON"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, data: bytes, hint: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(data)
    with pytest.raises(SplitError) as caught:
        load_split(path, "val")
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_split_are_named(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="no such file"):
        load_split(tmp_path / "none.json", "val")
    with pytest.raises(SplitError, match="cannot be read"):
        load_split(tmp_path, "val")
    with pytest.raises(SplitError, match="give one of 'val'"):
        load_split(write(tmp_path, {"task_ids": [1]}), "vall")


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, {"task_ids": [1]})
    plain = load_split(path, "val")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b", ", b",\r\n"))
    assert load_split(path, "val") == plain


def test_the_hash_sees_this_split_alone(tmp_path: Path) -> None:
    path = write(tmp_path, {"task_ids": [1]})
    before = load_split(path, "val").sha256
    manifest = json.loads(path.read_text())
    manifest["splits"]["other"] = {"task_ids": [2]}
    path.write_text(json.dumps(manifest))
    assert load_split(path, "val").sha256 == before
    manifest["splits"]["val"]["note"] = "x"
    path.write_text(json.dumps(manifest))
    assert load_split(path, "val").sha256 != before


@pytest.mark.parametrize(
    ("configured", "split", "resolved"),
    [(None, True, True), (None, False, False), (None, None, False), (True, None, True), (True, True, True), (False, None, False)],
)
def test_persona_is_resolved(tmp_path: Path, configured: bool | None, split: bool | None, resolved: bool) -> None:
    path = write(tmp_path, {"task_ids": [1], "persona": split})
    assert resolve_persona(configured, load_split(path, "val")) is resolved


def test_a_persona_conflict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"environment\.persona = False"):
        resolve_persona(False, load_split(write(tmp_path, {"task_ids": [1], "persona": True}), "val"))


@pytest.mark.parametrize(
    ("name", "role", "guarded"),
    [
        ("test", None, True),
        ("Test", None, True),
        ("final", "test", True),
        ("final", " TEST ", True),
        ("test", "val", False),
        ("val", None, False),
    ],
)
def test_the_role_decides_who_is_guarded(tmp_path: Path, name: str, role: str | None, guarded: bool) -> None:
    assert load_split(write(tmp_path, {"task_ids": [1], "role": role}, name), name).is_test is guarded


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"unlock_test": None}, "tasks.unlock_test"),
        ({"repeats": 2}, "tasks.repeats = 2"),
        ({"sample_size": 1}, "tasks.sample_size = 1"),
        ({"task_ids": [1]}, "tasks.task_ids"),
    ],
)
def test_a_test_split_passes_only_unlocked_and_whole(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    split = load_split(write(tmp_path, {"task_ids": [1, 2], "role": "test"}), "val")
    guard_test_split(split, tasks(unlock_test="final"), None, Selection())
    with pytest.raises(TestSplitGuardError, match=named) as caught:
        guard_test_split(split, tasks(**{"unlock_test": "final", **changed}), None, Selection())
    assert caught.value.exit_code == 4


def test_a_test_split_refuses_skills_and_selections_and_names_all_at_once(tmp_path: Path) -> None:
    split = load_split(write(tmp_path, {"task_ids": [1, 2], "role": "test"}), "val")
    with pytest.raises(TestSplitGuardError) as caught:
        guard_test_split(split, tasks(repeats=3), Path("/b.json"), Selection(limit=1))
    for named in ("tasks.unlock_test", "skills.path", "tasks.repeats", "--limit"):
        assert named in str(caught.value)


def test_another_split_needs_no_unlock(tmp_path: Path) -> None:
    split = load_split(write(tmp_path, {"task_ids": [1]}), "val")
    guard_test_split(split, tasks(repeats=3), Path("/b.json"), Selection(limit=1))


def test_explicit_ids_keep_the_given_order(tmp_path: Path) -> None:
    split = load_split(write(tmp_path, {"task_ids": [1, 2, 3]}), "val")
    assert select_tasks(split, tasks(task_ids=[3, 1]), 0, Selection()) == (3, 1)
    with pytest.raises(ConfigurationError, match="not in the split"):
        select_tasks(split, tasks(task_ids=[4]), 0, Selection())


@settings(deadline=None)
@given(st.integers(), st.integers(1, 30))
def test_sampling_is_that_of_random_sample(seed: int, size: int) -> None:
    ids = tuple(range(100, 130))
    split = Split("val", None, None, ids, None, "")
    expected = random.Random(seed).sample(list(ids), size)
    assert select_tasks(split, tasks(sample_size=size), seed, Selection()) == tuple(expected)


def test_a_sample_larger_than_the_split_is_refused(tmp_path: Path) -> None:
    split = load_split(write(tmp_path, {"task_ids": [1, 2]}), "val")
    with pytest.raises(ConfigurationError, match="there are 2 tasks"):
        select_tasks(split, tasks(sample_size=3), 0, Selection())


def test_task_and_where_narrow_in_plan_order(tmp_path: Path) -> None:
    entry = {"task_ids": [9, 1, 5, 7], "role": "val", "tasks": {"9": {"shop": "a"}, "5": {"shop": "a"}, "7": {"shop": "b"}}}
    split = load_split(write(tmp_path, entry), "val")
    assert select_tasks(split, tasks(), 0, Selection(task="1,5-9")) == (9, 1, 5, 7)
    assert select_tasks(split, tasks(), 0, Selection(task="5-7")) == (5, 7)
    assert select_tasks(split, tasks(), 0, Selection(where="shop == 'a'")) == (9, 5)
    assert select_tasks(split, tasks(), 0, Selection(task="5-7", where="shop == 'a' and role == 'val'")) == (5,)


@pytest.mark.parametrize("selection", [Selection(task="2"), Selection(task="100-200"), Selection(where="task_id > 100")])
def test_a_selection_of_nothing_is_refused(tmp_path: Path, selection: Selection) -> None:
    split = load_split(write(tmp_path, {"task_ids": [1, 3]}), "val")
    with pytest.raises(InputError, match="give"):
        select_tasks(split, tasks(), 0, selection)
