"""Episodes that outlive every deadline: a user's class that swallows cancellation."""

import asyncio
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rayeval.environments.fake import FakeCall
from rayeval.store import iter_traces
from tests.actors.fields import Field, field

STUBBORN = 3


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode is overdue as soon as its own time is up."""
    monkeypatch.setattr("actors.rollout._OVERDUE_SLACK_S", 0.0)
    monkeypatch.setattr("actors.rollout._LOOK_EVERY_S", 0.05)


async def deaf(call: FakeCall) -> None:
    """A hook: the stubborn one does not hear the runtime's deadline, and gives in to the second cancellation."""
    heard = 0
    while call.name == "step" and call.job.task_id == STUBBORN:
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            heard += 1
            if heard > 1:
                raise


def lines(f: Field) -> dict[int, list[tuple[str, str]]]:
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for trace in iter_traces(f.run_dir):
        error: dict[str, Any] = trace["error"] or {"kind": trace["status"], "type": ""}
        found[trace["job"]["task_id"]].append((error["kind"], error["type"]))
    return found


async def test_an_overdue_episode_is_cancelled_and_counted_and_ends_in_quarantine(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, hook=deaf) as f:
        f.config["execution"].update(reset_timeout_s=0.5, episode_timeout_s=0.5)
        assert await f.run() is None
        found = lines(f)
        assert found.pop(STUBBORN) == [("lost", "Overdue"), ("lost", "Overdue"), ("quarantined", "Quarantined")]
        assert set(map(tuple, found.values())) == {(("completed", ""),)} and len(found) == 7
        assert f.pool.replaced == 0 and not any(h.spec.slots == 1 and not h.killed for h in f.handles)
        assert not f.world.held


WEDGED = """
    import asyncio, sys
    from pathlib import Path
    import actors.rollout as rollout
    from actors.messages import Assignment, Order
    from rayeval.config import load_config
    from rayeval.schemas import EpisodeJob
    from tests.actors.plans import SHOP, write_config
    from tests.actors.specs import spec
    from tests.actors.worlds import KIND, new_world

    rollout._OVERDUE_SLACK_S, rollout._WEDGED_S, rollout._LOOK_EVERY_S = 0.0, 0.3, 0.05

    async def wedge(call):
        while call.name == "step":
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                pass

    async def main(root):
        world = new_world("wedged", (SHOP,), hook=wedge)
        config = load_config(write_config(root, overrides={"environment.kind": KIND, "environment.options": {"world": "wedged"}}))
        values = config.config.model_dump(mode="json")
        values["execution"].update(reset_timeout_s=0.2, episode_timeout_s=0.2)
        actor = rollout.RolloutActor(spec(values))
        await actor.start()
        job = EpisodeJob(0, 0, 1, "train")
        for number in range(1, 600):
            await actor.exchange(Order(number, number - 1, (Assignment(job, 1, ""),) if number == 1 else (), {SHOP: 4}, idle_s=0.1))
            if number == 1:
                print("at work", flush=True)

    asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_process_with_an_episode_that_cannot_be_cancelled_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WEDGED), str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "at work\n", done.stderr[-2000:]
    assert done.returncode == 1
    assert "task-000000__sample-000 cannot be cancelled: this actor ends" in done.stderr
