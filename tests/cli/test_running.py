import json
import os
import sys

import pytest

from rayeval.cli import main
from rayeval.hashing import episode_seed


def test_plan_prints_what_a_configuration_means(rayeval, config):
    answer = rayeval("plan", config)
    assert answer.code == 0
    assert "episodes     6 (3 tasks x 2) of split val (v1), role val" in answer.out
    assert "task-000003__sample-000, task-000003__sample-001, task-000001__sample-000" in answer.out
    assert "disk " in answer.out


def test_plan_makes_no_directory(rayeval, config, tmp_path):
    before = sorted(tmp_path.iterdir())
    rayeval("plan", config)
    assert sorted(tmp_path.iterdir()) == before


def test_plan_json_has_counts_hashes_and_first_jobs(rayeval, config):
    plan = rayeval("plan", config, "--json").json
    assert plan["schema"] == "rayeval-plan-v1"
    assert plan["counts"] == {"tasks": 3, "repeats": 2, "jobs": 6}
    assert "jobs" not in plan and len(plan["first_jobs"]) == 5
    assert len(plan["fingerprint"]) == 64
    assert set(plan["hashes"]) == {"system_prompt_sha256", "skill_bank_sha256", "split_sha256", "jobs_sha256"}
    assert plan["hashes"]["skill_bank_sha256"] is None
    assert plan["disk"]["needed_bytes"] == 6 * 72_000


def test_plan_lists_every_job(rayeval, config):
    jobs = rayeval("plan", config, "--json", "--jobs").json["jobs"]
    assert [(j["task_id"], j["sample_id"]) for j in jobs] == [(t, s) for t in (3, 1, 2) for s in (0, 1)]
    assert jobs[0] == {
        "episode_id": "task-000003__sample-000",
        "task_id": 3,
        "sample_id": 0,
        "seed": episode_seed(7, 3, 0),
        "split": "val",
    }
    text = rayeval("plan", config, "--jobs").out
    assert all(f"{j['episode_id']}  seed {j['seed']}" in text for j in jobs)


def test_a_selection_is_told_in_words_and_changes_the_fingerprint(rayeval, config):
    whole = rayeval("plan", config, "--json").json
    part = rayeval("plan", config, "--json", "--task", "1-2", "--limit", "3").json
    assert part["selection"] == "tasks 1-2, the first 3 episodes"
    assert (whole["selection"], part["counts"]["jobs"]) == (None, 3)
    assert part["fingerprint"] != whole["fingerprint"]


def test_a_repeated_override_is_noted_on_stderr(rayeval, config):
    answer = rayeval("plan", config, "--set", "tasks.repeats=3", "--set", "tasks.repeats=1", "--json")
    assert answer.json["counts"]["jobs"] == 3
    assert answer.json["notes"] == ["--set tasks.repeats is given more than once: the last one counts"]
    assert "note: --set tasks.repeats" in rayeval("plan", config, "--set", "tasks.repeats=3", "--set", "tasks.repeats=1").err


def test_show_prints_an_episode_into_a_run_of_its_own_and_resumes(rayeval, config, tmp_path):
    fingerprint = rayeval("plan", config, "--limit", "1", "--json").json["fingerprint"]
    run_dir = tmp_path / "elsewhere" / f"small-show-{fingerprint[:8]}"

    answer = rayeval("run", config, "--show", "--limit", "1", "--runs-dir", tmp_path / "elsewhere")
    assert answer.code == 0, answer.err
    for kind in ("reset", "model 1", "action 1", "environment 1", "end"):
        assert f"── {kind}" in answer.err
    assert '"goal"' not in answer.err
    assert "1 of 1 episodes completed (100.0 %)" in answer.out and "no failures" in answer.out
    assert f"run: {run_dir}" in answer.out and f"rayeval summarize {run_dir}" in answer.out
    argv = json.loads((run_dir / "launch.json").read_text())["argv"]
    assert isinstance(argv, list) and argv

    again = rayeval("run", config, "--show", "--limit", "1", "--runs-dir", tmp_path / "elsewhere", "--json")
    assert again.code == 0
    assert "reusing 1 completed, 0 to run" in again.err
    assert again.json["schema"] == "rayeval-summary-v1"
    assert again.json["counts"]["completed"] == 1
    assert rayeval("verify", run_dir).code == 0


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--set", "execution.episode_timeout_s=0.000001"), 1)])
def test_a_verdict_that_nobody_reads_is_the_runs_exit_code_all_the_same(rayeval, config, monkeypatch, tmp_path, more, code):
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    words = ["run", str(config), "--show", "--limit", "1", "--display", "none", "--set", "execution.attempts=1", *more]
    with os.fdopen(writing, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert main(words) == code
    assert (tmp_path / "runs").is_dir()


def test_a_run_that_is_a_job_names_the_next_submit(rayeval, config, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYEVAL_SUBMISSION_ID", "rayeval-0123456789ab-1")
    late = ("--set", "execution.episode_timeout_s=0.000001", "--set", "execution.attempts=1")
    answer = rayeval("run", config, "--show", "--limit", "1", "--runs-dir", tmp_path / "mnt", *late)
    line = next(line for line in answer.out.splitlines() if "--retry-failed" in line)
    assert line.startswith(f"  rayeval submit {config} ") and f"--output-dir {tmp_path / 'mnt'}" in line and "--runs-dir" not in line


def test_no_resume_refuses_a_directory_with_traces(rayeval, config):
    assert rayeval("run", config, "--show", "--limit", "1", "--display", "none").code == 0
    answer = rayeval("run", config, "--show", "--limit", "1", "--no-resume", "--json")
    assert answer.code == 4
    assert "resume" in answer.json["error"]["hint"]


def test_a_model_that_is_not_there_stops_the_run_with_one_line(rayeval, config):
    answer = rayeval("run", config, "--show", "--limit", "1", "--set", "model.base_url=http://127.0.0.1:9/v1", "--json")
    assert answer.code == 5
    assert "model.base_url" in answer.json["error"]["hint"]
