"""``submit`` against a stand-in of the job server; the client that sends is Ray's own."""

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import zipfile

import pytest

from actors.jobs import send
from rayeval.exceptions import StoppedError
from rayeval.job_server import JobServer
from rayeval.submission import JobSpec, end_line
from tests.helpers.job_server import FakeJob, FakeJobServer, serving


@pytest.fixture
def cluster(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAYEVAL_SUBMISSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with serving(FakeJobServer()) as fake:
        yield fake


@pytest.fixture
def submit(rayeval, config, cluster):
    return lambda *words, place="/data/runs": rayeval("submit", config, "--address", cluster.url, "--output-dir", place, *words)


def ends(status, code, *lines):
    def hook(name, job):
        job.log = "".join(f"{line}\n" for line in lines) + f"{end_line(name, 143)}\n"
        job.end(status, code)

    return hook


def test_a_job_is_sent_followed_and_ends_with_its_own_code(submit, cluster, monkeypatch):
    monkeypatch.setenv("MY_KEY", "hunter2secret")
    cluster.on_submit = ends("FAILED", 1, "12:00:00 info small: 6 to run", "\x1b[31mred hunter2secret")
    answer = submit("--set", "model.temperature=0", "--max-failed", "5%", "-x", "--env", "A=b", "--env-from", "MY_KEY", "--limit", "4")
    assert answer.code == 1
    assert answer.out.startswith("12:00:00 info small: 6 to run\n\\x1b[31mred [redacted]\n")
    assert "4 episodes into /data/runs/small" in answer.err and "hunter2secret" not in answer.out + answer.err
    (asked,) = cluster.submitted
    assert asked["entrypoint"] == (
        "exec python -m rayeval run small.yaml --runs-dir /data/runs --display plain --set=model.temperature=0 "
        "'--set=execution.max_failed=\"5%\"' --limit=4 -x"
    )
    env = asked["runtime_env"]["env_vars"]
    assert env == {
        "RAY_AUTH_MODE": "disabled", "A": "b", "MY_KEY": "hunter2secret", "RAY_JOB_STOP_WAIT_TIME_S": "210",
        "RAYEVAL_SUBMISSION_ID": asked["submission_id"],
    }  # fmt: skip
    assert asked["runtime_env"]["working_dir"].startswith("gcs://") and asked["metadata"]["rayeval_run"] == "small"
    files = zipfile.ZipFile(io.BytesIO(next(iter(cluster.packages.values())))).namelist()
    assert set(files) == {"small.yaml", "split.json"}


@pytest.mark.parametrize(
    ("where", "text", "named"),
    [
        (".", "splits/\n", "splits/mine.json"),
        (".", "*.json\n", "splits/mine.json"),
        ("splits", "mine.*", "splits/mine.json"),
        (".", "/small.yaml", ""),
    ],
)
def test_a_file_that_an_ignore_file_keeps_out_of_the_upload_is_refused(submit, cluster, config, where, text, named):
    (config.parent / "splits").mkdir()
    split = config.parent / "splits" / "mine.json"
    split.write_bytes((config.parent / "split.json").read_bytes())
    (config.parent / where / ".gitignore").write_text(text)
    answer = submit("--set", "tasks.split_file=splits/mine.json", "--json")
    error = answer.json["error"]
    assert (answer.code, error["field"]) == (2, "tasks.split_file" if named else "CONFIG") and not cluster.submitted
    assert f"{named or 'small.yaml'} is named in an ignore file" in error["hint"]
    (config.parent / where / ".gitignore").write_text("other.json\n")
    assert submit("--set", "tasks.split_file=splits/mine.json", "--no-follow").code == 0 and len(cluster.submitted) == 1


def test_a_submit_that_is_answered_too_late_says_nothing_in_its_thread(cluster, config, monkeypatch, capfd):
    spec = JobSpec(ID, "true hunter2secret", config.parent, (), {"K": "hunter2secret"}, {"rayeval_submission": "n"})
    late, told = threading.Event(), threading.Event()

    class Client:
        def submit_job(self, **what):
            late.wait(20)
            raise RuntimeError(f"500: {what}, K=hunter2secret")

    monkeypatch.setattr("actors.jobs._client", lambda server: Client())
    monkeypatch.setattr("threading.excepthook", lambda args: told.set())

    async def go():
        async with JobServer(cluster.url) as server:
            with pytest.raises(StoppedError, match="was not taken within"):
                await send(spec, server, timeout_s=0.1)

    asyncio.run(go())
    late.set()
    for thread in threading.enumerate():
        if thread.name == "submit":
            thread.join(20)
    assert not told.is_set() and "hunter2secret" not in capfd.readouterr().err


def test_a_directory_that_the_cluster_does_not_take_for_its_size_is_bad_input(submit, cluster):
    cluster.refuse_with = "Request failed with status code 413: Maximum request body size 104857600 exceeded."
    answer = submit("--json")
    assert (answer.code, answer.json["error"]["field"]) == (2, "--working-dir") and "104857600" in answer.json["error"]["hint"]


def test_json_is_one_object_and_the_log_goes_to_stderr(submit, cluster):
    cluster.on_submit = ends("STOPPED", None, "draining")
    answer = submit("--json")
    assert answer.code == 143 and "draining" in answer.err
    assert answer.json["schema"] == "rayeval-submission-v1"
    assert (answer.json["status"], answer.json["exit_code"], answer.json["planned"]) == ("STOPPED", 143, 6)
    assert answer.json["run_dir"] == "/data/runs/small" and answer.json["submission_id"] == cluster.submitted[0]["submission_id"]


def test_without_following_it_says_how_to_come_back(submit, cluster):
    answer = submit("--no-follow")
    name = cluster.submitted[0]["submission_id"]
    assert answer.code == 0
    assert answer.out.split() == [name, *f"rayeval logs {name} --address {cluster.url} ray job stop {name} --address {cluster.url}".split()]
    assert submit("--no-follow", "--json").json["error"]["code"] == 4


def test_a_second_one_is_refused_while_the_first_runs_and_the_next_goes_on_after_it(submit, cluster):
    assert submit("--no-follow").code == 0
    first = cluster.submitted[0]["submission_id"]
    refused = submit()
    assert refused.code == 4 and f"rayeval logs {first} --address {cluster.url}" in refused.err and len(cluster.submitted) == 1
    assert submit("--no-follow", place="/data/other").code == 0  # another directory is another run
    cluster.jobs[first].end("FAILED", 5)
    cluster.on_submit = ends("SUCCEEDED", 0)
    assert submit().code == 0
    assert cluster.submitted[-1]["submission_id"] == first.removesuffix("-1") + "-2"


def test_of_two_at_the_same_moment_the_cluster_refuses_the_second(submit, cluster):
    """The other one is not in the list yet and has the id when this one arrives."""
    cluster.hide_from_list = True
    assert submit("--no-follow").code == 0
    refused = submit("--no-follow")
    assert refused.code == 4 and len(cluster.submitted) == 2
    assert f"error: {cluster.submitted[0]['submission_id']} is pending" in refused.err


def test_a_lost_answer_is_no_lost_job(submit, cluster):
    cluster.lose_reply = True
    cluster.on_submit = ends("SUCCEEDED", 0, "done")
    assert submit().code == 0 and len(cluster.jobs) == 1


def test_what_the_cluster_does_not_take_is_told_in_one_line_without_secrets(submit, cluster, monkeypatch):
    monkeypatch.setenv("MY_KEY", "hunter2secret")
    cluster.refuse_with = "Traceback:\n  x\nRuntimeError: no room for hunter2secret\n"
    answer = submit("--env-from", "MY_KEY", "--json")
    assert answer.code == 5 and "no room for [redacted]" in answer.err and "hunter2secret" not in answer.err + answer.out
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "place", "field"),
    [
        ((), "runs", "--output-dir"),
        ((), "{here}/runs", "--output-dir"),
        (("--set", "model.temperature=warm"), "/d", "model.temperature"),
        (("--set", "model.name=sk-hunter2secret"), "/d", "command line"),
        (("--env", "MY_KEY=hunter2secret"), "/d", "--env"),
        (("--env-from", "MISSING_X"), "/d", "--env-from"),
        (("--working-dir", "/proc"), "/d", "CONFIG"),
        (("--entrypoint-resources", "{"), "/d", "--entrypoint-resources"),
        (("--entrypoint-resources", '{"a": -1}'), "/d", "--entrypoint-resources"),
        (("--retry-failed", "--no-resume"), "/d", "--retry-failed"),
    ],
)
def test_bad_input_is_told_before_anything_is_sent(submit, cluster, tmp_path, words, place, field):
    answer = submit(*words, "--json", place=place.format(here=tmp_path))
    assert (answer.code, answer.json["error"]["field"]) == (2, field)
    assert cluster.requests == [] and "hunter2secret" not in answer.out + answer.err


