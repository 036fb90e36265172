"""A Ray cluster of ``ray start`` processes with ports and a directory of its own, as the job rows need it: with a job server.

The job server is part of ``ray[default]``: ``pip install 'rayeval[cluster]'``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import httpx
import psutil

from tests.helpers.ports import free_ports

_START_S = 120.0


class RayNodes:
    """A head and, when asked for, more nodes on this machine. A context manager: what it started ends with it."""

    def __init__(self, *, cpus: int = 4, nodes: int = 2) -> None:
        self._cpus, self._nodes = cpus, nodes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._children: dict[int, psutil.Process] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RayNodes:
        self.place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rj", dir="/tmp", ignore_cleanup_errors=True)))
        try:
            gcs, dashboard = free_ports(2)
            self.gcs, self.url = f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}"
            self._start(
                "--head", f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", f"--temp-dir={self.place}"
            )
            self._until("the job server answers", self._answers)
            for _ in range(self._nodes - 1):
                self._start(f"--address={self.gcs}")
            self._until(f"{self._nodes} nodes are there", self._all_there)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every process that came of this, by its pid."""
        for process in self._processes:
            self._remember(process)
            process.terminate()
        deadline = time.monotonic() + 20.0
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for child in self._children.values():
            with contextlib.suppress(psutil.Error):
                child.kill()  # psutil looks at the start time: a pid that was given anew is left alone
        for process in self._processes:
            process.kill()
            process.wait(10.0)
        self._stack.close()

    def _remember(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                self._children[child.pid] = child

    def _start(self, *words: str) -> None:
        agent, grpc, runtime, metrics, first = free_ports(5)
        first = min(first, 60000)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--block", "--disable-usage-stats"]
        # a directory for each node, as on machines of their own: two nodes in one would unpack a job's files over each other
        command += [f"--temp-dir={self.place}/{len(self._processes)}"]
        command += [f"--num-cpus={self._cpus}", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
        command += [f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={grpc}", f"--runtime-env-agent-port={runtime}"]
        command += [f"--metrics-export-port={metrics}", f"--min-worker-port={first}", f"--max-worker-port={first + 200}"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # a job's `python` is the one of this test
        env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PATH": path}
        env.pop("RAY_ADDRESS", None)
        log = (self.place / f"start-{len(self._processes)}.txt").open("wb")
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True))

    def _until(self, what: str, holds: object) -> None:
        deadline = time.monotonic() + _START_S
        assert callable(holds)
        while not holds():
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    said = (self.place / f"start-{number}.txt").read_text(errors="replace")[-3000:]
                    raise AssertionError(f"a node ended before {what}:\n{said}")
            assert time.monotonic() < deadline, f"{what} did not come true within {_START_S:.0f} s"
            time.sleep(0.5)
        for process in self._processes:
            self._remember(process)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/api/jobs/", timeout=5.0).status_code == 200
        return False

    def _all_there(self) -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            rows = httpx.get(f"{self.url}/api/v0/nodes", timeout=10.0).json()["data"]["result"]["result"]
            return sum(row["state"] == "ALIVE" for row in rows) >= self._nodes
        return False
