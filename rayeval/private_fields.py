"""The one list of fields that stay in a run: what holds a task's solution, the right to a slot, or a key; and errors that quote none.

``docs/traces.md`` ("What is private") says where these fields stand in a trace.
"""

from __future__ import annotations

import re

SOLUTION_FIELDS = frozenset(
    {
        "goal",
        "goal_options",
        "instruction_text",
        "price_upper",
        "private",
        "private_task_instruction",
        "reason_key",
        "target_asin",
        "target_asin_match",
        "__reasoning__",
    }
)
"""What gives a task away."""
PRIVATE_FIELDS = SOLUTION_FIELDS | {"env_idx", "lease", "lease_id", "api_key", "authorization"}
"""With the right to a slot, and keys."""
LEFT_OUT = "[left out]"

_QUOTE = r"""(?:\\*["'`]|&(?:quot|\#34|\#39|\#x27);|\\+u002[27])"""
_SPACE = r"(?:\s|\\+[nrt])*"
_SAYS_SOLUTION = re.compile(
    rf"""(?:(?<![a-z0-9_])|(?<=\\[nrt])|(?<=\\u002[27]))(?:{"|".join(sorted(SOLUTION_FIELDS, key=len, reverse=True))}|private[a-z0-9_]*)"""
    rf"""(?:{_SPACE}(?:=>|[:=])|{_QUOTE}{_SPACE}\]?{_SPACE}(?:=>|[:=,]))""",
    re.IGNORECASE,
)
"""The name of such a field and what parts it from its value: in JSON, also in JSON within JSON or HTML, in Python's words, in prose."""


def is_private(name: str) -> bool:
    """Whether a field of this name stays in the run."""
    return name.lower() in PRIVATE_FIELDS or name.lower().startswith("private")


def without_solution(text: str) -> str:
    """The words of an error up to where they quote a field of a task's solution. A value may hold anything, quotes and brackets too, and
    may be cut off: so whatever follows goes with it."""
    found = _SAYS_SOLUTION.search(text)
    return text if found is None else f"{text[: found.end()]} {LEFT_OUT}"
