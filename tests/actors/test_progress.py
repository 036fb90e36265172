from pathlib import Path
from typing import Any

from actors.progress import Progress
from actors.queue import JobQueue
from tests.actors.plans import index, small_plan


def progress(root: Path, **known: Any) -> tuple[Progress, JobQueue]:
    plan = small_plan(root)
    queue = JobQueue(plan, index(**known), attempts=3, longest_first=False)
    return Progress("run", plan.job_count, queue, "2026-01-01T00:00:00+00:00"), queue


def test_before_anything_runs_everything_is_not_run(tmp_path: Path) -> None:
    made, _ = progress(tmp_path)
    status = made.status("starting")
    assert (status["planned"], status["done"], status["not_run"], status["queued"]) == (8, 0, 8, 8)
    assert status["rate_per_min"] is None and status["eta_s"] is None


def test_episodes_of_earlier_invocations_are_done(tmp_path: Path) -> None:
    done = {small_plan(tmp_path).job_at(0).episode_id}
    made, _ = progress(tmp_path, completed=done)
    status = made.status("running")
    assert (status["reused"], status["done"], status["not_run"]) == (1, 1, 7)


def test_planned_is_done_failed_and_not_run(tmp_path: Path) -> None:
    made, queue = progress(tmp_path)
    tickets = queue.take(4)
    queue.complete(tickets[0])
    queue.fail(tickets[1], retryable=False)
    status = made.status("running")
    assert status["planned"] == status["done"] + status["failed"] + status["not_run"]
