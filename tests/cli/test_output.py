import io
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.cli import output
from rayeval.cli.output import (
    PipeClosedError,
    error_object,
    one_line,
    table,
    use_color,
    visible,
    write_json,
    write_json_line,
    write_link,
    write_out,
)


@given(st.text())
def test_visible_text_drives_no_terminal(text):
    shown = visible(text)
    assert all(c in "\n\t" or ord(c) >= 0x20 for c in shown)
    assert not set(shown) & {chr(c) for c in (0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    shown.encode()
    assert "\n" not in one_line(text)


@pytest.mark.parametrize("harmless", ["plain", "中文 é 🙂", "tab\there", "two\nlines"])
def test_harmless_text_stays(harmless):
    assert visible(harmless) == harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31m", "\\x1b[31m"), ("a\rb", "a\\x0db"), ("\u202e", "\\u202e"), ("\x9b31m", "\\x9b31m"), ("\ud800", "\\ud800")],
)
def test_escapes_are_shown(text, shown):
    assert visible(text) == shown


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none()))
def test_json_on_stdout_keeps_the_value_and_drives_no_terminal(value):
    stream, before = io.StringIO(), sys.stdout
    sys.stdout = stream
    try:
        write_json(value)
    finally:
        sys.stdout = before
    text = stream.getvalue()
    assert json.loads(text) == value
    assert all(c == "\n" or ord(c) >= 0x20 for c in text) and "\x9b" not in text


def test_a_stream_that_speaks_ascii_gets_ascii(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write_out("灯")
    write_json({"a": "灯"})
    assert raw.getvalue() == b'\\u706f\n{"a": "\\u706f"}\n'


def test_a_closed_pipe_ends_nothing(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        write_out("x" * 100_000)
        write_json({"goes": "nowhere"})
        monkeypatch.undo()


@pytest.mark.parametrize("write", [partial(write_out, following=True), lambda text: write_json_line({"text": text})])
def test_what_goes_on_while_somebody_reads_is_ended_by_a_closed_pipe(monkeypatch, write):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(PipeClosedError):
            write("x" * 100_000)
        monkeypatch.undo()


def test_values_of_errors_are_json():
    assert error_object(2, "f", Path("/x"), "h") == {
        "schema": "rayeval-error-v1",
        "error": {"code": 2, "field": "f", "value": "/x", "hint": "h"},
    }


@pytest.mark.parametrize(
    ("environ", "terminal", "color"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
    ],
)
def test_color(environ, terminal, color):
    assert use_color(environ, terminal) is color


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_path_is_a_link_on_a_terminal_alone(monkeypatch, tmp_path):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "a b"
    for stream, linked in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(output.sys, "stdout", stream)
        write_link("run: ", path)
        assert ("\x1b]8;;file://" in stream.getvalue()) is linked
        assert str(path) in stream.getvalue()
    assert "a%20b" not in stream.getvalue()


def test_columns_line_up_with_wide_characters():
    first, second, third = table(("name", "n"), [("灯", "1"), ("abcdef", "2")]).split("\n")
    assert (first, second, third) == ("name    n", "灯      1", "abcdef  2")


def test_a_cell_cannot_break_its_row():
    assert table(("a", "b"), [("x\ny\x1b", "z")]).count("\n") == 1


def test_a_table_without_rows_is_its_head():
    assert table(("a", "b"), []) == "a  b"
