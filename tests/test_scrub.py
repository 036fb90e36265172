import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.prompts import PRIVATE_PERSONA_KEYS
from rayeval.scrub import PRIVATE_FIELDS, Scrub, is_private

ROOT = Path(__file__).parents[1]
CANARY = "CANARY"
KEY = "correct-horse-battery"


def test_the_list_has_what_the_document_calls_private() -> None:
    text = (ROOT / "docs/traces.md").read_text(encoding="utf-8")
    paragraph = text[text.index("## What is private") :]
    named = {name.rsplit(".", 1)[-1] for name in re.findall(r"`([a-z_.]+)`", paragraph)}
    assert {"goal", "price_upper", "target_asin_match", "instruction_text"} <= named
    assert all(map(is_private, named - {"steps", "purchase", "reward_detail", "environment"}))


def test_the_list_has_what_the_engine_drops_elsewhere() -> None:
    of_a_reset = {"private_task_instruction", "goal_options", "reason_key", "goal", "env_idx", "lease_id"}
    assert of_a_reset | PRIVATE_PERSONA_KEYS <= PRIVATE_FIELDS


@pytest.mark.parametrize("name", ["goal", "Goal", "private", "private_notes", "lease_id", "api_key", "Authorization"])
def test_private_names(name: str) -> None:
    assert is_private(name)


@pytest.mark.parametrize("name", ["goals_met", "observation", "task_instruction", "reward", "asin", "keyboard"])
def test_names_that_are_not(name: str) -> None:
    assert not is_private(name)


_NAMES = st.text(max_size=4) | st.sampled_from(sorted(PRIVATE_FIELDS))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
)


@given(JSON)
def test_private_fields_go_and_everything_else_stays(value: Any) -> None:
    def without(v: Any) -> Any:
        if isinstance(v, dict):
            return {k: without(c) for k, c in v.items() if not is_private(k)}
        return [without(c) for c in v] if isinstance(v, list) else v

    assert Scrub([KEY]).value(value) == without(value)


def test_what_lies_in_a_private_field_is_gone_at_any_depth() -> None:
    value: Any = {"goal": CANARY}
    for _ in range(500):
        value = [{"page": value, "lease_id": CANARY}]
    assert CANARY not in repr(Scrub().value(value))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"the key is {KEY}.", "the key is [redacted]."),
        ("Authorization: Bearer abcdefgh12345678XYZ", "Authorization: Bearer [redacted]"),
        ("http://user:pw@host/v1 and https://tok@h", "http://[redacted]@host/v1 and https://[redacted]@h"),
        ("sk-proj-abc123DEF456ghi789", "[redacted]"),
        ("hf_abcdEFGH12345678ijkl in a log", "[redacted] in a log"),
        ("ghp_0123456789abcdefABCDEF0123", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE1234", "[redacted]"),
    ],
)
def test_keys_and_tokens_in_texts(text: str, clean: str) -> None:
    assert Scrub([KEY]).text(text) == clean
    assert Scrub([KEY]).value({text: [text]}) == {clean: [clean]}


@pytest.mark.parametrize(
    "text", ["a bearer of good news", "task-000012__sample-001", "sk-learn and hf_hub", "mail@host", "http://host:5700/a@b"]
)
def test_plain_texts_stay(text: str) -> None:
    assert Scrub([KEY]).text(text) == text


def test_it_is_not_pickled_and_does_not_show_what_it_holds() -> None:
    assert KEY not in repr(Scrub([KEY]))
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(Scrub([KEY]))
