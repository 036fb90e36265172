import json
from datetime import UTC, datetime

import pytest

from rayeval.cli.runs import size
from rayeval.store import RunLock, write_status
from tests.helpers.runs import completed, failed, foreign, make_foreign_run, make_run

STATUS = {"schema": "rayeval-status-v1", "run": "r", "state": "running", "planned": 3, "done": 1, "failed": 1, "not_run": 1}
STATUS |= {"in_flight": 4, "rate_per_min": 10.0, "eta_s": 60, "reason": None}


@pytest.fixture
def run(rayeval, tmp_path):
    return make_run(tmp_path / "runs" / "r", [completed(0), failed(1)])


def test_runs_are_listed_newest_first(rayeval, run, tmp_path):
    make_foreign_run(tmp_path / "runs" / "old", [foreign(completed(0))])
    rows = rayeval("runs", "--json").json["runs"]
    assert [(r["name"], r["foreign"], r["planned"]) for r in rows] == [("r", False, 3), ("old", True, 3)]
    head, first, second = rayeval("runs", "runs").out.splitlines()
    assert head.startswith("name") and first.startswith("r ") and second.startswith("old ")


def test_an_empty_directory_has_no_runs(rayeval, tmp_path):
    (tmp_path / "runs").mkdir()
    assert rayeval("runs").out == "no runs in runs\n"
    assert rayeval("runs", "--json").json["runs"] == []


def test_hostile_names_reach_the_table_harmless(rayeval, tmp_path):
    run = make_run(tmp_path / "runs" / "r", [])
    manifest = json.loads(run.manifest.read_text())
    manifest["plan"]["model"]["name"] = "m\x1b[31m\nx"
    run.manifest.write_text(json.dumps(manifest))
    answer = rayeval("runs")
    assert "\x1b" not in answer.out and answer.out.count("\n") == 2


def test_a_run_without_a_status_says_so(rayeval, run):
    assert rayeval("status", "r").out == "r: interrupted\nno status was written; `rayeval summarize` reads its traces\n"
    assert rayeval("status", "r", "--json").json["state"] == "interrupted"


def test_the_status_of_a_run_whose_driver_was_killed_is_interrupted(rayeval, run):
    write_status(run, STATUS)
    answer = rayeval("status", "latest")
    assert "r: interrupted" in answer.out and "run the same command again" in answer.out and "left" not in answer.out
    assert rayeval("status", run.path, "--json").json["state"] == "interrupted"


def test_the_status_of_a_living_run(rayeval, run):
    servers = [{"server": "http://shop", "slots": 8, "free": 2, "held": 6, "admission": 8}]
    with RunLock.acquire(run):
        write_status(run, {**STATUS, "environment": servers, "updated_at": datetime.now(UTC).isoformat()})
        answer = rayeval("status", "r")
        assert "1 of 3 done (33 %), 1 failed, about 60 s left" in answer.out and "10.0 a minute" in answer.out
        assert "http://shop" in answer.out
        assert rayeval("status", "r", "--json").json["state"] == "running"


def test_an_ended_run_says_why(rayeval, run):
    write_status(run, {**STATUS, "state": "ended", "reason": "SIGTERM was received"})
    assert rayeval("status", "r").out.startswith("r: ended (SIGTERM was received)\n1 of 3 done (33 %), 1 failed, 1 not run\n")


def test_runs_that_are_broken_or_never_began_are_listed_as_such(rayeval, run, tmp_path):
    make_run(tmp_path / "runs" / "new", []).traces.unlink(missing_ok=True)
    make_run(tmp_path / "runs" / "torn", []).manifest.write_text("{")
    states = {row["name"]: row["state"] for row in rayeval("runs", "--json").json["runs"]}
    assert states == {"r": "interrupted", "new": "not begun", "torn": "broken"}
    assert "broken" in rayeval("runs").out
    assert rayeval("status", "new").out == "new: not begun\nno status was written: no episode was ever started\n"


def test_summarize_prints_figures(rayeval, run):
    answer = rayeval("summarize", "r")
    assert answer.code == 0
    assert "1 of 3 episodes completed" in answer.out and "model_unavailable 1" in answer.out


def test_summarize_json_has_the_groups_at_its_top(rayeval, run):
    summary = rayeval("summarize", "r", "--json").json
    groups = {"counts", "primary", "reward_components", "behavior", "cost", "errors", "run", "skipped", "attempts", "bounds"}
    assert groups <= set(summary)
    assert summary["schema"] == "rayeval-summary-v1"


def test_summarize_writes_only_when_asked(rayeval, run):
    rayeval("summarize", "r")
    assert not run.summary.exists()
    printed = rayeval("summarize", "r", "--write", "--json").json
    assert json.loads(run.summary.read_text()) == printed


def test_summarize_keeps_what_the_run_knew_beside_its_traces(rayeval, run):
    run.write_summary({"unaccounted_leases": {"http://shop": 2}, "counts": {"stale": 1}})
    summary = rayeval("summarize", "r", "--json").json
    assert summary["unaccounted_leases"] == {"http://shop": 2}
    assert summary["counts"]["requested"] == 3


def test_a_foreign_run_is_summarized_and_never_written(rayeval, tmp_path):
    run = make_foreign_run(tmp_path / "runs" / "old", [foreign(completed(0))])
    assert rayeval("summarize", "old", "--json").json["counts"]["completed"] == 1
    assert rayeval("summarize", "old", "--write").code == 2
    assert not run.summary.exists()


def test_names_are_looked_up_in_runs_dir(rayeval, run, tmp_path):
    assert rayeval("summarize", "r", "--runs-dir", tmp_path / "runs").code == 0
    answer = rayeval("summarize", "rr", "--runs-dir", tmp_path / "runs", "--json")
    assert "nearest: r" in answer.json["error"]["hint"]


def test_the_id_of_a_job_is_told_apart_from_the_name_of_a_run(rayeval, run, tmp_path):
    answer = rayeval("status", "rayeval-0123456789ab-1", "--runs-dir", tmp_path / "runs", "--json")
    assert answer.code == 2 and "is the id of a job" in answer.json["error"]["hint"]
    run.path.rename(run.path.with_name("rayeval-0123456789ab-1"))
    assert rayeval("status", "rayeval-0123456789ab-1", "--runs-dir", tmp_path / "runs").code == 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (3400, "3.4 kB"), (999_960, "1.0 MB"), (5_000_000_000_000, "5.0 TB")]
)
def test_sizes(count, text):
    assert size(count) == text
