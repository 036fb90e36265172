import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.cluster import RECONNECT_S, prepare_environment
from actors.head_watch import GONE_S, HeadWatch
from rayeval.environments.fake import FakeCall
from rayeval.schemas import ExitCode
from tests.actors.fields import field


class Head:
    """Something that listens, until it does not."""

    def __init__(self) -> None:
        self.seen = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.seen += 1
            writer.close()

        self._server = await asyncio.start_server(connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def watch(self, gone_s: float) -> HeadWatch:
        return HeadWatch(f"127.0.0.1:{self.port}", gone_s, every_s=0.05)


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    made = Head()
    await made.start()
    yield made
    await made.stop()


def hang(call: FakeCall) -> Any:
    return asyncio.sleep(3600.0) if call.name == "step" else None


async def test_a_head_that_is_gone_drains_the_run_and_every_slot_is_given_back(tmp_path: Path, head: Head) -> None:
    async with field(tmp_path, tasks=4, hook=hang) as f:
        f.pool._governors.append(head.watch(0.5))
        running = asyncio.create_task(f.run())
        await f.until(lambda: head.seen > 0 and bool(f.world.held))
        await head.stop()
        assert await asyncio.wait_for(running, 60.0) == ExitCode.STOPPED
        assert str(f.pool.reason).startswith(f"the head of the Ray cluster (127.0.0.1:{head.port}) has been gone for ")
        assert sum("does not answer" in text for _, text in f.notes) == 1 and not f.world.held


async def test_a_head_that_comes_back_in_time_ends_nothing(tmp_path: Path, head: Head) -> None:
    open_again = asyncio.Event()

    async def held(call: FakeCall) -> None:
        await open_again.wait()

    async with field(tmp_path, tasks=4, hook=held) as f:
        f.pool._governors.append(head.watch(60.0))
        running = asyncio.create_task(f.run())
        await f.until(lambda: head.seen > 0)
        await head.stop()
        await f.until(lambda: any("does not answer" in text for _, text in f.notes))
        await head.start()
        await f.until(lambda: any("answers again" in text for _, text in f.notes))
        open_again.set()
        assert await asyncio.wait_for(running, 60.0) is None and f.ledger.done == 4


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_the_end_of_a_process_of_its_own_ray_drains_at_once(tmp_path: Path, head: Head, sleeper: subprocess.Popen[bytes]) -> None:
    async with field(tmp_path, tasks=4, hook=hang) as f:
        f.pool._governors.append(HeadWatch(f"127.0.0.1:{head.port}", own=[psutil.Process(sleeper.pid)]))
        running = asyncio.create_task(f.run())
        await f.until(lambda: head.seen > 0 and bool(f.world.held))
        sleeper.kill()  # and is not waited for: a zombie is gone too
        assert await asyncio.wait_for(running, 60.0) == ExitCode.STOPPED
        assert f.pool.reason == "the Ray that this run started on this machine has ended: its sleep is gone" and not f.world.held


def test_ray_leaves_time_to_end_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    monkeypatch.delenv(name, raising=False)
    prepare_environment()
    assert int(os.environ[name]) == RECONNECT_S > 4 * GONE_S
    monkeypatch.setenv(name, "90")
    prepare_environment()
    assert os.environ[name] == "90", "what the user has set wins"
