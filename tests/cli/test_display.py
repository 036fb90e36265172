import io
import json
import logging

import pytest

from rayeval.cli.display import (
    DisplayMode,
    Heartbeat,
    choose_mode,
    configure_logging,
    duration,
    event_lines,
    make_display,
    start_sentence,
    status_sentence,
)
from rayeval.display import NoDisplay, RunDisplay
from rayeval.exceptions import InputError

STATUS = {"planned": 100, "done": 40, "failed": 2, "not_run": 58, "in_flight": 8, "rate_per_min": 51.23, "eta_s": 70, "reward_n": 40}
STATUS |= {"reward_mean": 0.5}


class Terminal(io.StringIO):
    def isatty(self):
        return True


# --- which display


@pytest.mark.parametrize(
    ("requested", "environ", "terminal", "mode"),
    [
        (None, {}, True, "rich"),
        (None, {}, False, "plain"),
        (None, {"CI": "true"}, True, "plain"),
        (None, {"TERM": "dumb"}, True, "plain"),
        (None, {"RAYEVAL_DISPLAY": "json"}, True, "json"),
        ("none", {"RAYEVAL_DISPLAY": "json"}, True, "none"),
        ("auto", {"RAYEVAL_DISPLAY": "json"}, True, "rich"),
        ("rich", {"CI": "true"}, True, "rich"),
        ("rich", {}, False, "plain"),
        ("rich", {"FORCE_COLOR": "1"}, False, "plain"),
        ("rich", {"TERM": "dumb"}, True, "plain"),
        ("plain", {}, True, "plain"),
    ],
)
def test_the_mode(requested, environ, terminal, mode):
    assert choose_mode(requested, environ, terminal) == mode


@pytest.mark.parametrize(
    ("requested", "environ", "field"), [("loud", {}, "--display"), (None, {"RAYEVAL_DISPLAY": "loud"}, "RAYEVAL_DISPLAY")]
)
def test_a_word_that_is_no_mode_is_refused(requested, environ, field):
    with pytest.raises(InputError, match=f"{field} = 'loud'"):
        choose_mode(requested, environ, True)


@pytest.mark.parametrize("mode", [m for m in DisplayMode if m is not DisplayMode.AUTO])
def test_every_display_is_a_run_display(mode):
    assert isinstance(make_display(mode, {}, io.StringIO()), RunDisplay)
    assert isinstance(NoDisplay(), RunDisplay)


# --- colour


def warned(environ, stream):
    make_display(DisplayMode.PLAIN, environ, stream).note("warning", "careful")
    return "\x1b[" in stream.getvalue()


def test_no_color_on_a_terminal():
    assert not warned({"NO_COLOR": "1", "FORCE_COLOR": "1"}, Terminal())


def test_force_color_off_a_terminal():
    assert warned({"FORCE_COLOR": "1"}, io.StringIO())
    assert not warned({"FORCE_COLOR": "0"}, io.StringIO())


def test_a_dumb_terminal_gets_no_color():
    assert not warned({"TERM": "dumb"}, Terminal())
    assert warned({"TERM": "xterm"}, Terminal())


def test_no_color_reaches_rich():
    for environ, colored in (({"NO_COLOR": "1"}, False), ({}, True)):
        stream = Terminal()
        display = make_display(DisplayMode.RICH, environ, stream)
        display.start({"run": "r", "planned": 100, "to_run": 100})
        display.update(STATUS)
        display.note("error", "bad")
        display.end({"exit_code": 0, "reason": None})
        assert ("\x1b[31m" in stream.getvalue()) is colored


# --- sentences


def test_a_new_run_says_how_much_there_is():
    assert start_sentence({"run": "r", "to_run": 80}) == "r: 80 to run"


def test_a_resume_says_what_is_reused():
    info = {"run": "r", "reused": 412, "to_run": 85, "failed_before": 3, "quarantined": 1}
    assert start_sentence(info) == "r: reusing 412 completed, 85 to run (3 of them failed before), 1 quarantined"


def test_a_heartbeat_is_a_whole_sentence():
    assert status_sentence(STATUS) == "40 of 100 done, 2 failed, 8 in flight, 51.2 a minute, reward 0.500 over 40, about 70 s left"


def test_a_cost_is_said_when_it_is_counted():
    over = {"planned": 100, "done": 98, "failed": 2, "in_flight": 0}
    assert status_sentence(over) == "98 of 100 done, 2 failed, 0 in flight, nothing left"
    assert ", 0.0412 USD spent, about" in status_sentence({**STATUS, "cost": {"amount": 0.0412, "currency": "USD"}})


def test_what_is_not_known_yet_is_not_made_up():
    early = {**STATUS, "rate_per_min": None, "eta_s": None, "reward_mean": None}
    assert status_sentence(early) == "40 of 100 done, 2 failed, 8 in flight, time left not known yet"


@pytest.mark.parametrize(("seconds", "text"), [(42, "42 s"), (420, "7 min"), (11100, "3 h 05 min")])
def test_durations(seconds, text):
    assert duration(seconds) == text


# --- heartbeats


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def beats(statuses, period_s=30.0):
    clock = Clock()
    heart = Heartbeat(period_s, clock)
    due = []
    for at, not_run in statuses:
        clock.now = at
        if heart.due({"planned": 100, "not_run": not_run}):
            due.append(at)
    return due


