import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from rayeval.schemas import ExitCode
from tests.acceptance.rows import actor_ends, when
from tests.acceptance.runs import Bench, Recorder, actors_of, assert_exactly_once, lines_of, records, run_here, wait_gone
from tests.acceptance.servers import DemoPair

pytestmark = pytest.mark.ray


def test_a_killed_actor_is_replaced_and_its_jobs_run_again(tmp_path: Path, ray_session: None) -> None:
    actor_ends(DemoPair, tmp_path, 40)


@pytest.mark.slow
def test_a_stopped_actor_is_replaced(tmp_path: Path, ray_session: None) -> None:
    actor_ends(DemoPair, tmp_path, 40, stop=True)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped_s", "repeats"), [(10.0, 4), (75.0, 20)])
def test_an_actor_that_is_stopped_and_continued_does_nothing_twice(
    tmp_path: Path, ray_session: None, stopped_s: float, repeats: int
) -> None:
    """For less than its driver's patience: nothing is lost. For longer, with its fence waited for: it comes back to a right that has
    lapsed, and ends."""
    bench = Bench(tmp_path, 40)
    overrides = {"tasks.repeats": repeats, "execution.actors": 2, "execution.concurrency": 8, "execution.fence_s": 15.0}
    struck: list[psutil.Process] = []
    with DemoPair(slots=16, env_latency="fixed:0.02", model_latency="fixed:0.1") as servers:
        run_dir = bench.run_dir("stopped")

        def strike() -> None:
            struck.append(psutil.Process(actors_of(run_dir)[-1]))
            struck[0].send_signal(signal.SIGSTOP)
            threading.Timer(stopped_s, os.kill, (struck[0].pid, signal.SIGCONT)).start()

        display = Recorder()
        with when(lambda: lines_of(run_dir) >= 20, strike):
            outcome = run_here(bench.config("stopped", servers, overrides), display=display, kill_by_pid=False)
        env = servers.stats()["env"]
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, 40 * repeats)
    lost = [t for t in records(run_dir) if t["status"] == "failed"]
    assert bool(lost) == (stopped_s > 30.0) and all(t["error"]["stage"] == "lost" for t in lost)
    assert env["peak_leases"] <= 16 and env["leases_held"] == 0
    assert wait_gone(struck) == []
