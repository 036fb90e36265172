"""Which advice an episode gets: nothing, a bank's skills in file order, or exactly what a gate assigned.

A bank is ``{"schema_version", "bank_version", "metadata", "skills": [{"skill_id", "content", "version", "enabled", "task_ids",
"metadata"}]}``; of a skill only ``skill_id`` and ``content`` are required. No ``task_ids``: the skill is for every task.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orjson

from rayeval.encoding import read_bounded
from rayeval.exceptions import SkillBankError
from rayeval.hashing import fingerprint
from rayeval.schemas import JsonObject, Skill

SKILL_BANK_SCHEMA = "rayeval-skillbank-v1"
READABLE_SKILL_BANKS = frozenset({SKILL_BANK_SCHEMA, "shopsimrl-skillbank-v1"})
_SKILL_KEYS = ("skill_id", "content", "version", "enabled", "task_ids", "metadata")

AssignmentKey = tuple[str, int, int]
"""(split, task_id, sample_id)"""


_MAX_BANK_BYTES = 64 << 20


@runtime_checkable
class SkillProvider(Protocol):
    """Chooses the skills of one episode; a pure function of its context, or two runs of one plan would differ."""

    def select(self, context: JsonObject) -> list[Skill]:
        """Skills in the order in which they enter the system message. ``context``: ``task_id, sample_id, split, task_instruction,
        user_persona, observation_state, task_mode``; never the private goal."""
        ...

    def identity(self) -> JsonObject:
        """What enters the plan and the trace's ``provenance.skills``."""
        ...


class NoSkills:
    """No advice at all."""

    def select(self, context: JsonObject) -> list[Skill]:
        return []

    def identity(self) -> JsonObject:
        return {"provider": "none"}


@dataclass(frozen=True, slots=True)
class _Entry:
    skill: Skill
    enabled: bool
    task_ids: frozenset[int] | None


class JsonSkillBank:
    """The enabled skills that are for every task or name this one, the first ``max_skills`` of them in file order.

    Raises SkillBankError for a bank that is not well formed.
    """

    def __init__(self, bank: JsonObject, max_skills: int | None = None) -> None:
        if max_skills is not None and (isinstance(max_skills, bool) or not isinstance(max_skills, int) or max_skills < 0):
            raise SkillBankError("skills.max_skills", max_skills, "give null or a whole number of at least 0")
        self._entries = _parsed(bank)
        self._max_skills = max_skills
        self._identity: JsonObject = {
            "provider": "json_skillbank",
            "schema_version": bank["schema_version"],
            "bank_version": bank.get("bank_version"),
            "bank_sha256": fingerprint(bank),
            "max_skills": max_skills,
        }

    @property
    def entries(self) -> Sequence[_Entry]:
        return self._entries

    def select(self, context: JsonObject) -> list[Skill]:
        task_id = context["task_id"]
        fitting = [e for e in self._entries if e.enabled and (e.task_ids is None or task_id in e.task_ids)]
        return [_scoped(e.skill, "global" if e.task_ids is None else "task") for e in fitting[: self._max_skills]]

    def identity(self) -> JsonObject:
        return dict(self._identity)


class AssignedSkills:
    """Exactly the skills that ``assignment`` names for (split, task_id, sample_id), put into the bank's order.

    Raises SkillBankError when an id is unknown, disabled or named twice (at once), or an episode has no assignment (in ``select``).
    """

    def __init__(self, bank: JsonObject, assignment: Mapping[AssignmentKey, Sequence[str]]) -> None:
        source = JsonSkillBank(bank)
        order = {e.skill.skill_id: i for i, e in enumerate(source.entries)}
        self._chosen: dict[AssignmentKey, list[Skill]] = {}
        for key, ids in assignment.items():
            where = f"assignment[{key[0]}, task {key[1]}, sample {key[2]}]"
            if len(set(ids)) != len(ids):
                raise SkillBankError(where, list(ids), "name each skill once")
            for skill_id in ids:
                if skill_id not in order:
                    raise SkillBankError(where, skill_id, f"give an id of the bank{_nearest(skill_id, order)}")
                if not source.entries[order[skill_id]].enabled:
                    raise SkillBankError(where, skill_id, "this skill is disabled in the bank; assign enabled ones only")
            self._chosen[key] = [_scoped(source.entries[i].skill, "assigned") for i in sorted(order[s] for s in ids)]
        rows = sorted([*key, [s.skill_id for s in chosen]] for key, chosen in self._chosen.items())
        self._identity: JsonObject = {
            "provider": "assigned_json_skillbank",
            "bank": source.identity(),
            "assignment": {"episodes": len(rows), "assignment_sha256": fingerprint(rows)},
        }

    def select(self, context: JsonObject) -> list[Skill]:
        key = (context["split"], context["task_id"], context["sample_id"])
        try:
            return list(self._chosen[key])
        except KeyError:
            raise SkillBankError("assignment", key, "assign skills (or an empty list) to every episode of the plan") from None

    def identity(self) -> JsonObject:
        return dict(self._identity)


