from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.config._yaml import parse, read_text
from rayeval.exceptions import ConfigurationError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: no", "no"),
        ("a: true", True),
        ("a: 12:30", "12:30"),
        ("a: 2026-08-28", "2026-08-28"),
        ("a: 010", 10),
        ("a: 0x1F", 31),
        ("a: 0o17", 15),
        ("a: 1e3", 1000.0),
        ("a: -.5", -0.5),
        ("a: '1'", "1"),
        ("a: !!str 1", "1"),
        ("a: ~", None),
        ("a:", None),
        ("a: nan", "nan"),
        ("a: |\n  x\n  y\n", "x\ny\n"),
        ("a: &x [1]\nb: *x", [1]),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: object) -> None:
    read = parse(text, "f").value["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a is there twice (first on line 1)"),
        ("a:\n  b: 1\n  b: 2\n", 3, "a.b is there twice"),
        ("a:\n\tb: 1\n", 2, "not tabs"),
        ("a: [1, 2\nb: 3\n", 2, "give valid YAML"),
        ("a: 1\n b: 2\n", 2, "give valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "one document"),
        ("a: !!python/object/apply:os.system ['id']", 1, "give a plain value"),
        ("a: !!int x", 1, "no number"),
        ("x: &x {b: 1}\na:\n  <<: *x\n", 3, "merge keys"),
        ("a: &a [*a]", 1, "contains itself"),
        ("a: {1: 2}", 1, "in quotes"),
        ("a: {[1]: 2}", 1, "in quotes"),
        ("a: *x", 1, "give valid YAML"),
        ("a: " + "9" * 5000, 1, "no number"),
        ("a: " + "[" * 200 + "]" * 200, 1, "too much"),
        ('a: "\\ud800"', 1, "surrogate"),
        ("a: \x01", 1, "give valid YAML"),
    ],
)
def test_what_is_refused_names_file_and_line(text: str, line: int, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, "dir/f.yaml")
    assert str(caught.value).startswith(f"dir/f.yaml:{line}: ")
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_cannot_blow_up() -> None:
    text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigurationError, match="too much"):
        parse(text, "f")


def test_lines_are_kept_for_dotted_keys() -> None:
    assert parse("a:\n  b: 1\n\n  c: {d: 2}\n", "f").lines == {"a": 1, "a.b": 2, "a.c": 4, "a.c.d": 4}


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_value_or_a_one_line_error(text: str) -> None:
    try:
        parse(text, "f")
    except ConfigurationError as error:
        assert len(str(error).splitlines()) == 1


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("a: 1\nb: é".encode("latin-1"))
    (tmp_path / "big").write_bytes(b"#" * (1 << 21))
    for name, hint in (("none", "no such file"), (".", "is a directory"), ("latin", "not UTF-8"), ("big", "larger")):
        with pytest.raises(ConfigurationError, match=hint) as caught:
            read_text(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="latin:2"):
        read_text(tmp_path / "latin")
