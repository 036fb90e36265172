import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors.progress import snapshot
from rayeval.environments.fake import FakeCall
from rayeval.exceptions import EnvironmentCallError
from rayeval.schemas import ErrorKind, ExitCode
from rayeval.store import iter_traces, load_journal
from tests.actors.fields import Field, FragileHandle, completed, field


def lost(f: Field) -> list[dict[str, Any]]:
    return [t for t in iter_traces(f.run_dir) if (t["error"] or {}).get("stage") == "lost"]


async def slow(call: FakeCall) -> None:
    await asyncio.sleep(0.01)


async def test_every_job_is_completed_once_and_nothing_stays_held(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=30) as f:
        assert await f.run() is None
        assert set(completed(f).values()) == {1} and len(completed(f)) == 30
        assert f.ledger.done == 30 and f.queue.over
        assert not f.world.held and not load_journal(f.run_dir.leases).held
        assert all(handle.killed for handle in f.handles)
        assert all(actor.gone for actor in load_journal(f.run_dir.leases).actors.values())


async def test_episodes_in_flight_never_pass_the_slots_of_run_or_server(tmp_path: Path) -> None:
    most: Counter[str] = Counter()

    async def count(call: FakeCall) -> None:
        f.world.held and most.update()
        for server, n in Counter(lease.server for lease in f.world.held.values()).items():
            most[server] = max(most[server], n)
        most["all"] = max(most["all"], len(f.world.held))
        await asyncio.sleep(0.005)

    async with field(tmp_path, tasks=40, actors=3, slots=8, hook=count, servers=("http://a.invalid", "http://b.invalid")) as f:
        f.pool.admission._observed["http://a.invalid"] = 3
        f.pool.dealer.admission["http://a.invalid"] = 3
        await f.run()
        assert most["all"] <= 8 and most["http://a.invalid"] <= 3
        assert most["http://b.invalid"] > 0


async def test_a_failed_attempt_runs_again_and_a_final_one_does_not(tmp_path: Path) -> None:
    def fail(call: FakeCall) -> None:
        if call.name == "step" and call.job.task_id == 1 and call.number == 0:
            raise EnvironmentCallError("a 500", ErrorKind.ENVIRONMENT_ERROR, True)
        if call.name == "reset" and call.job.task_id == 2:
            raise EnvironmentCallError("unknown task", ErrorKind.ENVIRONMENT_REFUSED, False)

    async with field(tmp_path, tasks=4, hook=fail) as f:
        await f.run()
        lines = [(t["job"]["task_id"], t["attempt"], t["status"]) for t in iter_traces(f.run_dir)]
        assert sorted(n for n in lines if n[0] in (1, 2)) == [(1, 1, "failed"), (1, 2, "completed"), (2, 1, "failed")]
        assert f.ledger.failures == {"environment_refused": 1}


async def test_a_dead_actor_is_replaced_and_its_jobs_run_again(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=20, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: len(f.world.held) >= 2)
        f.handles[0].die()
        await running
        assert len(completed(f)) == 20 and set(completed(f).values()) == {1}
        assert f.pool.replaced == 1 and len(f.handles) == 3
        assert f.ledger.lost == len(lost(f)) > 0
        assert not f.world.held
        journal = load_journal(f.run_dir.leases)
        assert not journal.held and all(actor.gone for actor in journal.actors.values())


async def test_a_lost_reply_is_asked_for_again_and_nothing_runs_twice(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=20, hook=slow) as f:
        running = asyncio.create_task(f.run())
        for _ in range(3):
            await f.until(lambda: bool(f.handles) and f.handles[0].fail_next is None)
            await asyncio.sleep(0.05)
            f.handles[0].lose_a_reply()
        await running
        assert len(completed(f)) == 20 and set(completed(f).values()) == {1}
        assert f.ledger.lost == 0 and f.pool.replaced == 0
        assert any("asking again" in text for _, text in f.notes)
        resets = Counter(c.job for c in f.world.calls if c.name == "reset")
        assert set(resets.values()) == {1}


async def test_the_second_defect_of_an_actor_ends_the_run(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=60, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: len(f.world.held) >= 2)
        f.handles[0].fault()
        await f.until(lambda: len(f.handles) == 3)
        f.handles[1].fault()
        assert await running == ExitCode.INTERNAL
        assert "a defect" in (f.pool.reason or "")
        await f.until(lambda: not f.world.held)  # an actor without a process lets go by itself


async def test_a_job_that_kills_every_actor_it_meets_is_quarantined(tmp_path: Path) -> None:
    def deadly(call: FakeCall) -> Any:
        if call.name == "step" and call.job.task_id == 3:
            holder = next(h for h in f.handles if not h.killed and call.job.episode_id in h._actor._running)
            holder.die()
        return asyncio.sleep(0.01)

    async with field(tmp_path, tasks=8, hook=deadly) as f:
        await f.run()
        assert len(completed(f)) == 7
        assert f.ledger.failures == {"quarantined": 1}
        assert [t["job"]["task_id"] for t in iter_traces(f.run_dir) if (t["error"] or {}).get("quarantined")] == [3]
        assert not f.world.held


async def test_a_drain_lets_running_episodes_end_and_leaves_the_rest(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 4)
        f.pool.drain("SIGTERM was received", ExitCode.SIGTERM)
        assert await running == ExitCode.SIGTERM
        assert 4 <= f.ledger.done < 40
        assert f.queue.out == 0 and f.queue.waiting == 40 - f.ledger.done
        assert not f.world.held and not lost(f)


