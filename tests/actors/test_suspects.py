import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.engine import RunRequest, run
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.environments.fake import FakeCall
from rayeval.plan import make_plan
from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory, iter_traces, load_resume_index
from tests.actors.fields import Field, FragileHandle, field
from tests.actors.plans import SHOP
from tests.actors.worlds import new_world

KILLER = 0


class Killer:
    """A hook: the episode of task ``KILLER`` takes its actor with it, ``deaths`` times; all others are slow and innocent."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.held_beside: list[set[str]] = []
        """What else its actor held at each step once the deaths were over."""
        self.ran_on: list[FragileHandle] = []
        self.field: Callable[[], Field] = NotImplemented

    async def __call__(self, call: FakeCall) -> None:
        if call.name == "step" and call.job.task_id == KILLER:
            holder = self.field().holder(call.job.episode_id)
            if not self.ran_on or self.ran_on[-1] is not holder:
                self.ran_on.append(holder)
            if len(self.ran_on) <= self.deaths:
                holder.die()
            else:
                self.held_beside.append(holder.running() - {call.job.episode_id})
        await asyncio.sleep(0.004)


def outcomes(f: Field) -> dict[int, list[str]]:
    """For each task what its lines say, in order: ``completed``, or the kind of the failure."""
    found: dict[int, list[str]] = defaultdict(list)
    for trace in iter_traces(f.run_dir):
        found[trace["job"]["task_id"]].append(trace["error"]["kind"] if trace["error"] else trace["status"])
    return found


async def test_a_job_lost_twice_runs_alone_in_an_actor_of_its_own(tmp_path: Path) -> None:
    killer = Killer(deaths=2)
    async with field(tmp_path, tasks=16, hook=killer) as f:
        killer.field = lambda: f
        assert await f.run() is None
        assert outcomes(f)[KILLER] == ["lost", "lost", "completed"]
        assert killer.held_beside and not any(killer.held_beside)
        own = killer.ran_on[-1]
        assert own.spec.slots == 1 and [h for h in f.handles if h.spec.slots == 1] == [own]
        assert f.noted("each runs alone now") and f.ledger.failed == 0 and f.ledger.done == 16


async def test_jobs_of_actors_that_die_together_are_blameless(tmp_path: Path) -> None:
    async def slow(call: FakeCall) -> None:
        await asyncio.sleep(0.004)

    async with field(tmp_path, tasks=40, actors=3, slots=6, hook=slow, company_s=0.3) as f:
        running = asyncio.create_task(f.run())
        for struck in (1, 2, 3):
            await f.until(lambda: sum(m.alive and bool(m.jobs) for m in f.pool.members.values()) == 3)
            for member in [m for m in f.pool.members.values() if m.alive]:
                member.handle.die()  # type: ignore[attr-defined]
            await f.until(lambda: f.pool.replaced == 3 * struck)  # noqa: B023 (called in this turn)
        assert await running is None
        assert max(kinds.count("lost") for kinds in outcomes(f).values()) >= 2, "nothing was lost twice"
        assert not f.noted("each runs alone now") and f.ledger.done == 40 and not f.queue.quarantined


async def test_jobs_of_a_node_that_is_gone_are_blameless(tmp_path: Path) -> None:
    killer = Killer(deaths=2)
    async with field(tmp_path, tasks=8, hook=killer) as f:
        killer.field = lambda: f
        f.prepare = lambda handle: setattr(handle, "on_a_lost_node", True)
        assert await f.run() is None
        assert outcomes(f)[KILLER] == ["lost", "lost", "completed"] and not f.noted("each runs alone now")


async def test_a_suspect_whose_actor_dies_with_others_is_not_quarantined(tmp_path: Path) -> None:
    killer = Killer(deaths=2)
    async with field(tmp_path, tasks=16, hook=killer, company_s=0.3) as f:
        killer.field = lambda: f
        running = asyncio.create_task(f.run())
        await f.until(lambda: any(m.suspect and m.alive and m.jobs for m in f.pool.members.values()))
        for member in [m for m in f.pool.members.values() if m.alive]:
            member.handle.die()  # type: ignore[attr-defined]
        assert await running is None
        assert outcomes(f)[KILLER] == ["lost", "lost", "lost", "completed"] and f.ledger.failed == 0


async def test_the_actor_of_its_own_ends_when_no_suspect_is_left(tmp_path: Path) -> None:
    killer = Killer(deaths=2)
    async with field(tmp_path, tasks=400, hook=killer) as f:
        killer.field = lambda: f
        running = asyncio.create_task(f.run())
        await f.until(lambda: running.done() or any(h.spec.slots == 1 and h.killed for h in f.handles))
        assert not running.done() and f.queue.waiting > 0
        f.pool.drain("seen enough", ExitCode.STOPPED)
        await running
        assert outcomes(f)[KILLER] == ["lost", "lost", "completed"]


async def test_where_the_cluster_has_no_room_a_working_actor_runs_it_alone_and_goes_back_to_work(tmp_path: Path) -> None:
    killer = Killer(deaths=2)
    async with field(tmp_path, tasks=400, hook=killer) as f:
        killer.field = lambda: f
        f.prepare = lambda handle: setattr(handle, "unplaceable", handle.spec.slots == 1)
        running = asyncio.create_task(f.run())
        await f.until(lambda: running.done() or len(killer.ran_on) == 3)
        stand_in = killer.ran_on[-1]
        alone = next(m for m in f.pool.members.values() if m.handle is stand_in)
        await f.until(lambda: running.done() or (not alone.suspect and len(stand_in.running()) > 1))
        assert not running.done()
        f.pool.drain("seen enough", ExitCode.STOPPED)
        await running
        assert outcomes(f)[KILLER] == ["lost", "lost", "completed"]
        assert not any(killer.held_beside) and stand_in.spec.slots > 1
        assert f.pool.replaced == 2 and not f.world.held


@pytest.mark.slow
async def test_a_job_that_kills_a_stand_in_too_is_quarantined_and_the_stand_in_replaced(tmp_path: Path) -> None:
    killer = Killer(deaths=3)
    async with field(tmp_path, tasks=40, hook=killer) as f:
        killer.field = lambda: f
        f.prepare = lambda handle: setattr(handle, "unplaceable", handle.spec.slots == 1)
        assert await f.run() is None
        assert outcomes(f)[KILLER] == ["lost", "lost", "quarantined"]
        assert f.pool.replaced == 3 and f.ledger.done == 39


async def test_innocent_neighbours_of_a_killer_all_complete(tmp_path: Path) -> None:
    killer = Killer(deaths=3)
    async with field(tmp_path, tasks=8, actors=1, hook=killer) as f:
        killer.field = lambda: f
        assert await f.run() is None
        found = outcomes(f)
        assert found.pop(KILLER) == ["lost", "lost", "quarantined"]
        assert {kinds[-1] for kinds in found.values()} == {"completed"} and len(found) == 7
        assert max(Counter(kinds)["lost"] for kinds in found.values()) == 2, "no neighbour was lost twice: this shows nothing"
        assert f.ledger.failures == {"quarantined": 1}


def test_quarantine_is_kept_over_a_resume_until_it_is_to_be_tried_again(tmp_path: Path) -> None:
    async def first() -> Path:
        killer = Killer(deaths=3)
        async with field(tmp_path, tasks=4, hook=killer) as f:
            killer.field = lambda: f
            await f.run()
            return f.run_dir.path

    directory = asyncio.run(first())
    assert load_resume_index(RunDirectory(directory)).quarantined == {"task-000000__sample-000"}
    loaded = load_config(tmp_path / "small.yaml")

    def again(**options: Any) -> tuple[ExitCode, list[int]]:
        world = new_world(tmp_path.name, (SHOP,))
        outcome = run(RunRequest(loaded, make_plan(loaded), directory, show=True, **options), NoDisplay())
        return outcome.exit_code, [call.job.task_id for call in world.calls if call.name == "reset"]

    assert again() == (ExitCode.FAILED_EPISODES, [])
    assert again(retry_failed=True) == (ExitCode.FAILED_EPISODES, [])
    assert again(retry_quarantined=True) == (ExitCode.OK, [KILLER])
    assert not load_resume_index(RunDirectory(directory)).quarantined
