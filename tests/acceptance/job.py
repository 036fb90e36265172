"""The row "Job": a run submitted to a cluster of two nodes ends with its own exit code, drains when it is stopped, and goes on.

    python -m tests.acceptance.job [--part NAME ...]

Prints what was seen, one JSON object a part, and exits 1 when anything was not as promised. Needs a Ray with its job server
(``pip install 'rayeval[cluster]'``).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory, load_journal
from tests.acceptance.ray_nodes import RayNodes
from tests.acceptance.runs import JsonObject, assert_exactly_once, lines_of, records, status_of
from tests.acceptance.servers import DemoPair, Servers

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0
_ID = re.compile(r"rayeval-[0-9a-f]{12}-\d+")


class Follower:
    """``rayeval submit`` (or ``logs``) as a process."""

    def __init__(self, *words: str, cwd: Path = ROOT) -> None:
        env = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAYEVAL_SUBMISSION_ID")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rayeval", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**env, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )

    def wait(self) -> int:
        """-> its exit code; ``out`` and ``err`` are there afterwards."""
        try:
            self.out, self.err = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate(timeout=30.0)
            raise AssertionError(f"not over after {DEADLINE_S:.0f} s:\n{self.out[-3000:]}\n{self.err[-3000:]}") from None
        return self.process.returncode

    @property
    def said(self) -> str:
        return f"{self.out[-4000:]}\n{self.err[-4000:]}"


class Row:
    """A cluster, servers, and a directory for runs; each part is a method that asserts and returns figures."""

    def __init__(self, nodes: RayNodes, place: Path) -> None:
        self.nodes, self.place = nodes, place

    def submit(self, name: str, *words: str, servers: Servers | None = None, url: str | None = None) -> Follower:
        """Submit ``configs/smoke.yaml`` under a name of its own."""
        sets = [f"experiment.name={name}", "execution.shards=false", "execution.actors=2"]
        if servers is not None:
            sets += [
                f"environment.base_url={servers.shop_url}",
                f"model.base_url={servers.model_url}",
                "execution.exclusive_environment=false",
            ]
        options = [word for text in sets for word in ("--set", text)]
        target = ["--address", url or self.nodes.url, "--output-dir", str(self.place)]
        return Follower("submit", "configs/smoke.yaml", *target, *options, *words)

    def run_dir(self, name: str) -> RunDirectory:
        return RunDirectory(self.place / name)

    def until(self, follower: Follower, what: str, holds: Callable[[], bool]) -> None:
        """Wait; fails when the follower ends first."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            if follower.process.poll() is not None:
                follower.wait()
                raise AssertionError(f"ended ({follower.process.returncode}) before {what}:\n{follower.said}")
            assert time.monotonic() < deadline, f"{what} did not come"
            time.sleep(0.05)

    def job_of(self, run_dir: RunDirectory) -> str:
        """The id of the job that works on a run, as the cluster knows it."""
        rows = httpx.get(f"{self.nodes.url}/api/jobs/", timeout=20.0).json()
        mine = [row for row in rows if (row.get("metadata") or {}).get("rayeval_run_dir") == str(run_dir.path)]
        return str(max(mine, key=lambda row: row["start_time"])["submission_id"])

    # ---- parts --------------------------------------------------------------------------------------------------------------------

    def finishes(self) -> JsonObject:
        """The smoke configuration, demo servers and all, ends with 0 and leaves its traces and logs."""
        began = time.monotonic()
        follower = self.submit("smoke")
        assert follower.wait() == ExitCode.OK, follower.said
        wall = time.monotonic() - began
        run_dir = self.run_dir("smoke")
        assert_exactly_once(run_dir, 80)
        assert "80 of 80 episodes completed" in follower.out and "ended with exit code 0" in follower.out, follower.said
        nodes = {actor.node_id for actor in load_journal(run_dir.leases).actors.values()}
        driver = (run_dir.path / "logs" / "latest" / "driver.log").read_text()
        assert "ended with exit code 0" in driver, driver
        return {"episodes": 80, "wall_s": round(wall, 1), "nodes_with_actors": len(nodes), "driver_log_bytes": len(driver)}

    def fails_with_1(self) -> JsonObject:
        """A job whose episodes fail ends with 1, here too."""
        with DemoPair(slots=64, env_fault_500=0.5) as servers:
            follower = self.submit("failing", "--limit", "20", "--set", "execution.attempts=1", servers=servers)
            assert follower.wait() == ExitCode.FAILED_EPISODES, follower.said
            failed = sum(t["status"] == "failed" for t in records(self.run_dir("failing")))
            assert failed > 0
            return {"failed": failed, "exit_code": 1}

    def stops_and_goes_on(self) -> JsonObject:
        """A second submit is refused; a stop drains and releases every lease; the next submit resumes and finishes."""
        with DemoPair(slots=64, env_latency="fixed:0.4") as servers:
            options = ("--set", "execution.concurrency=16", "--set", "execution.grace_s=4")
            run_dir = self.run_dir("stopped")
            first = self.submit("stopped", *options, servers=servers)
            self.until(first, "traces and leases", lambda: lines_of(run_dir) >= 5 and servers.count("env", "leases_held") > 4)
            held = servers.count("env", "leases_held")
            second = self.submit("stopped", *options, servers=servers)
            assert second.wait() == ExitCode.REFUSED, second.said
            job = self.job_of(run_dir)
            assert job in second.err and "ray job stop" in second.err and "rayeval logs" in second.err, second.said
            done = lines_of(run_dir)
            began = time.monotonic()
            httpx.post(f"{self.nodes.url}/api/jobs/{job}/stop", timeout=20.0).raise_for_status()
            assert first.wait() == ExitCode.SIGTERM, first.said
            drained = time.monotonic() - began
            assert "draining" in first.out and f"{job}: ended with exit code 143" in first.out, first.said
            left = servers.count("env", "leases_held")
            assert left == 0, f"{left} leases are held after the stop"
            status = status_of(run_dir)
            assert (status["state"], status["exit_code"]) == ("ended", 143), status
            kept = lines_of(run_dir)
            assert done <= kept < 80
            third = self.submit("stopped", *options, servers=servers)
            assert third.wait() == ExitCode.OK, third.said
            assert self.job_of(run_dir) == re.sub(r"\d+$", "2", job), "the next submit has the next number"
            assert_exactly_once(run_dir, 80)
            env = servers.stats()["env"]
            assert env["leases_held"] == 0 and "reusing" in third.out, third.said
            attempts = sorted(path.name for path in (run_dir.path / "logs").glob("attempt_*"))
            assert attempts == ["attempt_1", "attempt_2"], attempts
            return {"held_at_stop": held, "held_after": left, "drain_s": round(drained, 1), "done_at_stop": kept, "refused": job}

    def survives_a_cut_stream(self) -> JsonObject:
        """Connections are cut again and again, and the way is closed for a while; the log is whole and the exit code right."""
        with DemoPair(slots=64, env_latency="fixed:0.2") as servers, Proxy(self.nodes.url) as proxy:
            follower = self.submit("cut", "--set", "execution.concurrency=16", servers=servers, url=proxy.url)
            self.until(follower, "a first trace", lambda: lines_of(self.run_dir("cut")) >= 1)
            for _ in range(4):
                proxy.cut()
                time.sleep(1.0)
            proxy.closed = True
            proxy.cut()
            time.sleep(5.0)
            proxy.closed = False
            assert follower.wait() == ExitCode.OK, follower.said
            assert "does not answer" in follower.err and "answers again" in follower.err, follower.said
            whole = httpx.get(f"{self.nodes.url}/api/jobs/{self.job_of(self.run_dir('cut'))}/logs", timeout=20.0).json()["logs"]
            assert follower.out.rstrip("\n") == whole.rstrip("\n"), f"{follower.out}\n--- the log itself:\n{whole}"
            return {"connections_cut": proxy.cuts, "closed_s": 5, "log_chars": len(whole)}

    def detaches_and_comes_back(self) -> JsonObject:
        """Ctrl-C leaves the job alone; ``rayeval logs ID`` ends with its exit code."""
        with DemoPair(slots=64, env_latency="fixed:0.2") as servers:
            follower = self.submit("left", "--set", "execution.concurrency=16", servers=servers)
            self.until(follower, "a first trace", lambda: lines_of(self.run_dir("left")) >= 1)
            os.kill(follower.process.pid, signal.SIGINT)
            assert follower.wait() == ExitCode.SIGINT, follower.said
            job = self.job_of(self.run_dir("left"))
            assert "goes on" in follower.err and f"rayeval logs {job} --address" in follower.err, follower.said
            back = Follower("logs", job, "--address", self.nodes.url, "--json")
            assert back.wait() == ExitCode.OK, back.said
            answer = json.loads(back.out)
            assert (answer["status"], answer["exit_code"]) == ("SUCCEEDED", 0), answer
            assert_exactly_once(self.run_dir("left"), 80)
            return {"detached": 130, "came_back": answer["exit_code"]}

    def one_of_two_at_once(self) -> JsonObject:
        """Two submits at the same moment: one runs, the other is refused with the id."""
        with DemoPair(slots=64) as servers:
            both = [self.submit("twice", servers=servers) for _ in range(2)]
            codes = sorted(one.wait() for one in both)
            assert codes == [ExitCode.OK, ExitCode.REFUSED], [one.said for one in both]
            refused = next(one for one in both if one.process.returncode == ExitCode.REFUSED)
            assert _ID.search(refused.err), refused.said
            assert_exactly_once(self.run_dir("twice"), 80)
            return {"exit_codes": codes}


