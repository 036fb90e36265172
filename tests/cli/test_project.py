import json
import os
import signal
import subprocess
import sys

import pytest


def test_init_writes_a_project_that_can_be_planned(rayeval, tmp_path):
    answer = rayeval("init", tmp_path / "p")
    assert answer.code == 0 and answer.out.count("wrote") == 6
    plan = rayeval("plan", tmp_path / "p" / "experiment.yaml", "--json").json
    assert plan["counts"]["jobs"] == 80
    assert (tmp_path / "p" / ".gitignore").read_text() == "runs/\n"
    assert "x-semantic" in (tmp_path / "p" / "rayeval.schema.json").read_text()


def test_init_overwrites_nothing(rayeval, tmp_path):
    own = tmp_path / "p" / "experiment.yaml"
    own.parent.mkdir()
    own.write_text("mine")
    answer = rayeval("init", tmp_path / "p", "--json").json
    assert answer["kept"] == ["experiment.yaml"] and "Makefile" in answer["written"]
    assert own.read_text() == "mine"
    assert rayeval("init", tmp_path / "p", "--json").json["written"] == []


def test_init_follows_no_dangling_link(rayeval, tmp_path):
    target = tmp_path / "p" / "Makefile"
    target.parent.mkdir()
    target.symlink_to(tmp_path / "elsewhere")
    assert "Makefile" in rayeval("init", tmp_path / "p", "--json").json["kept"]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_init_into_a_directory_that_cannot_be_written(rayeval, tmp_path):
    (tmp_path / "p").mkdir(mode=0o500)
    assert rayeval("init", tmp_path / "p").code == 5


def test_init_below_a_file(rayeval, tmp_path):
    (tmp_path / "file").write_text("")
    answer = rayeval("init", tmp_path / "file" / "p", "--json")
    assert answer.code == 2 and answer.json["error"]["field"] == "path"


def test_demo_hands_its_options_on(rayeval):
    assert "--shop-port" in rayeval("demo", "--help").out


def test_demo_refuses_what_is_no_option_of_its_own(rayeval):
    answer = rayeval("demo", "--nonsense")
    assert answer.code == 2 and "--nonsense" in answer.err


def test_demo_prints_its_addresses_and_ends_with_a_signal():
    words = [sys.executable, "-m", "rayeval", "demo", "--shop-port", "0", "--model-port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            assert set(json.loads(demo.stdout.readline())) == {"shop", "model"}
        finally:
            demo.send_signal(signal.SIGTERM)
        demo.wait(timeout=30)
