import os
import signal
import threading
from pathlib import Path

import pytest

from rayeval.schemas import ExitCode
from rayeval.store import load_journal
from tests.acceptance.rows_lives import actor_ends
from tests.acceptance.runs import Bench, actors_of, assert_exactly_once, lines_of, run_here, when
from tests.acceptance.servers import DemoPair

pytestmark = pytest.mark.ray


def test_a_killed_actor_is_replaced_and_its_jobs_run_again(tmp_path: Path, ray_session: None) -> None:
    actor_ends(DemoPair, tmp_path, 40)


@pytest.mark.slow
def test_a_stopped_actor_is_replaced(tmp_path: Path, ray_session: None) -> None:
    actor_ends(DemoPair, tmp_path, 40, stop=True)


@pytest.mark.slow
def test_an_actor_that_is_stopped_for_a_while_and_continued_goes_on_and_loses_nothing(tmp_path: Path, ray_session: None) -> None:
    bench = Bench(tmp_path, 40)
    overrides = {"tasks.repeats": 4, "execution.actors": 2, "execution.concurrency": 8}
    struck: list[int] = []
    with DemoPair(slots=16, env_latency="fixed:0.02", model_latency="fixed:0.1") as servers:
        run_dir = bench.run_dir("stopped")

        def strike() -> None:
            struck.append(actors_of(run_dir)[-1])
            os.kill(struck[0], signal.SIGSTOP)
            threading.Timer(10.0, os.kill, (struck[0], signal.SIGCONT)).start()

        with when(lambda: lines_of(run_dir) >= 20, strike):
            outcome = run_here(bench.config("stopped", servers, overrides))
        assert servers.count("env", "leases_held") == 0
    assert struck and outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, 160)
    assert lines_of(run_dir) == 160, "an attempt was lost"
    journal = load_journal(run_dir.leases).actors.values()
    assert len(journal) == 2 and struck[0] in {actor.pid for actor in journal}, "it was replaced"
