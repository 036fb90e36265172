"""Split manifests, the test guard, and which tasks of a split are run in which order."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayeval.encoding import read_bounded
from rayeval.exceptions import ConfigurationError, SplitError, TestSplitGuardError
from rayeval.hashing import fingerprint
from rayeval.schemas import JsonObject
from rayeval.selection import Selection, matching_tasks, task_ranges

if TYPE_CHECKING:
    from rayeval.config import TasksSection

MAX_TASKS = 5_000_000
TEST_ROLE = "test"


MAX_SPLIT_BYTES = 256 << 20
"""A split of ten million ids fits."""


@dataclass(frozen=True)
class Split:
    """One split of a manifest."""

    name: str
    role: str | None
    persona: bool | None
    task_ids: tuple[int, ...]
    """In the manifest's order."""
    version: str | None
    """The manifest's ``version``, else its ``schema_version``."""
    sha256: str
    """Fingerprint of this split's entry and the version: other splits, spaces and the path do not change it."""
    fields: Mapping[int, JsonObject] = field(default_factory=dict, repr=False)
    """What the manifest says of single tasks (``tasks`` or ``task_fields`` of the split), for ``--where``."""

    @property
    def is_test(self) -> bool:
        """The declared role decides; without one, the name."""
        return (self.role if self.role is not None else self.name).strip().casefold() == TEST_ROLE


def load_split(path: Path, name: str) -> Split:
    """Raises SplitError, which names the place inside the file."""
    manifest = _read_manifest(path)
    splits = manifest.get("splits")
    if not isinstance(splits, dict) or not splits:
        raise SplitError("splits", splits, f'give an object of splits, as {{"val": {{"task_ids": [3, 8]}}}} ({path})')
    if name not in splits:
        raise SplitError("tasks.split", name, f"give one of {', '.join(map(repr, splits))} ({path})")
    version = manifest.get("version", manifest.get("schema_version"))
    if version is not None and not isinstance(version, str):
        raise SplitError("version", version, f"give a text ({path})")
    entry, at = splits[name], f"splits.{name}"
    if not isinstance(entry, dict):
        raise SplitError(at, entry, f"give an object with task_ids, or with start and end ({path})")
    role, persona = entry.get("role"), entry.get("persona")
    if role is not None and (not isinstance(role, str) or not role.strip()):
        raise SplitError(f"{at}.role", role, f"give a text such as train, val or test ({path})")
    if persona is not None and not isinstance(persona, bool):
        raise SplitError(f"{at}.persona", persona, f"give true, false or null ({path})")
    task_ids = _task_ids(entry, at, path)
    count = entry.get("task_count")
    if count is not None and (isinstance(count, bool) or count != len(task_ids)):
        raise SplitError(f"{at}.task_count", count, f"the split has {len(task_ids)} tasks; give that number ({path})")
    fields = _task_fields(entry, at, path)
    digest = fingerprint({"version": version, "split": entry})
    return Split(name, role, persona, task_ids, version, digest, fields)


def _read_manifest(path: Path) -> JsonObject:
    def unique(pairs: list[tuple[str, Any]]) -> JsonObject:
        out = dict(pairs)
        if len(out) < len(pairs):
            keys = [k for k, _ in pairs]
            twice = next(k for k in keys if keys.count(k) > 1)
            raise SplitError("tasks.split_file", str(path), f"the key {twice!r} is there twice; give it once")
        return out

    def finite(text: str) -> float:
        raise SplitError("tasks.split_file", str(path), f"holds {text}; give finite numbers")

    try:
        text = read_bounded(path, MAX_SPLIT_BYTES).decode("utf-8-sig")
        manifest = json.loads(text, object_pairs_hook=unique, parse_constant=finite)
        fingerprint(manifest)
    except SplitError:
        raise
    except FileNotFoundError:
        raise SplitError("tasks.split_file", str(path), "no such file; give the path of a split manifest") from None
    except OSError as error:
        raise SplitError("tasks.split_file", str(path), f"cannot be read ({error.strerror}); give a readable file") from None
    except json.JSONDecodeError as error:
        hint = f"line {error.lineno}, column {error.colno}: {error.msg}; give valid JSON"
        raise SplitError("tasks.split_file", str(path), hint) from None
    except (ValueError, RecursionError) as error:
        raise SplitError("tasks.split_file", str(path), f"{error}; give plain JSON in UTF-8") from None
    if not isinstance(manifest, dict):
        raise SplitError("tasks.split_file", str(path), 'give a JSON object with "splits" at the top level')
    return manifest


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _task_ids(entry: JsonObject, at: str, path: Path) -> tuple[int, ...]:
    listed, bounds = "task_ids" in entry, "start" in entry or "end" in entry
    if listed == bounds:
        given = "both" if listed else "neither"
        raise SplitError(at, None, f"has {given}; give either task_ids, or start and end (end is not included) ({path})")
    if bounds:
        for key in ("start", "end"):
            if not _is_id(entry.get(key)):
                raise SplitError(f"{at}.{key}", entry.get(key), f"give a whole number, 0 or more ({path})")
        if not 0 < entry["end"] - entry["start"] <= MAX_TASKS:
            hint = f"give more than start ({entry['start']}), by at most {MAX_TASKS}: end is not included ({path})"
            raise SplitError(f"{at}.end", entry["end"], hint)
        return tuple(range(entry["start"], entry["end"]))
    ids = entry["task_ids"]
    if not isinstance(ids, list) or not ids:
        raise SplitError(f"{at}.task_ids", ids, f"give a list of at least one task id ({path})")
    seen: set[int] = set()
    for i, task_id in enumerate(ids):
        if not _is_id(task_id):
            raise SplitError(f"{at}.task_ids[{i}]", task_id, f"give a whole number, 0 or more ({path})")
        if task_id in seen:
            raise SplitError(f"{at}.task_ids[{i}]", task_id, f"is there twice; give each task once ({path})")
        seen.add(task_id)
    return tuple(ids)


