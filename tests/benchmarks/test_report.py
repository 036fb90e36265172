from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.experiment import Figure
from benchmarks.report import BEGIN, END, Part
from rayeval.exceptions import InputError

GOOD = Part("overhead", [Figure("overhead: CPU", "0.2", "0.1", "2.0", "2.5")], (0.5, 1.25), True)
PASSED = Part("tail", [Figure("tail: 64", "3", "2", "1.5", "1.1", False), Figure("tail: 256", "2", "2", "1.0", "1.1")], (1.0, 2.0), False)
FAILED = Part("memory", (), (2.0, 3.0), False, "RuntimeError")


def test_each_figure_is_a_row_and_only_the_one_beyond_its_limit_says_so() -> None:
    lines = report.markdown([GOOD, PASSED, FAILED], ["When.", "Where."]).splitlines()
    assert lines == [
        "When.",
        "Where.",
        "",
        "|  | measured | floor or first | ratio or growth | limit | load |",
        "|---|---|---|---|---|---|",
        "| overhead: CPU | 0.2 | 0.1 | 2.0 | 2.5 | 0.5 to 1.2 |",
        "| tail: 64 | 3 **beyond its limit** | 2 | 1.5 | 1.1 | 1.0 to 2.0 |",
        "| tail: 256 | 2 | 2 | 1.0 | 1.1 | 1.0 to 2.0 |",
        "| memory | failed **RuntimeError** |  |  |  | 2.0 to 3.0 |",
    ]


def test_the_terminal_shows_the_same_rows() -> None:
    lines = report.terminal([GOOD, PASSED, FAILED]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["overhead: CPU", "tail: 64", "tail: 256", "memory"]
    assert lines[2].endswith("beyond its limit") and lines[4].endswith("RuntimeError")


def test_a_benchmark_whose_figures_are_within_but_which_went_wrong_says_so() -> None:
    odd = Part("resume", [Figure("resume: s", "1", "", "", "2")], (0.0, 0.0), False)
    assert odd.rows()[-1][-1] == "not as it must be"


def test_a_cell_cannot_break_the_table() -> None:
    part = Part("peers", [Figure("peers: a|b\nc", "1", "", "", "")], (0.0, 0.0), True)
    assert report.markdown([part], []).splitlines()[-1].startswith("| peers: a\\|b c | 1 |")


def test_only_what_is_between_the_markers_is_replaced_again_and_again(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"# Speed\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter | é\n", encoding="utf-8")
    for text in ("first table", "second table"):
        report.check(document)
        report.put(text, document)
        assert document.read_text(encoding="utf-8") == f"# Speed\n\nbefore\n\n{BEGIN}\n\n{text}\n\n{END}\n\nafter | é\n"
    assert [p.name for p in tmp_path.iterdir()] == ["performance.md"]


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        f"{END}\n{BEGIN}\n{END}\n",
        f"{BEGIN}\n",
        f"{END}\n",
        f"{END}\n{BEGIN}\n",
        f"{BEGIN}\n{BEGIN}\n{END}\n",
        f"{BEGIN}\n{END}\n{END}\n",
        f"x {BEGIN} {END}",
    ],
)
def test_a_document_without_its_one_pair_of_markers_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    document = tmp_path / "performance.md"
    document.write_text(text)
    with pytest.raises(InputError, match="bench:begin"):
        report.check(document)
    with pytest.raises(InputError, match="bench:begin"):
        report.put("table", document)
    assert document.read_text() == text


def test_a_missing_document_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.md"):
        report.check(tmp_path / "none.md")


def test_the_circumstances_name_day_commit_machine_and_servers() -> None:
    said = " ".join(report.circumstances(datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "the bundled demo", 0.7))
    for words in ("2026-01-02 03:04 UTC", report.commit(), "cores", "GiB", "load average 0.7", "Python 3.", "ray 2.", "the bundled demo"):
        assert words in said, words


def test_without_git_the_commit_is_unknown(tmp_path: Path) -> None:
    assert report.commit(tmp_path).startswith("unknown")


def test_the_shipped_document_takes_the_table() -> None:
    report.check(report.DOCUMENT)