def test_a_file_that_would_stay_behind_is_bad_input(submit, tmp_path, config):
    (tmp_path / ".venv").mkdir()
    (tmp_path / "split.json").rename(tmp_path / ".venv" / "split.json")
    answer = submit("--no-follow", "--set", "tasks.split_file=.venv/split.json")
    assert answer.code == 2 and "lies in .venv, which is not uploaded" in answer.err


def test_a_key_that_is_only_named_is_read_on_the_cluster(submit, cluster):
    answer = submit("--no-follow", "--set", "model.api_key_env=MY_KEY")
    assert "the key is read from MY_KEY of the cluster's nodes" in answer.err
    assert "MY_KEY" not in cluster.submitted[0]["runtime_env"]["env_vars"]


def test_an_address_where_nothing_listens(rayeval, config):
    answer = rayeval("submit", config, "--address", "http://127.0.0.1:9", "--output-dir", "/d", "--json")
    assert answer.code == 5 and "does not answer" in answer.json["error"]["hint"]


# ---- coming back


ID = "rayeval-0123456789ab-1"


def test_coming_back_follows_to_the_jobs_exit_code(rayeval, cluster):
    cluster.jobs[ID] = FakeJob("FAILED", "one\ntwo\nthree\n", driver_exit_code=3)
    assert rayeval("logs", ID, "--address", cluster.url).code == 3
    answer = rayeval("logs", ID, "--address", cluster.url, "--tail", "1", "--json")
    assert (answer.code, answer.json["exit_code"], answer.err) == (3, 3, "three\n")


