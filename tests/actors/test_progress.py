import asyncio
from pathlib import Path
from typing import Any, cast

from actors.member import Member
from actors.messages import ActorView, EpisodeView
from actors.progress import NOTES, SLOWEST, Progress, RecentNotes, slowest, snapshot
from actors.queue import JobQueue
from rayeval.environments.fake import FakeCall
from rayeval.stages import STAGES
from tests.actors.fields import field
from tests.actors.plans import index, small_plan
from tests.actors.specs import spec


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


def test_notes_are_the_newest_warnings_and_errors_in_one_line_each() -> None:
    notes = RecentNotes()
    notes.heard("info", "nothing to see")
    for i in range(NOTES + 2):
        notes.heard("warning" if i % 2 else "error", f"number\n{i} " + "x" * 1000)
    kept = notes.list()
    assert [note["text"].split()[1] for note in kept] == [str(i) for i in range(2, NOTES + 2)]
    assert all("\n" not in note["text"] and len(note["text"]) <= 400 for note in kept)
    assert {note["level"] for note in kept} == {"warning", "error"}


def test_notes_hold_no_key() -> None:
    notes = RecentNotes("sk-0123456789")
    notes.heard("error", "the server said: bad key sk-0123456789")
    assert "sk-0123456789" not in notes.list()[0]["text"] and "bad key" in notes.list()[0]["text"]


def test_the_oldest_episodes_of_all_actors_age_since_their_actors_last_word() -> None:
    def member(actor_id: str, *ages: float, at: float) -> Member:
        made = Member(spec(actor_id=actor_id), handle=cast(Any, None))
        made.view = ActorView({}, tuple(EpisodeView(f"{actor_id}-{age:g}", age, "model", 1.0, 2) for age in ages))
        made.view_at = at
        return made

    members = [member("a", 50.0, 40.0, at=100.0), member("b", *range(49, 40, -1), at=90.0), Member(spec(), handle=cast(Any, None))]
    rows = slowest(members, now=100.0)
    assert len(rows) == SLOWEST and [row["episode_id"] for row in rows][:2] == ["b-49", "b-48"]
    assert rows[0] == {"episode_id": "b-49", "age_s": 59.0, "stage": "model", "stage_s": 11.0, "step": 2, "actor": "b"}
    ages = [row["age_s"] for row in rows]
    assert ages == sorted(ages, reverse=True) and "a-40" not in {row["episode_id"] for row in rows}


def test_before_anything_runs_the_new_figures_are_there_and_empty(tmp_path: Path) -> None:
    status = progress(tmp_path)[0].status("starting")
    assert status["stages"] == dict.fromkeys(STAGES, 0)
    assert (status["slowest"], status["failures"], status["failures_retried"], status["notes"], status["broker"]) == ([], {}, {}, [], None)


async def test_a_snapshot_tells_where_the_episodes_are(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def hold(call: FakeCall) -> None:
        if call.name == "step":
            await held.wait()

    async with field(tmp_path, tasks=6, actors=2, slots=4, hook=hold) as f:
        running = asyncio.create_task(f.run())
        try:
            await f.until(lambda: snapshot(f.pool)["stages"]["environment"] == 4)
            shot = snapshot(f.pool)
            assert shot["in_flight"] == 4 and sum(n for stage, n in shot["stages"].items() if stage != "queued") == 4
            dispatched = {episode_id for member in f.pool.members.values() for episode_id in member.jobs}
            assert len(shot["slowest"]) == 4 and {row["episode_id"] for row in shot["slowest"]} <= dispatched
            assert {(row["stage"], row["step"]) for row in shot["slowest"]} == {("environment", 1)}
            assert {row["actor"] for row in shot["slowest"]} == set(f.pool.members)
            (server,) = shot["environment"]
            assert (server["held"], server["out_s"], server["refused"]) == (4, None, False)
            (model,) = shot["model"]
            assert (model["episodes"] >= 4, model["out_s"], model["pause_s"], model["limit"], model["retries"]) == (
                True,
                None,
                None,
                None,
                {},
            )
        finally:
            held.set()
            await running
