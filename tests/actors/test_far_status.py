import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from actors.control_actor import NAMESPACE, ClusterMailbox, ControlBox, actor_name
from actors.far_status import RunGoneError, far_status
from rayeval.exceptions import RefusedError

HERE = "the Ray of this process"


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Something listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


async def watched(run: str, answers: list[Any]) -> None:
    """Ask until the run is gone; each answer into ``answers``."""

    def follow() -> None:
        with far_status(HERE, run, again_s=0.2) as ask:
            number = 0
            while True:
                answer = ask(number, 5.0)
                answers.append(answer)
                number = answer["number"]
                if (answer["status"] or {}).get("state") == "ended":
                    break
            with pytest.raises(RunGoneError):
                while True:
                    ask(number, 0.1)

    await asyncio.to_thread(follow)


@pytest.mark.ray
async def test_a_run_whose_mailbox_was_lost_is_watched_through_its_next_one(ray_session: None) -> None:
    box = ray.remote(ControlBox).options(name=actor_name("moved"), namespace=NAMESPACE, num_cpus=0)
    async with asyncio.timeout(120):
        first = box.remote()
        for done in range(5):
            await first.publish.remote({"done": done})
        with far_status(HERE, "moved", again_s=30.0) as ask:
            assert (await asyncio.to_thread(ask, 0, 5.0))["number"] == 5
            ray.kill(first)
            asking = asyncio.create_task(asyncio.to_thread(ask, 5, 5.0))
            await asyncio.sleep(1.5)
            second = box.remote()
            await second.publish.remote({"done": 9})
            answer = await asking
            assert (answer["number"], answer["status"]) == (1, {"done": 9})
            assert (await asyncio.to_thread(ask, 1, 0.05))["number"] == 1
            ray.kill(second)


@pytest.mark.ray
async def test_a_run_is_watched_over_the_cluster_to_its_end(ray_session: None) -> None:
    async with asyncio.timeout(120):
        with pytest.raises(RefusedError, match="is not running: no run of this name"):
            await asyncio.to_thread(far_status(HERE, "nobody").__enter__)
        mailbox = ClusterMailbox("seen", lambda level, text: None)
        answers: list[Any] = []
        try:
            while mailbox._actor is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            watching = asyncio.create_task(watched("seen", answers))
            for done in range(50):
                if answers and answers[-1]["status"]:
                    break
                mailbox.publish({"state": "running", "done": done})
                await asyncio.sleep(0.1)
            await mailbox.aclose()
            await mailbox.farewell({"state": "ended", "exit_code": 3})
            await watching
        finally:
            mailbox.kill()
    assert answers[-1]["status"] == {"state": "ended", "exit_code": 3}
    assert any((a["status"] or {}).get("state") == "running" for a in answers)
    assert [a["number"] for a in answers] == sorted(a["number"] for a in answers)