def _task_fields(entry: JsonObject, at: str, path: Path) -> dict[int, JsonObject]:
    key = "tasks" if "tasks" in entry else "task_fields"
    fields = entry.get(key)
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise SplitError(f"{at}.{key}", fields, f"give an object: task id -> object of fields ({path})")
    out: dict[int, JsonObject] = {}
    for task_id, values in fields.items():
        if not (task_id.isascii() and task_id.isdigit()) or not isinstance(values, dict):
            raise SplitError(f"{at}.{key}.{task_id}", values, f"give an object of fields under a task id ({path})")
        out[int(task_id)] = values
    return out


def resolve_persona(configured: bool | None, split: Split) -> bool:
    """``environment.persona``; null: what the split says; neither: false. Raises ConfigurationError on a conflict."""
    if configured is not None and split.persona is not None and configured != split.persona:
        hint = f"the split {split.name!r} says {str(split.persona).lower()}; give the same, or null"
        raise ConfigurationError("environment.persona", configured, hint)
    return bool(split.persona if configured is None else configured)


def guard_test_split(split: Split, tasks: TasksSection, skills_path: Path | None, selection: Selection) -> None:
    """Let a test split pass only unlocked, whole and bare. Raises TestSplitGuardError naming all that is missing."""
    if not split.is_test:
        return
    wrong = []
    if not tasks.unlock_test:
        wrong.append('tasks.unlock_test: give the reason for this run (it is logged), as "final evaluation of step 900"')
    if skills_path is not None:
        wrong.append("skills.path: give null")
    if tasks.repeats != 1:
        wrong.append(f"tasks.repeats = {tasks.repeats}: give 1")
    if tasks.sample_size is not None:
        wrong.append(f"tasks.sample_size = {tasks.sample_size}: give null")
    if tasks.task_ids is not None:
        wrong.append("tasks.task_ids: give null")
    if selection.words:
        wrong.append(f"selection ({selection.words}): leave out --limit, --task and --where")
    if wrong:
        raise TestSplitGuardError(f"{split.name!r} is a test split and is run whole, once and without skills; " + "; ".join(wrong))


def select_tasks(split: Split, tasks: TasksSection, seed: int, selection: Selection) -> tuple[int, ...]:
    """Ordered task ids: ``task_ids`` or the split, then ``sample_size`` of them drawn, then ``--task`` and ``--where``.

    Raises ConfigurationError.
    """
    ids: Sequence[int] = split.task_ids
    if tasks.task_ids is not None:
        known = set(split.task_ids)
        strange = [t for t in tasks.task_ids if t not in known]
        if strange:
            raise ConfigurationError("tasks.task_ids", strange[0], f"is not in the split {split.name!r}; give ids of the split")
        ids = tasks.task_ids
    if tasks.sample_size is not None:
        if tasks.sample_size > len(ids):
            raise ConfigurationError("tasks.sample_size", tasks.sample_size, f"there are {len(ids)} tasks; give at most that")
        ids = random.Random(seed).sample(list(ids), tasks.sample_size)
    if selection.task is not None:
        ranges = task_ranges(selection.task)
        present = set(ids)
        for low, high in ranges:
            if low == high and low not in present:
                raise ConfigurationError("--task", low, f"is not among the {len(ids)} tasks of this plan; give ids that are")
        wanted = _within(ids, ranges)
        if not wanted:
            raise ConfigurationError("--task", selection.task, f"none of the {len(ids)} tasks of this plan; give ids that are")
        ids = wanted
    if selection.where is not None:
        ids = matching_tasks(selection.where, ids, split.name, split.role, split.persona, split.fields)
        if not ids:
            raise ConfigurationError("--where", selection.where, "no task of this plan fits; give a wider condition")
    return tuple(ids)


def _within(ids: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[int]:
    singles = {low for low, high in ranges if low == high}
    spans = [(low, high) for low, high in ranges if low < high]
    return [t for t in ids if t in singles or any(low <= t <= high for low, high in spans)]
