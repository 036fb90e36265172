import json
import logging
from pathlib import Path

import pytest

from rayeval.cli import main

CONFIG = """\
experiment: {name: small, seed: 7, output_dir: runs}
tasks: {split_file: split.json, split: val, repeats: 2}
environment: {kind: shopsimulator, base_url: demo}
prompt: {system_prompt: Buy one thing.}
model: {provider: openai_chat, name: scripted, base_url: demo}
"""
SPLIT = {"version": "v1", "splits": {"val": {"role": "val", "persona": True, "task_ids": [3, 1, 2]}}}


class Answer:
    """What one command line gave."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        """The one object on stdout; fails when there is anything else."""
        value = json.loads(self.out)
        assert isinstance(value, dict) and isinstance(value["schema"], str)
        return value


@pytest.fixture(autouse=True)
def _loggers_as_before():
    """Verbs send log records to stderr; other tests want them where pytest looks."""
    loggers = [logging.getLogger(name) for name in ("rayeval", "actors")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate


@pytest.fixture
def rayeval(capsys, monkeypatch, tmp_path):
    """Runs a command line in this process, in a directory of its own, without the variables that steer output."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAYEVAL_DISPLAY", "NO_COLOR", "FORCE_COLOR", "CI", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        taken = capsys.readouterr()
        return Answer(code, taken.out, taken.err)

    return run


@pytest.fixture
def config(tmp_path) -> Path:
    (tmp_path / "split.json").write_text(json.dumps(SPLIT))
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    return path