def load_skill_bank(path: Path) -> JsonObject:
    """Read and check a bank. Raises SkillBankError naming the file and what is wrong in it."""
    try:
        raw = read_bounded(path, _MAX_BANK_BYTES)
    except OSError as error:
        raise SkillBankError("skills.path", str(path), f"give a readable file ({error.strerror or error})") from error
    try:
        bank = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise SkillBankError("skills.path", str(path), f"the file is not JSON ({error})") from error
    _parsed(bank)
    return dict(bank)


def make_skill_provider(bank: JsonObject | None, max_skills: int | None) -> SkillProvider:
    """The provider of a plan: ``None`` is a run without skills."""
    return NoSkills() if bank is None else JsonSkillBank(bank, max_skills)


def _scoped(skill: Skill, scope: str) -> Skill:
    return Skill(skill.skill_id, skill.content, skill.version, {**skill.metadata, "selection_scope": scope})


def _nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _parsed(bank: Any) -> list[_Entry]:
    if not isinstance(bank, dict):
        raise SkillBankError("skill bank", type(bank).__name__, "give a JSON object with schema_version and skills")
    if bank.get("schema_version") not in READABLE_SKILL_BANKS:
        raise SkillBankError("schema_version", bank.get("schema_version"), f"give one of {sorted(READABLE_SKILL_BANKS)}")
    records = bank.get("skills")
    if not isinstance(records, list):
        raise SkillBankError("skills", records, "give a list of skills")
    entries: list[_Entry] = []
    seen: set[str] = set()
    for index, record in enumerate(records):
        entry = _entry(record, f"skills[{index}]")
        if entry.skill.skill_id in seen:
            raise SkillBankError(f"skills[{index}].skill_id", entry.skill.skill_id, "give each skill an id of its own")
        seen.add(entry.skill.skill_id)
        entries.append(entry)
    return entries


def _entry(record: Any, where: str) -> _Entry:
    if not isinstance(record, dict):
        raise SkillBankError(where, record, "give an object with skill_id and content")
    for key in record:
        if key not in _SKILL_KEYS:
            raise SkillBankError(
                f"{where}.{key}",
                record[key],
                f"unknown key{_nearest(key, _SKILL_KEYS)}; the keys are {', '.join(_SKILL_KEYS)}",
            )
    for key in ("skill_id", "content"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise SkillBankError(f"{where}.{key}", record.get(key), "give a text that is not empty")
    if "</skill>" in record["content"]:
        raise SkillBankError(
            f"{where}.content",
            record["content"],
            "remove '</skill>': it would end the block in the system message early",
        )
    version = record.get("version", "1")
    if not isinstance(version, str):
        raise SkillBankError(f"{where}.version", version, "give a string such as '1'")
    enabled = record.get("enabled", True)
    if not isinstance(enabled, bool):
        raise SkillBankError(f"{where}.enabled", enabled, "give true or false")
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise SkillBankError(f"{where}.metadata", metadata, "give an object")
    skill = Skill(record["skill_id"], record["content"], version, metadata)
    return _Entry(skill, enabled, _task_ids(record.get("task_ids"), where))


def _task_ids(value: Any, where: str) -> frozenset[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in value):
        raise SkillBankError(
            f"{where}.task_ids",
            value,
            "give a list of task ids (whole numbers of at least 0), or leave it out for every task",
        )
    return frozenset(value)
