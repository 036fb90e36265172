import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import psutil
import pytest

from rayeval.demo import start_demo
from rayeval.demo.__main__ import main
from rayeval.exceptions import ConfigurationError, StoppedError
from rayeval.schemas import ExitCode


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 15
    while not _gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still lives after 15 s"
        time.sleep(0.02)


def test_both_servers_answer_and_close_ends_them() -> None:
    with start_demo(slots=5) as servers:
        assert httpx.get(f"{servers.shop_url}/healthz").json()["environment_slots"] == 5
        assert servers.model_url.endswith("/v1")
        assert os.getsid(servers.pid) == servers.pid != os.getsid(0)
        assert servers.running
    assert not servers.running
    servers.close()


def test_close_ends_a_server_with_requests_that_hang() -> None:
    with start_demo(env_fault_hang=1.0) as servers:
        with pytest.raises(httpx.ReadTimeout):
            body = {"action": "reset", "idx": 0}
            httpx.post(f"{servers.shop_url}/api/shop_agent", json=body, timeout=httpx.Timeout(10, read=0.2))
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert _gone(servers.pid)


def test_a_stopped_server_is_killed() -> None:
    servers = start_demo()
    os.kill(servers.pid, signal.SIGSTOP)
    servers.close(timeout_s=0.3)
    assert _gone(servers.pid)


def test_servers_end_with_the_process_that_started_them() -> None:
    code = """
        import sys
        from rayeval.demo import start_demo
        print(start_demo().pid, flush=True)
        sys.stdin.read()
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert select.select([driver.stdout], [], [], 30)[0]
    pid = int(driver.stdout.readline())
    driver.kill()
    driver.communicate(timeout=15)
    _wait_until_gone(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_exit(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rayeval.demo", "--exit-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 30)[0]
    assert set(json.loads(process.stdout.readline())) == {"shop", "model"}
    process.send_signal(number)
    _, errors = process.communicate(timeout=15)
    assert (process.returncode, errors) == (0, b"")


def test_bad_options_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError):
        start_demo(slots=0)
    with pytest.raises(TypeError):
        start_demo(slotz=1)


def test_a_port_in_use_says_so() -> None:
    with start_demo() as servers:
        port = httpx.URL(servers.shop_url).port
        with pytest.raises(StoppedError, match=f"cannot listen on 127.0.0.1:{port}"):
            start_demo(shop_port=port)


def test_main_names_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--catalogue", str(tmp_path / "none.json")]) == ExitCode.BAD_INPUT
    assert "none.json" in capsys.readouterr().err
    assert main(["--request-log", str(tmp_path / "no" / "dir")]) == ExitCode.BAD_INPUT
    assert "request_log" in capsys.readouterr().err
    assert main(["--fault-500", "2"]) == ExitCode.BAD_INPUT