def test_a_look_does_not_wait(rayeval, cluster, monkeypatch):
    cluster.jobs[ID] = FakeJob("RUNNING", "one\ntwo\n")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", cluster.url)
    answer = rayeval("logs", ID, "--no-follow", "--tail", "1")
    assert (answer.code, answer.out) == (0, "two\n")
    assert rayeval("logs", ID, "--no-follow", "--json").json["status"] == "RUNNING"


def test_a_look_at_the_tail_of_a_stopped_job_says_how_it_ended(rayeval, cluster):
    cluster.jobs[ID] = FakeJob("STOPPED", f"one\n{ID}: ended with exit code 0\n")
    for tail in ("0", "1"):
        answer = rayeval("logs", ID, "--address", cluster.url, "--no-follow", "--tail", tail)
        assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize(("follow", "code"), [((), 141), (("--no-follow",), 0)])
def test_a_log_that_nobody_reads_is_not_followed_and_the_job_goes_on(cluster, follow, code):
    cluster.jobs[ID] = FakeJob("RUNNING", "one\n" * 9)
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "rayeval", "logs", ID, "--address", cluster.url, *follow]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert done.returncode == code and (f"{ID} goes on" in done.stderr) == (code == 141)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ((ID, "--address", "{url}"), "submission id"),
        ((ID,), "--address"),
        (("smoke", "--address", "{url}"), "ID"),
        ((ID, "--address", "{url}", "--attempt", "1"), "--attempt"),
    ],
)
def test_coming_back_to_what_is_not_there(rayeval, cluster, words, field):
    answer = rayeval("logs", *(word.format(url=cluster.url) for word in words), "--json")
    assert (answer.code, answer.json["error"]["field"]) == (2, field)


def test_the_run_itself_tells_its_job_how_it_ended(rayeval, config, monkeypatch):
    monkeypatch.setenv("RAYEVAL_SUBMISSION_ID", ID)
    answer = rayeval("run", config, "--limit", "0")
    assert answer.code == 2 and answer.err.endswith(f"{ID}: ended with exit code 2\n")
    assert "ended with exit code" not in rayeval("plan", config).err


def test_the_log_of_a_job_with_everything_in_it_is_still_one_answer(rayeval, cluster):
    cluster.jobs[ID] = FakeJob("SUCCEEDED", "x" * 100_000 + "\n\u202e\x9b\n", driver_exit_code=0)
    answer = rayeval("logs", ID, "--address", cluster.url)
    assert answer.code == 0 and "\x9b" not in answer.out and len(answer.out) > 100_000
    assert json.loads(rayeval("logs", ID, "--address", cluster.url, "--json").out)["status"] == "SUCCEEDED"