def test_a_heartbeat_comes_each_thirty_seconds():
    assert beats([(t, 99) for t in range(0, 91)]) == [30, 60, 90]


def test_a_heartbeat_comes_at_each_tenth():
    assert beats([(1, 95), (2, 91), (3, 90), (4, 85), (5, 65), (6, 0)]) == [3, 5, 6]


def test_a_resumed_run_does_not_report_what_was_done_before():
    assert beats([(1, 40), (2, 39), (3, 29)]) == [3]


def test_a_tenth_starts_the_thirty_seconds_anew():
    assert beats([(1, 99), (29, 90), (31, 90), (58, 90), (59, 90)]) == [29, 59]


# --- plain, json, none


def test_plain_records_are_one_line_each_without_carriage_returns():
    stream = io.StringIO()
    display = make_display(DisplayMode.PLAIN, {}, stream)
    display.start({"run": "r", "to_run": 100})
    for not_run in (100, 58):
        display.update({**STATUS, "not_run": not_run})
    display.note("error", "first\r\nsecond \x1b[31mred")
    display.note("debug", "not for people")
    display.end({"exit_code": 1, "reason": "2 failed", "status": STATUS})
    lines = stream.getvalue().split("\n")
    assert len(lines) == 6 and lines[-1] == ""
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()
    assert lines[2].endswith(r"error first\x0d\nsecond \x1b[31mred")
    assert lines[4].endswith("warning ended: 2 failed")


def test_json_records_are_json_lines():
    stream = io.StringIO()
    display = make_display(DisplayMode.JSON, {}, stream)
    display.start({"run": "r", "to_run": 100, "ts": "not mine"})
    display.update(STATUS)
    display.update({**STATUS, "not_run": 10})
    display.note("warning", "two\nlines")
    display.event("end", {"final": {"reward": 1.0, "goal": {"asin": "SECRET"}}})
    display.end({"exit_code": 0, "reason": None})
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(records) == 5
    assert all({"ts", "level", "run", "msg"} <= set(r) for r in records)
    assert all(r["run"] == "r" and r["ts"].startswith("20") for r in records)
    assert records[1]["in_flight"] == 8
    assert records[2]["msg"] == "two\nlines"
    assert "SECRET" not in stream.getvalue()


def test_none_shows_errors_alone():
    stream = io.StringIO()
    display = make_display(DisplayMode.NONE, {}, stream)
    display.start({"run": "r"})
    display.update({**STATUS, "not_run": 0})
    display.note("warning", "careful")
    display.note("error", "broken")
    display.end({"exit_code": 1, "reason": "x"})
    assert stream.getvalue().count("\n") == 1 and "broken" in stream.getvalue()


def test_a_stream_that_went_away_does_not_stop_the_run():
    stream = io.StringIO()
    display = make_display(DisplayMode.PLAIN, {}, stream)
    stream.close()
    display.note("info", "still going")


def test_rich_shows_figures_and_keeps_notes_whole():
    stream = Terminal()
    display = make_display(DisplayMode.RICH, {"NO_COLOR": "1"}, stream)
    display.start({"run": "r", "planned": 100, "to_run": 100})
    display.update(STATUS)
    display.note("warning", "w" * 300 + " [bold]not markup[/bold]")
    display.end({"exit_code": 0, "reason": None})
    text = stream.getvalue()
    assert "w" * 300 + " [bold]not markup[/bold]" in text
    display.update(STATUS)  # after the end: nothing is open any more


# --- one episode


def test_an_episode_is_shown_as_it_happens():
    lines = event_lines(
        "model", {"step_index": 3, "reasoning": "think", "tool_calls": [{"name": "search", "arguments": {"query": "灯"}, "call_id": "c"}]}
    )
    assert lines == ["── model 3", "   reasoning: think", '   tool_calls: [{"name": "search", "arguments": {"query": "灯"}}]']


def test_pages_keep_their_lines_and_lose_their_escapes():
    assert event_lines("reset", {"observation": "a\n\x1b]0;title\x07b"}) == [
        "── reset",
        "   observation:",
        "      a",
        "      \\x1b]0;title\\x07b",
    ]


def test_the_private_goal_is_not_shown():
    lines = event_lines("end", {"status": "completed", "final": {"reward": 1.0, "goal": {"asin": "SECRET"}, "purchase": {}}})
    assert "SECRET" not in "\n".join(lines) and "1.0" in lines[-1]


# --- log records


def log_something(mode):
    stream = io.StringIO()
    configure_logging(mode, stream)
    logger = logging.getLogger("rayeval.test")
    logger.info("not told")
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        logger.warning("failed: %s", "x\ny", exc_info=True)
    logger.error("worse")
    return stream.getvalue().splitlines()


def test_a_log_record_is_one_line_with_its_traceback():
    first, second = log_something(DisplayMode.PLAIN)
    assert "warning rayeval.test: failed: x\\ny\\nTraceback" in first
    assert second.endswith("error rayeval.test: worse")


def test_a_log_record_is_a_json_line():
    records = [json.loads(line) for line in log_something(DisplayMode.JSON)]
    assert [r["level"] for r in records] == ["warning", "error"]
    assert "Traceback" in records[0]["msg"] and records[0]["logger"] == "rayeval.test"


def test_none_logs_errors_alone():
    assert len(log_something(DisplayMode.NONE)) == 1
