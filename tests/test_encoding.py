from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.encoding import encode, encode_line, read_bounded, well_formed

ODD_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_anything_that_python_parses_from_json_is_encoded(value: Any) -> None:
    orjson.loads(encode(value))
    assert encode_line(value) == encode(value) + b"\n"


@given(st.text())
def test_well_formed_text_is_left_alone(text: str) -> None:
    assert well_formed(text) is text
    assert orjson.loads(encode(text)) == text


@pytest.mark.parametrize(("odd", "seen"), [("a\ud800", "a\ufffd"), ("\udc00b", "\ufffdb"), ("\ud83d\ude00", "😀")])
def test_surrogates(odd: str, seen: str) -> None:
    assert orjson.loads(encode({odd: [odd, 1]})) == {seen: [seen, 1]}


def test_what_json_cannot_hold_becomes_text() -> None:
    class Thing:
        def __str__(self) -> str:
            return "a thing"

    assert orjson.loads(encode([10**30, float("nan"), Thing(), (1, 2), {5: "five"}])) == [
        str(10**30),
        None,
        "a thing",
        [1, 2],
        {"5": "five"},
    ]
    assert orjson.loads(encode(10**6000)).startswith("0x")


def test_deep_nesting_ends_in_text() -> None:
    deep: Any = "bottom"
    for _ in range(900):
        deep = [deep]
    assert b"nested deeper" in encode(deep)


def test_fragments_survive_beside_odd_text() -> None:
    assert orjson.loads(encode({"kept": orjson.Fragment(b'{"a":1}'), "odd": "\ud800"})) == {"kept": {"a": 1}, "odd": "\ufffd"}


def test_a_device_a_pipe_and_a_huge_file_are_no_input(tmp_path: Path) -> None:
    pipe, large, small = tmp_path / "pipe", tmp_path / "large", tmp_path / "small"
    os.mkfifo(pipe)
    large.write_bytes(b"x" * 11)
    small.write_bytes(b"x" * 10)
    assert read_bounded(small, 10) == b"x" * 10
    for path in (Path("/dev/zero"), pipe, tmp_path, large):
        with pytest.raises(OSError, match=r"no regular file|larger than 10 bytes"):
            read_bounded(path, 10)
