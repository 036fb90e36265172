"""What the model is told: the system message and the first user message. A pure function of plan and reset.

The fixed texts have version ids; changing one letter of a text means a new id, for the ids are in the fingerprint
and the texts are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rayeval.hashing import fingerprint
from rayeval.schemas import JsonObject, Skill

PROMPT_VERSION = "rayeval-shopping-prompt-v1"
SKILL_RENDERER_VERSION = "rayeval-skill-block-v1"

_TASK_LABEL = "Shopping task:"
_PERSONA_LABEL = "Profile of the user you shop for (JSON):"
_SKILLS_HEADER = "Advice from earlier shopping sessions:"
_SKILLS_CAUTION = "Use an item only where it fits this task; the task and the current page always take precedence over it."

PRIVATE_PERSONA_KEYS = frozenset({"__reasoning__"})
"""Never shown to a model: the annotator's reasoning about the goal."""


class PromptBuilder:
    """Builds the messages of an episode that come before the model's first turn."""

    def __init__(self, system_prompt: str) -> None:
        self._system_prompt = system_prompt
        self._sha256 = fingerprint(system_prompt)

    def identity(self) -> JsonObject:
        """What enters the plan and the trace. The hash is ``hashing.fingerprint`` of the text, so of its JSON form."""
        return {
            "prompt_version": PROMPT_VERSION,
            "system_prompt_sha256": self._sha256,
            "skill_renderer_version": SKILL_RENDERER_VERSION,
        }

    def system_message(self, persona: Mapping[str, Any] | None, skills: Sequence[Skill]) -> str:
        """The prompt, then the persona as JSON with sorted keys if there is one, then the skills in the order given."""
        parts = [self._system_prompt]
        shown = {k: v for k, v in (persona or {}).items() if k not in PRIVATE_PERSONA_KEYS}
        if shown:
            parts.append(f"{_PERSONA_LABEL}\n{json.dumps(shown, ensure_ascii=False, sort_keys=True)}")
        if skills:
            parts.append("\n".join([_SKILLS_HEADER, _SKILLS_CAUTION, *map(_rendered, skills)]))
        return "\n\n".join(parts)

    def first_user_message(self, instruction: str, observation: str) -> str:
        """The task and the first page; later pages come alone, as tool messages."""
        return f"{_TASK_LABEL}\n{instruction}\n\n{observation}"


def _rendered(skill: Skill) -> str:
    return f'<skill id="{escape(skill.skill_id)}" version="{escape(skill.version)}">\n{skill.content}\n</skill>'
