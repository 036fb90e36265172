from pathlib import Path

import pytest

from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory
from tests.acceptance.runs import Recorder, assert_exactly_once, run_here
from tests.actors.mortal import KIND
from tests.actors.plans import write_config

pytestmark = pytest.mark.ray


def test_what_an_actor_logs_and_its_last_words_are_kept(tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2secret")
    overrides = {
        "environment.kind": KIND,
        "environment.options": {"flag": str(tmp_path / "died"), "task": 5},
        "model.api_key_env": "MY_KEY",
        "execution.concurrency": 2,
    }
    display = Recorder()
    outcome = run_here(write_config(tmp_path, overrides=overrides), display=display)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    logs = outcome.run_dir / "logs" / "latest"
    dead, heir = sorted(path for path in logs.glob("actor-*.log"))
    assert "died: pid " in dead.read_text() and "--- last stderr of the process ---" in dead.read_text()
    assert "Fatal: the shelf fell down ([redacted])" in dead.read_text()
    assert "warning my_shop: about to open task 5, with the key" in heir.read_text() and "died" not in heir.read_text()
    driver = (logs / "driver.log").read_text()
    assert all(text.splitlines()[0] in driver for _, text in display.notes) and "is lost with" in driver
    for path in outcome.run_dir.rglob("*"):
        assert not path.is_file() or b"hunter2secret" not in path.read_bytes(), path
    assert_exactly_once(RunDirectory(outcome.run_dir), 8)
