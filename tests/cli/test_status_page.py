from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from rayeval.cli.lines import Span, cut, fit, plain, width_of
from rayeval.cli.status_page import Sight, page
from tests.cli.statuses import OLD, RUNNING

NOW = datetime(2026, 1, 1, 3, 0, tzinfo=UTC)


def drawn(status: dict[str, Any], state: str = "running", width: int = 80, height: int | None = 24, **more: Any) -> list[str]:
    return plain(page(Sight(status, state, 1.0, name="smoke", **more), width=width, height=height, now=NOW)).split("\n")


def test_the_first_three_lines_answer_whether_how_fast_what_is_stuck_and_when() -> None:
    first = drawn(RUNNING)[:3]
    assert first == [
        "smoke: running for 13 min, status 1 s old",
        "412 of 2000 done (20 %), 3 failed, about 51 min left (03:50), 31.2 a minute",
        "nothing stuck; the oldest episode is 2 min old, model call for 12 s",
    ]


def test_everything_is_on_a_large_screen() -> None:
    text = "\n".join(drawn(RUNNING, width=140, height=50))
    for words in (
        "64 in flight: 9 in environment steps, 51 in model calls, 4 resetting; 1521 wait",
        "reward 0.661 over 409, 3021 steps, 12.3 M tokens, 1.23 USD spent, about 6.10 USD at the end, 1 actor",
        "model_unavailable        2      0        http://10.0.0.1:8000/v1: no answer in 5 attempts",
        "environment_unavailable  0      12",
        "32        answers                      http://10.0.0.1:8000/v1  status_429 12",
        "32        window 24, 20 calls, 4 wait  http://10.0.0.2:8000/v1  none",
        "60    4          60 of 64    answers  http://shop:5700",
        "81 s   10    3 s   model call  task-000009__sample-003  1-actor-001",
        "00:00:00  1-actor-002 is lost with 18 episodes",
    ):
        assert words in text


def test_a_small_screen_keeps_every_section_and_says_what_it_leaves_out() -> None:
    lines = drawn(RUNNING)
    assert len(lines) <= 24
    heads = [line.split("  ")[0] for line in lines]
    assert {"failures", "episodes", "held", "age", "last"} <= set(heads)
    assert any("of 10)" in line for line in lines)


def test_the_time_of_day_names_the_day_when_it_is_far() -> None:
    assert "(Sat 05:00)" in drawn({**RUNNING, "eta_s": 50 * 3600})[1]
    assert drawn({**RUNNING, "eta_s": 1e14})[1] == "412 of 2000 done (20 %), 3 failed, about 27777777777 h 47 min left, 31.2 a minu…"


def test_a_dead_driver_is_told_with_what_to_do() -> None:
    lines = drawn(RUNNING, "interrupted", advice="nobody works on it; run the same command again to go on")
    assert lines[0] == "smoke: interrupted 1 s ago"
    assert lines[1].endswith("run the same command again to go on")
    assert "left" not in lines[2] and "412 of 2000 done" in lines[2]
    assert not any("age" in line for line in lines)


def test_what_to_do_is_never_cut() -> None:
    advice = "its driver, pid 14729 on host vm (started 2026-01-01 00:00:00 UTC), is stopped: `kill -CONT 14729` lets it go on"
    lines = drawn(RUNNING, stale=True, advice=advice)
    assert " ".join(lines[1:3]) == advice and lines[3].startswith("412 of 2000 done")


def test_a_stale_status_is_told_at_once() -> None:
    lines = drawn(RUNNING, stale=True, advice="its driver hangs; look there")
    assert "but its status is 1 s old" in lines[0] and lines[1] == "its driver hangs; look there"
    assert lines[2] == "412 of 2000 done (20 %), 3 failed, 1585 not run", "nobody knows when it will be done"
    assert not any("nothing stuck" in line for line in lines) and any("slowest episodes" in line for line in lines)


@pytest.mark.parametrize(("code", "words"), [(0, "ended with exit code 0"), (1, "ended with exit code 1 (3 failed)")])
def test_an_ended_run_tells_its_exit_code(code: int, words: str) -> None:
    assert drawn({**RUNNING, "exit_code": code, "reason": "3 failed" if code else None}, "ended")[0] == f"smoke: {words}"


def test_a_status_of_the_version_before_is_drawn() -> None:
    lines = drawn(OLD)
    assert lines[1] == "412 of 2000 done (20 %), 3 failed, about 51 min left (03:50), 31.2 a minute"
    assert lines[2:4] == ["nothing stuck", "64 in flight; 1521 wait"]
    assert any("http://shop:5700" in line for line in lines)


def test_hostile_and_wide_texts_stay_in_their_columns() -> None:
    ids = ["任务-一二三四五六七八九十", "a\x1b[2J\u202e[red]x[/red]\n", "plain"]
    rows = [{"episode_id": i, "age_s": 5, "stage": "model", "stage_s": 1, "step": 1, "actor": "A"} for i in ids]
    lines = drawn({**RUNNING, "slowest": rows}, width=100, height=40)
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    columns = {width_of(line.rpartition("  ")[0]) for line in lines if line.endswith("  A")}
    body = [line for line in lines if line.endswith("  A")]
    assert len(body) == 3 and all(line.startswith("5 s") for line in body) and max(columns) <= 98
    assert "[red]x[/red]" in "\n".join(lines)
    ends = {width_of(line) for line in body}
    assert len(ends) == 1, "the last column begins at one place, however wide the ids are"


def test_text_is_cut_with_an_ellipsis_at_the_width() -> None:
    assert cut("任务任务", 5) == "任务…" and cut("abc", 3) == "abc" and cut("abcd", 0) == ""
    assert fit((Span("abc", "red"), Span("def")), 4) == (Span("abc", "red"), Span("…"))
    assert fit((Span("abc"), Span("def")), 3) == (Span("ab…"),)
    assert fit((Span("abc"), Span("def")), 6) == (Span("abc"), Span("def"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
names = sorted(RUNNING)
row_names = sorted({key for name in ("slowest", "model", "environment", "actors", "notes") for row in RUNNING[name] for key in row})
rows = st.lists(st.dictionaries(st.sampled_from(row_names), json_values, max_size=8), max_size=12)
likely = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x4FFF) | st.characters(), max_size=60)
statuses = st.dictionaries(st.sampled_from(names), json_values | rows | likely, max_size=12) | st.builds(
    lambda changes: {**RUNNING, **changes}, st.dictionaries(st.sampled_from(names), json_values | rows, max_size=4)
)
states = st.sampled_from(["running", "starting", "paused", "draining", "closing", "ended", "interrupted", "not begun"]) | st.text(
    max_size=10
)


@settings(max_examples=40, deadline=None)
@given(
    status=statuses,
    state=states,
    age=st.none() | st.floats(0, 1e9),
    stale=st.booleans(),
    advice=st.none() | st.text(max_size=200),
    width=st.integers(10, 220),
    height=st.none() | st.integers(1, 60),
)
def test_whatever_the_status_holds_it_is_drawn_and_fits(
    status: dict[str, Any], state: str, age: float | None, stale: bool, advice: str | None, width: int, height: int | None
) -> None:
    lines = page(Sight(status, state, age, stale, advice, "r"), width=width, height=height, now=NOW)
    assert lines and (height is None or len(lines) <= height)
    for line in lines:
        text = "".join(span.text for span in line)
        assert width_of(text) <= width and cell_len(text) <= width
        assert text.isprintable()
