import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from actors.control_actor import ClusterMailbox
from actors.far_status import RunGoneError, far_status, within
from rayeval.exceptions import PlacementError, RefusedError

HERE = "the Ray of this process"


def test_what_takes_too_long_is_given_up() -> None:
    hanging = threading.Event()
    began = time.monotonic()
    with pytest.raises(PlacementError, match="nothing came"):
        within(0.05, lambda: hanging.wait(30), "nothing came")
    assert time.monotonic() - began < 5
    hanging.set()
    assert within(5.0, lambda: 7, "") == 7
    with pytest.raises(KeyError):
        within(5.0, lambda: {}["x"], "")


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Something listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


async def watched(run: str, answers: list[Any]) -> None:
    """Ask until the run is gone; each answer into ``answers``."""

    def follow() -> None:
        with far_status(HERE, run) as ask:
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
