from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rayeval.exceptions import SkillBankError
from rayeval.hashing import fingerprint
from rayeval.skills import AssignedSkills, JsonSkillBank, NoSkills, SkillProvider, load_skill_bank, make_skill_provider

BANK: dict[str, Any] = {
    "schema_version": "shopsimrl-skillbank-v1",
    "bank_version": "1",
    "metadata": {},
    "skills": [
        {"skill_id": "g1", "content": "look twice", "metadata": {"origin": "x"}},
        {"skill_id": "off", "content": "never", "enabled": False},
        {"skill_id": "t4", "content": "task four", "task_ids": [4], "version": "7"},
        {"skill_id": "g2", "content": "buy once"},
    ],
}


def context(task_id: int, sample_id: int = 0) -> dict[str, Any]:
    return {"task_id": task_id, "sample_id": sample_id, "split": "val"}


def ids(provider: SkillProvider, task_id: int) -> list[str]:
    return [s.skill_id for s in provider.select(context(task_id))]


def test_no_skills() -> None:
    assert NoSkills().select(context(4)) == []
    assert NoSkills().identity() == {"provider": "none"}
    assert isinstance(make_skill_provider(None, None), NoSkills)


def test_a_bank_gives_global_and_own_skills_in_file_order() -> None:
    bank = JsonSkillBank(BANK)
    assert ids(bank, 4) == ["g1", "t4", "g2"]
    assert ids(bank, 5) == ["g1", "g2"]
    chosen = bank.select(context(4))
    assert [s.metadata["selection_scope"] for s in chosen] == ["global", "task", "global"]
    assert (chosen[0].metadata["origin"], chosen[1].version, chosen[2].version) == ("x", "7", "1")
    assert "selection_scope" not in BANK["skills"][0]["metadata"]


@pytest.mark.parametrize(("limit", "expected"), [(0, []), (2, ["g1", "t4"]), (9, ["g1", "t4", "g2"])])
def test_max_skills_counts_skills_that_fit(limit: int, expected: list[str]) -> None:
    assert ids(make_skill_provider(BANK, limit), 4) == expected


def test_bank_identity_hashes_the_whole_bank() -> None:
    assert JsonSkillBank(BANK, 3).identity() == {
        "provider": "json_skillbank",
        "schema_version": "shopsimrl-skillbank-v1",
        "bank_version": "1",
        "bank_sha256": fingerprint(BANK),
        "max_skills": 3,
    }
    assert JsonSkillBank({**BANK, "metadata": {"note": 1}}).identity()["bank_sha256"] != fingerprint(BANK)


def test_assigned_skills_come_in_bank_order() -> None:
    provider = AssignedSkills(BANK, {("val", 4, 0): ["g2", "g1"], ("val", 5, 0): []})
    assert ids(provider, 4) == ["g1", "g2"]
    assert ids(provider, 5) == []
    identity = provider.identity()
    assert (identity["provider"], identity["bank"]["bank_sha256"]) == ("assigned_json_skillbank", fingerprint(BANK))
    other = AssignedSkills(BANK, {("val", 4, 0): ["g1"], ("val", 5, 0): []})
    assert identity["assignment"] != other.identity()["assignment"]
    same = AssignedSkills(BANK, {("val", 5, 0): [], ("val", 4, 0): ["g1", "g2"]})
    assert identity["assignment"] == same.identity()["assignment"]


def test_an_episode_without_an_assignment_is_an_error() -> None:
    with pytest.raises(SkillBankError) as raised:
        AssignedSkills(BANK, {("val", 4, 0): []}).select(context(4, sample_id=1))
    assert raised.value.value == ("val", 4, 1)


@pytest.mark.parametrize(
    ("chosen", "text"), [(["g11"], "did you mean 'g"), (["off"], "disabled"), (["g1", "g1"], "once")], ids=["unknown", "disabled", "twice"]
)
def test_a_bad_assignment_is_refused_at_once(chosen: list[str], text: str) -> None:
    with pytest.raises(SkillBankError, match=text):
        AssignedSkills(BANK, {("val", 4, 0): chosen})


def with_skill(**fields: Any) -> dict[str, Any]:
    return {**BANK, "skills": [{"skill_id": "s", "content": "c", **fields}]}


@pytest.mark.parametrize(
    ("bank", "field"),
    [
        ([], "skill bank"),
        ({"skills": []}, "schema_version"),
        ({**BANK, "schema_version": "v9"}, "schema_version"),
        ({**BANK, "skills": {}}, "skills"),
        ({**BANK, "skills": ["s"]}, "skills[0]"),
        ({**BANK, "skills": [BANK["skills"][0], BANK["skills"][0]]}, "skills[1].skill_id"),
        (with_skill(skill_id=" "), "skills[0].skill_id"),
        (with_skill(content=None), "skills[0].content"),
        (with_skill(content="x </skill> y"), "skills[0].content"),
        (with_skill(version=1), "skills[0].version"),
        (with_skill(enabled="yes"), "skills[0].enabled"),
        (with_skill(metadata=[1]), "skills[0].metadata"),
        (with_skill(task_ids=[]), "skills[0].task_ids"),
        (with_skill(task_ids=[True]), "skills[0].task_ids"),
        (with_skill(task_ids=[-1]), "skills[0].task_ids"),
        (with_skill(task_id=[4]), "skills[0].task_id"),
    ],
)
def test_a_bad_bank_names_the_field(bank: Any, field: str, tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    path.write_bytes(orjson.dumps(bank))
    with pytest.raises(SkillBankError) as raised:
        load_skill_bank(path)
    assert raised.value.field == field


def test_a_misspelt_key_is_told_the_right_one() -> None:
    with pytest.raises(SkillBankError, match="'task_ids'"):
        JsonSkillBank(with_skill(task_id=[4]))


def test_load_gives_the_bank_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    path.write_bytes(orjson.dumps(BANK))
    assert load_skill_bank(path) == BANK


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    with pytest.raises(SkillBankError, match=r"bank\.json"):
        load_skill_bank(path)
    path.write_text("{")
    with pytest.raises(SkillBankError, match="not JSON"):
        load_skill_bank(path)


@pytest.mark.parametrize("limit", [-1, True, 1.5])
def test_max_skills_is_a_count(limit: Any) -> None:
    with pytest.raises(SkillBankError, match="max_skills"):
        JsonSkillBank(BANK, limit)