PARTS = (
    "finishes",
    "fails_with_1",
    "stops_and_goes_on",
    "survives_a_cut_stream",
    "detaches_and_comes_back",
    "one_of_two_at_once",
)


class Proxy:
    """A TCP proxy before the job server, whose connections can be cut."""

    def __init__(self, url: str) -> None:
        target = httpx.URL(url)
        self._target = (target.host, target.port)
        self.closed = False
        """New connections are refused."""
        self.cuts = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Proxy:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def serve() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()

        def run() -> None:
            self._loop.create_task(serve())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert ready.wait(10.0)
        return self

    def __exit__(self, *raised: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def cut(self) -> None:
        """Abort every connection there is."""

        def abort() -> None:
            for writer in self._writers:
                self.cuts += 1
                writer.transport.abort()
            self._writers.clear()

        self._loop.call_soon_threadsafe(abort)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.transport.abort()
            return
        with suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection(*self._target)
            self._writers |= {writer, inner_writer}
            await asyncio.gather(self._pump(reader, inner_writer), self._pump(inner_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()


@contextmanager
def row() -> Iterator[Row]:
    """A cluster of two nodes for the parts."""
    # not below /tmp/…/working_dir: an output directory lies outside of what is uploaded
    with RayNodes(cpus=4, nodes=2) as nodes, tempfile.TemporaryDirectory(prefix="rayeval-job-", ignore_cleanup_errors=True) as place:
        yield Row(nodes, Path(place))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts. -> 1 when one was not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    chosen = parser.parse_args(argv).part or PARTS
    failed = 0
    if importlib.util.find_spec("aiohttp_cors") is None:
        print("this Ray has no job server: pip install 'rayeval[cluster]'", file=sys.stderr)
        return 1
    with row() as made:
        for name in chosen:
            try:
                figures: dict[str, Any] = getattr(made, name)()
            except Exception:
                failed += 1
                figures = {"failed": traceback.format_exc()}
                print(figures["failed"], file=sys.stderr)
            print(json.dumps({"part": name, "ok": "failed" not in figures or isinstance(figures["failed"], int), **figures}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
