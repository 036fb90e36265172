import json
import subprocess
import sys

import pytest


@pytest.mark.cluster
@pytest.mark.slow
def test_a_head_without_cpus_bears_no_actor_and_says_what_is_missing() -> None:
    """In a process of its own, for this one may have joined another Ray."""
    done = subprocess.run([sys.executable, "-m", "tests.acceptance.head"], capture_output=True, text=True, timeout=280.0)
    rows = {row["row"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0 and set(rows) == {"spread", "full"}, done.stdout + done.stderr
    assert all(row["holds"] for row in rows.values())
