"""What a job is: ids that cannot collide by accident, nothing of a run uploaded, no secret where others read."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.config import load_config
from rayeval.exceptions import InputError, RefusedError
from rayeval.plan import make_plan
from rayeval.submission import (
    EXCLUDES,
    JobRow,
    absolute_path_keys,
    checked_env,
    checked_output_dir,
    checked_words,
    checked_working_dir,
    end_in,
    end_line,
    entrypoint,
    id_prefix,
    inside,
    is_submission_id,
    make_job,
    next_id,
    referenced_files,
)

URL = "http://h:8265"
CONFIG = """\
experiment: {name: small, seed: 7, output_dir: %s}
tasks: {split_file: split.json, split: val}
environment: {kind: shopsimulator, base_url: demo}
prompt: {system_prompt: Buy one thing.}
model: {name: scripted, base_url: demo}
execution: {grace_s: 60, fence_s: 30}
"""


@pytest.fixture
def loaded(tmp_path):
    split = {"version": "v1", "splits": {"val": {"role": "val", "persona": True, "task_ids": [1]}}}
    (tmp_path / "split.json").write_text(json.dumps(split))
    (tmp_path / "small.yaml").write_text(CONFIG % "out/runs")
    return load_config(tmp_path / "small.yaml")


# ---- ids


@given(st.text(), st.text())
def test_an_id_says_plan_and_place(fingerprint, place):
    prefix = id_prefix(fingerprint, place)
    first = next_id(prefix, [], URL)
    assert first == f"{prefix}1" and is_submission_id(first)
    assert prefix == id_prefix(fingerprint, place)
    assert prefix != id_prefix(fingerprint + "x", place) and prefix != id_prefix(fingerprint, place + "/x")


@given(ends=st.lists(st.sampled_from(["SUCCEEDED", "FAILED", "STOPPED"]), max_size=12), others=st.lists(st.integers(1, 50), max_size=4))
def test_the_next_number_is_one_above_every_earlier_one_and_other_plans_do_not_count(ends, others):
    prefix = id_prefix("f", "/o")
    rows = [JobRow(f"{prefix}{k}", status) for k, status in enumerate(ends, 1)]
    rows += [JobRow(f"{id_prefix('g', '/o')}{n}", "RUNNING") for n in others] + [JobRow("raysubmit_x", "RUNNING")]
    assert next_id(prefix, rows, URL) == f"{prefix}{len(ends) + 1}"


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "SOMETHING_NEW"])
def test_while_one_is_not_over_the_next_is_refused_with_its_id_and_what_to_do(status):
    prefix = id_prefix("f", "/o")
    with pytest.raises(RefusedError) as caught:
        next_id(prefix, [JobRow(f"{prefix}1", "FAILED"), JobRow(f"{prefix}2", status)], URL)
    text = str(caught.value)
    assert f"rayeval logs {prefix}2 --address {URL}" in text and f"ray job stop {prefix}2 --address {URL}" in text


@pytest.mark.parametrize(
    "text", ["rayeval-0123456789ab-0", "rayeval-0123456789ab-", "rayeval-0123456789AB-1", "smoke", "rayeval-0123456789ab-1\n"]
)
def test_what_is_no_id(text):
    assert not is_submission_id(text)


# ---- places


@pytest.mark.parametrize("place", ["runs", "./runs", "", "../runs"])
def test_a_relative_output_directory_is_refused(tmp_path, place):
    with pytest.raises(InputError, match="is relative; give an absolute path"):
        checked_output_dir(place, tmp_path)


@pytest.mark.parametrize("inner", ["", "/runs", "/a/../runs", "/./x", "//y"])
def test_an_output_directory_inside_the_upload_is_refused(tmp_path, inner):
    with pytest.raises(InputError, match="lies inside the uploaded"):
        checked_output_dir(f"{tmp_path}{inner}", tmp_path)


def test_a_link_does_not_hide_that_it_lies_inside(tmp_path):
    (tmp_path / "project" / "runs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "project" / "runs")
    (tmp_path / "also").symlink_to(tmp_path / "project")
    with pytest.raises(InputError, match="lies inside"):
        checked_output_dir(str(tmp_path / "link"), tmp_path / "project")
    with pytest.raises(InputError, match="lies inside"):
        checked_output_dir(str(tmp_path / "project" / "runs"), tmp_path / "also")
    assert checked_output_dir(f"{tmp_path}/projects/", tmp_path / "project") == f"{tmp_path}/projects"


def test_the_configuration_and_its_files_are_part_of_the_upload(tmp_path, loaded):
    assert checked_working_dir(tmp_path, loaded.path) == tmp_path
    with pytest.raises(InputError, match="give --working-dir"):
        checked_working_dir(tmp_path / "..", Path("/elsewhere/x.yaml"))
    with pytest.raises(InputError, match="is no directory"):
        checked_working_dir(tmp_path / "none", loaded.path)
    assert inside(tmp_path, "tasks.split_file", tmp_path / "a" / ".." / "split.json") == "split.json"
    for hidden in (".venv", "runs", "__pycache__", "a/node_modules/b", ".env.d"):
        with pytest.raises(InputError, match="is not uploaded; move it"):
            inside(tmp_path, "skills.path", tmp_path / hidden / "bank.json")
    assert inside(tmp_path, "skills.path", tmp_path / "data" / "runs" / "bank.json") == "data/runs/bank.json"


def test_files_by_absolute_paths_are_the_clusters_own(tmp_path, loaded):
    assert absolute_path_keys(loaded, []) == [] and set(referenced_files(loaded, [])) == {"tasks.split_file"}
    overrides = [f"tasks.split_file={tmp_path}/split.json"]
    again = load_config(loaded.path, overrides)
    assert absolute_path_keys(again, overrides) == ["tasks.split_file"]
    assert referenced_files(again, ["tasks.split_file"]) == {}


# ---- secrets


@pytest.mark.parametrize(
    "word",
    ["--set=model.extra_body.api_key=abc", "--set=environment.base_url=http://user:pw@h", "--set=model.name=sk-abcdefgh"],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(word):
    with pytest.raises(InputError, match="--env-from NAME") as caught:
        checked_words(["run", word])
    assert not any(secret in str(caught.value) for secret in ("abc", "pw@", "sk-abcdefgh"))


def test_variables_are_sent_as_chosen():
    environ = {"MY_KEY": "s3cret", "OTHER": "x"}
    assert checked_env(["A=1=2", "B="], ["MY_KEY"], environ) == {"A": "1=2", "B": "", "MY_KEY": "s3cret"}


@pytest.mark.parametrize(
    ("pairs", "names"),
    [
        (["MY_KEY=s3cret"], []), (["A"], []), (["=s3cret"], []), (["A B=s3cret"], []), (["A=sk-s3cret99"], []), ([], ["MY_KEY=s3cret"]),
        ([], ["MISSING"]), (["RAYEVAL_SUBMISSION_ID=x"], []), (["RAY_JOB_STOP_WAIT_TIME_S=3"], []),
    ],
)  # fmt: skip
def test_variables_that_are_wrong_are_told_without_their_values(pairs, names):
    with pytest.raises(InputError) as caught:
        checked_env(pairs, names, {"MY_KEY": "s3cret"})
    assert "s3cret" not in str(caught.value)


# ---- the job


def test_a_job_is_whole(tmp_path, loaded):
    plan = make_plan(loaded)
    command = entrypoint("python", "small.yaml", "/data/runs", ["--set=model.temperature=0", '--where=role=="val"'])
    job = make_job(
        "rayeval-0123456789ab-3", loaded, plan, working_dir=tmp_path, output_dir="/data/runs", command=command,
        env={"MY_KEY": "s3cret", "RAY_AUTH_MODE": "token"}, auth_mode="disabled", nonce="n",
    )  # fmt: skip
    assert shlex.split(command) == [
        "exec", "python", "-m", "rayeval", "run", "small.yaml", "--runs-dir", "/data/runs", "--display", "plain",
        "--set=model.temperature=0", '--where=role=="val"',
    ]  # fmt: skip
    assert job.env["RAYEVAL_SUBMISSION_ID"] == job.submission_id and job.env["RAY_AUTH_MODE"] == "token"
    assert int(job.env["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60 + 30 + 60
    assert job.metadata["rayeval_run_dir"] == "/data/runs/small" and job.metadata["rayeval_fingerprint"] == plan.fingerprint
    everything = json.dumps([job.entrypoint, dict(job.metadata), repr(job)])
    assert "s3cret" not in everything and all(isinstance(value, str) for value in job.metadata.values())
    # the run's own default directory is not uploaded either, wherever the configuration puts it
    assert "/out/runs" in job.runtime_env["excludes"] and set(EXCLUDES) < set(job.runtime_env["excludes"])


def test_nothing_of_a_run_and_no_private_file_is_packed(tmp_path, loaded):
    """By Ray's own packer, which reads the excludes."""
    from ray._private.runtime_env.packaging import create_package

    kept = {"small.yaml", "split.json", "src/env.py", "src/runs/notes.txt"}
    dropped = {
        "runs/a/manifest.json", "out/runs/b/summary.json", "old/traces.jsonl", "old/leases.jsonl", ".git/config", ".venv/x",
        "src/__pycache__/e.pyc", ".env", "src/.env.local",
    }  # fmt: skip
    for name in (kept | dropped) - {"small.yaml", "split.json"}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    job = make_job(
        "rayeval-0123456789ab-1", loaded, make_plan(loaded), working_dir=tmp_path, output_dir="/o", command="c", env={},
        auth_mode="disabled", nonce="n",
    )  # fmt: skip
    package = tmp_path.parent / f"{tmp_path.name}.zip"
    create_package(str(tmp_path), package, include_gitignore=True, excludes=list(job.excludes))
    import zipfile

    files = {name for name in zipfile.ZipFile(package).namelist() if not name.endswith("/")}
    assert files == kept


# ---- the end


def test_the_last_line_tells_the_end_among_other_noise():
    name = "rayeval-0123456789ab-1"
    assert end_in(f"a\n{end_line(name, 4)}\n{end_line(name, 143)}\nWarning: late\n", name) == 143
    assert end_in(f"{end_line(name, 4)}\n" + "x" * 5000, name) is None
    assert end_in(f"said: {end_line(name, 4)}", name) is None
    assert end_in("", name) is None
