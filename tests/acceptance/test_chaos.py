"""The bad day, smaller and against the bundled servers; the full one is ``python -m tests.acceptance.chaos``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_on_a_bad_day() -> None:
    # in a process of its own: it needs a Ray of three nodes beside the session's one
    done = subprocess.run(
        [sys.executable, "-m", "tests.acceptance.chaos", "--episodes", "2000"], capture_output=True, text=True, timeout=800, check=False
    )
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["wrong"] == [], report
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_actors_of_a_node_that_stands_still_are_fenced_by_time() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.acceptance.fencing"], capture_output=True, text=True, timeout=800, check=False)
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["wrong"] == [], report
    assert done.returncode == 0
