import pytest

from tests.helpers.runs import completed, make_run


@pytest.fixture
def good(rayeval, tmp_path):
    return make_run(tmp_path / "runs" / "good", [completed(0), completed(1)])


def test_a_sound_run(rayeval, good):
    answer = rayeval("verify", "good")
    assert answer.code == 0
    assert answer.out.splitlines() == ["good: 2 lines, 2 receipts; 3 planned = 2 completed + 0 failed + 1 not run", "sound"]


def test_the_newest_run_is_meant_when_none_is_named(rayeval, good):
    assert rayeval("verify", "--json").json["run"] == "good"


def test_a_damaged_run_ends_with_four(rayeval, tmp_path):
    make_run(tmp_path / "runs" / "bad", [completed(0), b"{\x1b\n"] + [b"x\n"] * 150, tail=b"torn")
    answer = rayeval("verify", "bad")
    assert answer.code == 4
    assert "151 problems" in answer.out and "and 51 more" in answer.out and "torn last line of 4 bytes" in answer.out
    assert "\x1b" not in answer.out
    assert rayeval("verify", "bad", "--json").json["ok"] is False


def test_two_equal_runs(rayeval, good, tmp_path):
    make_run(tmp_path / "runs" / "twin", [completed(1), completed(0)])
    answer = rayeval("verify", "--canonical", "good", "twin")
    assert answer.code == 0 and answer.out.endswith("equal\n")
    assert rayeval("verify", "--canonical", "good", tmp_path / "runs" / "twin", "--json").json["equal"] is True


def test_two_runs_that_differ_end_with_four(rayeval, good, tmp_path):
    make_run(tmp_path / "runs" / "other", [completed(0, reward=0.5), completed(2)])
    answer = rayeval("verify", "--canonical", "good", "other")
    assert answer.code == 4
    assert "differs: task-000000__sample-000 at final.reward" in answer.out
    assert "only in A: 1 (task-000001__sample-000" in answer.out and "only in B: 1" in answer.out
    assert answer.out.endswith("not equal\n")
