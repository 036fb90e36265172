from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rayeval.hashing import fingerprint
from rayeval.prompts import PROMPT_VERSION, SKILL_RENDERER_VERSION, PromptBuilder
from rayeval.schemas import Skill


def test_identity_holds_versions_and_the_hash_of_the_prompt() -> None:
    assert PromptBuilder("abc").identity() == {
        "prompt_version": PROMPT_VERSION,
        "system_prompt_sha256": fingerprint("abc"),
        "skill_renderer_version": SKILL_RENDERER_VERSION,
    }
    assert "shopsim" not in PROMPT_VERSION + SKILL_RENDERER_VERSION


def test_without_persona_and_skills_the_system_message_is_the_prompt() -> None:
    assert PromptBuilder("Shop well.").system_message({}, []) == "Shop well."
    assert PromptBuilder("Shop well.").system_message(None, []) == "Shop well."


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), min_size=1, max_size=5))
def test_the_persona_is_shown_whatever_its_order(persona: dict[str, str]) -> None:
    build = PromptBuilder("p").system_message
    assert build(persona, []) == build(dict(reversed(list(persona.items()))), [])
    shown = json.loads(build(persona, []).split("\n")[-1])
    assert shown == {k: v for k, v in persona.items() if k != "__reasoning__"}


def test_a_persona_keeps_its_characters_and_loses_its_reasoning() -> None:
    text = PromptBuilder("p").system_message({"偏好": ["简约"], "__reasoning__": "PRIVATE"}, [])
    assert "偏好" in text
    assert "PRIVATE" not in text
    assert PromptBuilder("p").system_message({"__reasoning__": "PRIVATE"}, []) == "p"


def test_skills_follow_prompt_and_persona_in_the_order_given() -> None:
    skills = [Skill("b", "second letter", "2"), Skill('a"', "first letter")]
    text = PromptBuilder("PROMPT").system_message({"k": 1}, skills)
    order = [text.index(part) for part in ("PROMPT", '{"k": 1}', '<skill id="b" version="2">\nsecond letter\n</skill>', "first letter")]
    assert order == sorted(order)
    assert '<skill id="a&quot;" version="1">' in text


def test_the_first_user_message_is_label_task_blank_line_page() -> None:
    lines = PromptBuilder("p").first_user_message("买风扇", "页面：首页\n- x").split("\n")
    assert lines[1:] == ["买风扇", "", "页面：首页", "- x"]
