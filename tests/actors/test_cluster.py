import contextlib
import os
import subprocess
import sys
import textwrap

import psutil
import pytest
import ray

from actors import cluster
from rayeval.exceptions import PlacementError


@pytest.mark.ray
def test_the_ray_of_this_process_is_used_and_left_alone(ray_session: None) -> None:
    joined = cluster.join(None, 2)
    assert not joined.ours
    assert ray.is_initialized()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "[::1]:9", "localhost:99999"])
def test_a_cluster_that_is_not_there_is_said_at_once(address: str) -> None:
    with pytest.raises(PlacementError, match="nothing answers there"):
        cluster._see(address)


def test_an_address_that_is_no_host_and_port_is_left_to_ray() -> None:
    for address in ("auto", "ray://head:10001", "local"):
        cluster._see(address)


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_MODE", "token"), ("RAY_worker_niceness", "7")])
def test_settings_of_the_user_win(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    cluster.prepare_environment()
    assert os.environ[name] == value


@pytest.mark.ray
@pytest.mark.slow
def test_an_end_at_once_leaves_no_process_behind() -> None:
    script = """
        import os, sys
        from actors import cluster
        cluster.join(None, 1)
        print("up", flush=True)
        sys.stdin.readline()
        cluster.kill_local()
        os._exit(1)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    assert "up" in process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 3
    process.communicate("\n", timeout=60.0)
    _, alive = psutil.wait_procs(family, timeout=20.0)
    assert not alive


@pytest.mark.ray
def test_an_actor_that_was_never_started_ends_by_itself_after_an_end_at_once() -> None:
    script = """
        import os
        from actors import cluster
        cluster.prepare_environment()
        import psutil
        import ray
        from actors.handles import RayHandle
        from actors import drain
        from tests.actors.specs import spec
        cluster.join("local", 1)
        handle = RayHandle(spec())
        assert ray.get(handle._actor.ping.remote(), timeout=60.0) is not None
        (actor,) = drain.actors(psutil.Process())
        print(actor.pid, flush=True)
        cluster.kill_local()
        os._exit(1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, timeout=120.0, check=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(60.0)


def test_once_told_so_a_call_of_rays_starts_no_ray() -> None:
    script = """
        from actors import cluster
        cluster.prepare_environment()
        import ray
        cluster.start_no_other_ray()
        try:
            ray.put(1)
        except ray.exceptions.RaySystemError:
            print("refused, and started", ray.is_initialized())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60.0, check=False)
    assert done.stdout.splitlines() == ["refused, and started False"], done.stdout + done.stderr


def test_what_ray_prints_becomes_a_note_without_colours() -> None:
    notes: list[tuple[str, str]] = []
    talk = cluster.RayTalk(lambda level, text: notes.append((level, text)))
    print("\x1b[33m(raylet)\x1b[0m A worker died", end="", file=talk)
    assert not notes
    print(" or was killed\n\nmore", file=talk)
    assert notes == [("debug", "(raylet) A worker died or was killed"), ("debug", "more")]
