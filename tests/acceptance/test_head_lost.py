"""A cluster of one node whose head ends under a run, with every actor: the driver ends in order, and the same command goes on later."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import psutil
import pytest

from rayeval.schemas import ExitCode
from tests.acceptance.runs import Bench, Driver, assert_exactly_once, lines_of, status_of
from tests.acceptance.servers import DemoPair
from tests.helpers.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
EPISODES = 48
END_S = 150.0
"""30 s of patience with the head, then a drain without grace; Ray takes its time to be left."""


class Head:
    """``ray start --head``, a context manager; ``kill`` ends it with all its processes, as a machine that loses its power."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __enter__(self) -> Head:
        self._place = tempfile.TemporaryDirectory(prefix="rh", dir="/tmp", ignore_cleanup_errors=True)
        first = min(free_ports(1)[0], 60000)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=4"]
        command += [f"--port={self._port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false", f"--temp-dir={self._place.name}"]
        command += ["--object-store-memory=100000000", f"--min-worker-port={first}", f"--max-worker-port={first + 200}"]
        output = Path(self._place.name) / "head.out"
        with output.open("w") as file:
            self._process = psutil.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + 120.0
            while not any(child.name() == "raylet" for child in self._process.children()):
                assert self._process.poll() is None and time.monotonic() < deadline, output.read_text()[-2000:]
                time.sleep(0.5)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        time.sleep(3.0)  # a raylet that has begun is not yet in the head's table, and a driver that joins before finds no node
        return self

    def kill(self) -> None:
        family = [self._process, *self._process.children(recursive=True)] if self._process.is_running() else []
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=20.0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
        self._place.cleanup()


def test_a_head_that_ends_with_its_actors_ends_the_run_in_order(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with DemoPair(slots=64, env_latency="fixed:0.05", model_latency="fixed:1.5") as servers:
        config = Bench(tmp_path, EPISODES).config("lost", servers, {"execution.concurrency": 16, "execution.actors": 1})
        with Head(port) as head:
            driver = Driver(config, "--address", f"127.0.0.1:{port}")
            driver.until_lines(4)
            head.kill()
            assert driver.wait(END_S) == ExitCode.STOPPED, driver.output
        assert f":{port}) has been gone for 30 s" in driver.output, driver.output
        assert "rayeval summarize" in driver.output and "Traceback" not in driver.output
        status = status_of(driver.run_dir)
        assert (status["state"], status["exit_code"]) == ("ended", ExitCode.STOPPED)
        before = lines_of(driver.run_dir)
        with Head(port):
            again = Driver(config, "--address", f"127.0.0.1:{port}")
            assert again.wait() == ExitCode.OK, again.output
        assert lines_of(again.run_dir) > before
        assert_exactly_once(again.run_dir, EPISODES)
        assert servers.stats()["env"]["leases_held"] == 0
