import asyncio
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from actors.asking import HeadSilentError, ask_head, end_actor, endings_are_sent, takes_connections, within

SILENT_HEAD = """
    import asyncio, os, signal, sys, time
    from actors.cluster import prepare_environment
    prepare_environment()
    import psutil, ray
    from actors.asking import HeadSilentError, ask_head, end_actor, endings_are_sent
    from actors.nodes import living_nodes

    @ray.remote(num_cpus=0)
    class Idle:
        def here(self):
            return True

    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)

    async def main():
        print("nodes", len(await ask_head(living_nodes, 10.0)), flush=True)
        ended, kept = Idle.remote(), Idle.remote()
        assert ray.get([ended.here.remote(), kept.here.remote()], timeout=60.0)
        end_actor(ended)
        print("sent", endings_are_sent(10.0), flush=True)
        began = time.monotonic()
        while time.monotonic() - began < 60.0:
            try:
                ray.get(ended.here.remote(), timeout=60.0)
            except ray.exceptions.ActorDiedError:
                print("ended", flush=True)
                break
        (head,) = [p for p in psutil.Process().children() if p.name() == "gcs_server"]
        head.send_signal(signal.SIGSTOP if sys.argv[1] == "stopped" else signal.SIGKILL)
        head.wait(10) if sys.argv[1] == "killed" else None
        began = time.monotonic()
        try:
            await ask_head(living_nodes, 2.0)
        except HeadSilentError as error:
            print("silent", time.monotonic() - began < 10.0, flush=True)
        began = time.monotonic()
        end_actor(kept)
        print("not held up", time.monotonic() - began < 1.0, flush=True)

    asyncio.run(main())
    print("loop closed", flush=True)
    os._exit(7)
"""


def test_what_takes_too_long_is_given_up() -> None:
    hanging = threading.Event()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="nothing came"):
        within(0.05, lambda: hanging.wait(30), TimeoutError("nothing came"))
    assert time.monotonic() - began < 5
    hanging.set()
    assert within(5.0, lambda: 7, TimeoutError("nothing came")) == 7
    with pytest.raises(KeyError):
        within(5.0, lambda: {}["x"], TimeoutError("nothing came"))


def test_an_order_that_hangs_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: hanging.wait(60.0))  # only a lost head makes it hang, and not every time
    end_actor(object())
    assert not endings_are_sent(0.05)
    hanging.set()
    assert endings_are_sent(30.0)


async def test_a_port_that_takes_connections_and_one_that_does_not() -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await takes_connections(f"127.0.0.1:{port}")
    server.close()
    await server.wait_closed()
    assert not await takes_connections(f"127.0.0.1:{port}")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
async def test_a_late_answer_is_not_waited_for_and_errors_pass() -> None:
    began = time.monotonic()
    with pytest.raises(HeadSilentError, match=r"within 0\.2 s"):
        await ask_head(lambda: time.sleep(20.0), 0.2)
    assert time.monotonic() - began < 10.0
    assert await ask_head(lambda: 5, 10.0) == 5
    with pytest.raises(ValueError, match="no such"):
        await ask_head(lambda: int("no such"), 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_head_that_is_gone_holds_up_neither_the_question_nor_the_loops_end(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SILENT_HEAD), how], capture_output=True, text=True, timeout=100, check=False
    )
    told = ["nodes 1", "sent True", "ended", "silent True", "not held up True", "loop closed"]
    assert done.stdout.splitlines() == told, done.stderr[-2000:]
    assert done.returncode == 7
