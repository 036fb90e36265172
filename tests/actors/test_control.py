import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.caps import Caps
from actors.control import Control
from actors.queue import JobState
from rayeval.control import ControlRequest, read_reply
from rayeval.environments.fake import FakeCall
from rayeval.exceptions import EnvironmentCallError, InputError, RefusedError
from rayeval.schemas import ErrorKind, ExitCode, JsonObject
from rayeval.store import iter_traces
from tests.actors.fields import Field, field


class Box:
    """A mailbox in hand."""

    def __init__(self) -> None:
        self.requests: list[ControlRequest] = []
        self.replies: dict[str, JsonObject] = {}

    def poll(self) -> list[ControlRequest]:
        found, self.requests = self.requests, []
        return found

    def answer(self, reply: JsonObject) -> None:
        self.replies[reply["id"]] = reply


class Steered:
    """A field with a control governor, and who steers it."""

    def __init__(self, f: Field, caps: Caps | None = None, **options: Any) -> None:
        self.f, self.box, self.caps = f, Box(), caps or Caps()
        self.records: list[tuple[str, bool]] = []
        control = Control(
            f.plan, self.caps, [("hand", self.box)], lambda r, reply, via: self.records.append((r.verb, reply["ok"])), **options
        )
        f.pool._governors += [control, self.caps]

    async def ask(self, verb: str, **arguments: Any) -> JsonObject:
        request = ControlRequest(verb, arguments)
        self.box.requests.append(request)
        await self.f.until(lambda: request.id in self.box.replies)
        return read_reply(self.box.replies[request.id])


async def slow(call: FakeCall) -> None:
    await asyncio.sleep(0.01)


def hang(call: FakeCall) -> Any:
    return asyncio.sleep(3600.0) if call.name == "step" else None


def completed(f: Field) -> set[str]:
    return {t["episode_id"] for t in iter_traces(f.run_dir) if t["status"] == "completed"}


async def test_a_pause_holds_what_waits_also_in_the_actors(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=60, slots=16, hook=slow) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 2)
        assert (await steered.ask("pause"))["result"]["paused"]
        await f.until(lambda: not f.world.held)
        await asyncio.sleep(0.3)
        done, with_actors = f.ledger.done, f.queue.counts[JobState.OUT]
        assert with_actors > 0 and not f.world.held and f.ledger.done == done
        assert "already" in (await steered.ask("pause"))["done"]
        assert not (await steered.ask("resume"))["result"]["paused"]
        await running
        assert len(completed(f)) == 60


async def test_a_drain_ends_what_runs_and_leaves_the_rest(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=40, hook=slow) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 2)
        await steered.ask("drain")
        with pytest.raises(RefusedError, match="draining"):
            await steered.ask("pause")
        assert await running == ExitCode.REFUSED
        assert f.queue.waiting > 0 and not f.world.held
        assert "rayeval control" in str(f.pool.reason)


async def test_a_second_drain_may_be_shorter(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, hook=hang, grace_s=3600.0) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: len(f.world.held) == 4)
        assert "up to 3600 s" in (await steered.ask("drain"))["done"]
        await steered.ask("drain", grace_s=0)
        assert await running == ExitCode.REFUSED


async def test_fewer_and_more_episodes_in_flight(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=200, slots=4, hook=slow) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: len(f.world.held) == 4)
        assert "concurrency 4 -> 12" in (await steered.ask("set", concurrency=12))["done"]
        await f.until(lambda: len(f.world.held) > 8)
        assert (await steered.ask("set", concurrency=1))["result"]["concurrency"] == {"before": 12, "now": 1}
        await f.until(lambda: len(f.world.held) <= 1)
        await steered.ask("drain")
        await running


async def test_a_new_actor_takes_part_in_the_changed_slots(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=300, actors=2, slots=4, hook=slow) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 2)
        await steered.ask("set", concurrency=10)
        f.handles[0].die()
        await f.until(lambda: len(f.handles) == 3)
        await f.until(lambda: sum(m.slots for m in f.pool.members.values() if m.alive) == 10)
        await steered.ask("drain", grace_s=0)
        await running


async def test_what_is_found_by_itself_is_bounded_not_set(tmp_path: Path) -> None:
    most: list[int] = []
    async with field(tmp_path, tasks=40, hook=slow) as f:
        steered = Steered(f, set_most=most.append)
        running = asyncio.create_task(f.run())
        assert "at most" in (await steered.ask("set", concurrency=9))["done"]
        assert most == [9] and f.pool.slots == 4
        await running


async def test_caps_and_grace_can_be_set_and_lifted(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, hook=hang) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        assert "no cap -> 50" in (await steered.ask("set", max_wall_s=50, max_tokens_total=7))["done"]
        assert (steered.caps.max_wall_s, steered.caps.max_tokens_total) == (50.0, 7)
        await steered.ask("set", max_wall_s=None, grace_s=0)
        assert steered.caps.max_wall_s is None
        with pytest.raises(RefusedError, match=r"execution\.prices"):
            await steered.ask("set", max_cost=3)
        with pytest.raises(InputError, match="known are concurrency"):
            await steered.ask("set", attempts=3)
        await steered.ask("drain")
        assert await running == ExitCode.REFUSED  # without grace
        assert steered.records[-2:] == [("set", False), ("drain", True)]


async def test_a_cancelled_task_is_left_out_running_or_waiting(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=30, hook=lambda call: hang(call) if call.job.task_id in (0, 1) else slow(call)) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done >= 2)
        reply = await steered.ask("cancel", task="0,25-29", episodes=["task-000001__sample-000"])
        assert reply["result"] == {"episodes": 7, "cancelled": 7, "dispatched": 2, "waiting": 5, "over": 0}
        await running
        assert len(completed(f)) == 23 and f.queue.cancelled == 7
        assert not f.world.held


async def test_a_cancelled_episode_that_fails_first_is_not_tried_again(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def fail(call: FakeCall) -> None:
        if call.name == "step" and call.job.task_id == 0:
            try:
                await cancelled.wait()
            finally:
                raise EnvironmentCallError("a 500", ErrorKind.ENVIRONMENT_ERROR, True)

    async with field(tmp_path, tasks=4, hook=fail) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done == 3)
        await steered.ask("cancel", task="0")
        cancelled.set()
        await running
        assert f.queue.cancelled == 1 and f.queue.over and f.ledger.done == 3


async def test_a_cancelled_episode_that_is_lost_with_its_actor_is_not_tried_again(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=4, actors=1, hook=lambda call: hang(call) if call.job.task_id == 0 else None) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        await f.until(lambda: f.ledger.done == 3)
        f.handles[0].die()
        await steered.ask("cancel", task="0")
        await running
        assert f.queue.cancelled == 1 and f.ledger.done == 3


async def test_what_the_plan_does_not_have_cannot_be_cancelled(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=8, hook=slow) as f:
        steered = Steered(f)
        running = asyncio.create_task(f.run())
        with pytest.raises(InputError, match="no such task"):
            await steered.ask("cancel", task="0,77")
        for beyond in ("0-8", "5,7-999999999999", "100-200"):
            with pytest.raises(InputError, match="reaches beyond the plan of this run, whose tasks lie between 0 and 7"):
                await steered.ask("cancel", task=beyond)
        with pytest.raises(InputError, match="task-000000__sample-000"):
            await steered.ask("cancel", episodes=["task-000000__sample-001"])
        await running
        assert len(completed(f)) == 8