async def test_a_drain_without_grace_cancels_and_writes_nothing_for_the_cancelled(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=10, hook=lambda call: asyncio.sleep(3600.0) if call.name == "step" else None) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: len(f.world.held) == 4)
        f.pool.drain("stop", ExitCode.SIGINT, grace_s=0.0)
        assert await running == ExitCode.SIGINT
        assert not f.world.held and not list(iter_traces(f.run_dir))
        assert f.queue.waiting == 10


async def test_without_a_place_for_any_actor_the_run_stops_and_says_so(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        f.prepare = lambda handle: setattr(handle, "unplaceable", True)
        assert await f.run() == ExitCode.STOPPED
        assert "no actor could be placed" in (f.pool.reason or "")


async def test_the_rest_goes_on_when_one_of_two_actors_has_no_place(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        f.prepare = lambda handle: setattr(handle, "unplaceable", handle.spec.actor_id.endswith("002"))
        assert await f.run() is None
        assert len(completed(f)) == 12


async def test_a_failed_write_ends_the_run_and_gives_everything_back(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 2)
        path = f.run_dir.path / f"run.lock.epoch-{f.lock.epoch + 1}"
        path.touch()  # another driver has claimed the run
        assert await running == ExitCode.STOPPED
        assert "taken over" in (f.pool.reason or "")
        assert not f.world.held
        assert len(completed(f)) == f.ledger.done


async def test_a_failed_write_during_a_drain_is_what_the_run_ends_with(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: len(f.world.held) == 4)
        f.pool.drain("SIGTERM was received", ExitCode.SIGTERM)
        (f.run_dir.path / f"run.lock.epoch-{f.lock.epoch + 1}").touch()
        assert await running == ExitCode.STOPPED
        assert "taken over" in (f.pool.reason or "")
        assert any(level == "error" and "taken over" in text for level, text in f.notes)


@pytest.mark.parametrize("hears_no_kill", [False, True])
async def test_an_actor_that_still_waits_for_a_place_at_the_end_is_neither_awaited_nor_replaced(
    tmp_path: Path, hears_no_kill: bool
) -> None:
    def prepare(handle: FragileHandle) -> None:
        handle.waits_for_a_place, handle.hears_no_kill = handle.spec.actor_id.endswith("002"), hears_no_kill

    async with field(tmp_path) as f:
        f.prepare = prepare
        assert await f.run() is None
        assert not f.pool._tasks
        assert len(completed(f)) == 12
        assert len(f.handles) == 2 and all(handle.killed for handle in f.handles)
        assert not [text for level, text in f.notes if level == "warning"]


async def test_a_server_that_answers_no_reset_drains_the_run(tmp_path: Path) -> None:
    def never(call: FakeCall) -> Any:
        return asyncio.sleep(3600.0) if call.name == "reset" else None

    async with field(tmp_path, hook=never, stall_timeout_s=0.5) as f:
        assert await f.run() == ExitCode.STOPPED
        assert "no reset was answered" in (f.pool.reason or "")


async def test_another_version_of_the_environment_gets_no_more_work(tmp_path: Path) -> None:
    def changed(call: FakeCall) -> Any:
        if call.server.startswith("http://b") and call.name == "reset":
            raise EnvironmentCallError("another version", ErrorKind.ENVIRONMENT_CHANGED, True)
        return asyncio.sleep(0.01)

    async with field(tmp_path, tasks=12, hook=changed, servers=("http://a.invalid", "http://b.invalid"), attempts=5) as f:
        await f.run()
        assert len(completed(f)) == 12
        assert f.pool.dealer.admission["http://b.invalid"] == 0


async def test_pausing_starts_nothing_new_until_resumed(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=30, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 2)
        f.pool.pause(True)
        await f.until(lambda: not f.world.held)
        await asyncio.sleep(0.2)
        rest = f.queue.waiting
        assert rest > 0 and not f.world.held
        f.pool.pause(False)
        await running
        assert len(completed(f)) == 30


async def test_a_cancelled_episode_is_not_run_again_in_this_invocation(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, hook=lambda call: asyncio.sleep(3600.0) if call.job.task_id == 0 else None) as f:
        running = asyncio.create_task(f.run())
        bad, waiting = "task-000000__sample-000", "task-999999__sample-000"
        await f.until(lambda: f.ledger.done == 7)
        assert f.pool.cancel([bad, waiting]) == 1
        await running
        assert len(completed(f)) == 7 and bad not in completed(f)
        assert not f.world.held


async def test_the_snapshot_adds_up(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=20, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 4)
        shot = snapshot(f.pool)
        await running
        assert {a["id"] for a in shot["actors"]} == {"1-actor-001", "1-actor-002"}
        assert sum(a["slots"] for a in shot["actors"]) == 4
        assert 0 <= shot["in_flight"] <= 4


async def test_the_worst_lag_of_an_actor_is_told_once(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=20, hook=slow) as f:
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 4)
        for member in f.pool.members.values():
            member.lag_s = 7.0
        first, second = snapshot(f.pool), snapshot(f.pool)
        await running
        assert [a["lag_s"] for a in first["actors"]] == [7.0, 7.0]
        assert [a["lag_s"] for a in second["actors"]] == [0.0, 0.0]
