"""A bad day for one run: actors and a node killed, servers restarted, a loop blocked; by hand ``python -m tests.acceptance.chaos``.

Three nodes on this machine (``ray.cluster_utils.Cluster``), the head without CPUs. Pids of lost actors are not trusted
(``kill_by_pid=False``), as on machines of their own: every death is fenced by time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from actors.engine import RunRequest, run
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.plan import make_plan
from rayeval.store import RunDirectory, canonical_hash_of_run
from tests.acceptance.findings import ENV_SLOTS, FENCE_S, Death, Findings, Report
from tests.helpers.ports import free_ports

CONFIG = """
experiment: {{name: chaos, seed: 11, output_dir: {runs}}}
tasks: {{split_file: {split}, split: all, repeats: 1}}
environment: {{kind: tests.acceptance.blocking_shop.BlockingShop, base_url: "{shop}", persona: true,
               options: {{marker: "{marker}", resets: "{resets}"}}}}
prompt: {{system_prompt: "You are a shopper. Call one tool a turn."}}
model: {{name: scripted, base_url: "{model}", checkpoint_id: fixed}}
execution: {{concurrency: 64, actors: 4, fence_s: {fence}, exclusive_environment: true, model_timeout_s: 60, step_timeout_s: 10,
             reset_timeout_s: 60, shards: false}}
"""


class Server:
    """One server process that can be killed and started again on its port."""

    def __init__(self, words: list[str], port: int) -> None:
        self.words, self.port = words, port
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.words, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 20
        while True:
            try:
                httpx.get(f"{self.url}/stats", timeout=2.0)
                return
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/stats", timeout=5.0).json()
        return answer


@contextlib.contextmanager
def servers(command: str | None, log: Path) -> Iterator[tuple[Server, Server]]:
    """-> (environment server, model server), each with its own process, ended with the block."""
    shop, model = free_ports(2)
    if command is None:
        demo = [sys.executable, "-m", "rayeval.demo"]
        env_words = [*demo, f"--shop-port={shop}", f"--slots={ENV_SLOTS}", "--env-latency=fixed:0.05", f"--request-log={log}"]
        model_words = [*demo, f"--model-port={model}", "--model-latency=fixed:0.6"]
    else:
        base = shlex.split(command)
        env_words = [*base, f"--port={shop}", f"--env-slots={ENV_SLOTS}", "--env-latency=fixed:0.05", f"--request-log={log}"]
        model_words = [*base, f"--port={model}", "--model-latency=fixed:0.6"]
    env = Server(env_words, shop)
    try:
        chat = Server(model_words, model)
        try:
            yield env, chat
        finally:
            chat.kill()
    finally:
        env.kill()


class Chaos(NoDisplay):
    """Strikes when the run has come far enough. Each strike runs in a thread, so that the driver is not held up by it."""

    def __init__(self, env: Server, model: Server, victim: Any, directory: Path) -> None:
        self.env, self.model, self.victim, self.marker, self.resets = env, model, victim, directory / "marker", directory / "resets"
        self.report = Report()
        self.status: dict[str, Any] = {}
        self.plan: list[tuple[float, Callable[[], None]]] = [
            (0.10, self.kill_actor),
            (0.25, self.kill_raylet),
            (0.40, self.stop_model),
            (0.55, self.restart_environment),
            (0.65, self.block_loop),
            (0.75, self.kill_actor),
        ]
        """(share of the episodes that are done, strike)"""
        self._counted = 0
        self._quiet_until = 0.0
        self._busy: threading.Thread | None = None
        self.notes: list[tuple[float, str]] = []

    def note(self, level: str, text: str) -> None:
        self.notes.append((time.time(), text))

    def update(self, status: dict[str, Any]) -> None:
        self.status = status
        self.report.nodes |= {a["node"] for a in status["actors"] if a["in_flight"]}
        if self._busy is not None and self._busy.is_alive():
            return
        if time.time() < self._quiet_until:
            return  # one disaster at a time, so that each recovery can be timed
        if self.plan and status["done"] >= self.plan[0][0] * status["planned"]:
            _, strike = self.plan.pop(0)
            self._busy = threading.Thread(target=self._guarded, args=(strike,), daemon=True)
            self._busy.start()

    def _guarded(self, strike: Any) -> None:
        try:
            strike()
        except Exception as error:
            self.report.problems.append(f"{strike.__name__}: {error!r}")

    def _unanswered(self, pids: list[int]) -> int:
        return sum(int(mark.name.partition("-")[0]) in pids for mark in self.resets.iterdir())

    def _strike(self, what: str, victims: list[dict[str, Any]], pid: int, signal_: signal.Signals = signal.SIGKILL) -> None:
        """Signal ``pid`` while a reset of one of these actors is in flight."""
        pids = [a["pid"] for a in victims]
        deadline = time.monotonic() + 20
        while not self._unanswered(pids) and time.monotonic() < deadline:
            time.sleep(0.001)
        self._quiet_until = time.time() + FENCE_S + 12
        os.kill(pid, signal_)
        at = time.time()
        self.report.deaths.append(Death(what, at, [a["id"] for a in victims], pids, self._unanswered(pids)))

    def _living(self) -> list[dict[str, Any]]:
        return [a for a in self.status["actors"] if a["state"] == "working" and a["pid"] and psutil.pid_exists(a["pid"])]

    def kill_actor(self) -> None:
        victim = max(self._living(), key=lambda a: a["in_flight"])
        self._strike("actor", [victim], victim["pid"])

    def kill_raylet(self, signal_: signal.Signals = signal.SIGKILL) -> None:
        self._strike("raylet", self._on_victim(), self.victim.all_processes["raylet"][0].process.pid, signal_)

    def _on_victim(self) -> list[dict[str, Any]]:
        return [a for a in self._living() if a["node"] == self.victim.node_id]

    def note_peaks(self) -> None:
        """The server forgets its peaks when it is restarted."""
        stats = self.env.stats()["env"]
        peak = stats["peak_leases"] if "peak_leases" in stats else stats["peak_leases_held"]  # the mock's name, the demo's
        self.report.peak_leases = max(self.report.peak_leases, int(peak))
        left = sum(death.resets_in_flight for death in self.report.deaths[self._counted :])
        self._counted = len(self.report.deaths)
        self.report.waiting.append((int(stats["peak_resets_waiting"]), left))
        self.report.held_at_end = int(stats["leases_held"])

    def stop_model(self) -> None:
        self.model.kill()
        time.sleep(20)
        self.model.start()

    def restart_environment(self) -> None:
        self.note_peaks()
        self.env.kill()
        self.env.start()

    def block_loop(self) -> None:
        temporary = self.marker.with_suffix(".new")
        temporary.write_text("15")
        temporary.rename(self.marker)
        deadline = time.monotonic() + 30
        while self.marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.report.blocked = "an actor stood still for 15 s" if not self.marker.exists() else None


def config_for(directory: Path, episodes: int, tasks: int, env: Server, model: Server) -> Path:
    split = directory / "split.json"
    repeats = episodes // tasks
    split.write_text(json.dumps({"version": "chaos", "splits": {"all": {"task_ids": list(range(tasks)), "persona": True}}}))
    text = CONFIG.format(
        runs=directory / "runs", split=split, shop=env.url, model=f"{model.url}/v1", marker=directory / "marker",
        resets=directory / "resets", fence=FENCE_S,
    )  # fmt: skip
    (directory / "resets").mkdir()
    path = directory / "chaos.yaml"
    path.write_text(text.replace("repeats: 1", f"repeats: {repeats}"))
    return path


@contextlib.contextmanager
def three_nodes() -> Iterator[Any]:
    """A head without CPUs and two nodes with four each; -> the second of the two. A node's end is seen after some four seconds."""
    for name in ("initial_delay_ms", "period_ms", "timeout_ms"):
        os.environ.setdefault(f"RAY_health_check_{name}", "1000")
    os.environ.setdefault("RAY_health_check_failure_threshold", "3")
    import ray
    from ray.cluster_utils import Cluster

    size: dict[str, Any] = {"object_store_memory": 150 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **size})
    try:
        nodes = [cluster.add_node(num_cpus=4, **size) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield nodes[1]
    finally:
        ray.shutdown()
        cluster.shutdown()


def bad_run(chaos: Chaos, path: Path, run_dir: Path) -> Report:
    """Run the configuration with ``chaos`` watching, and fill in its report."""
    loaded = load_config(path)
    began = time.monotonic()
    chaos.report.outcome = run(RunRequest(loaded, make_plan(loaded), run_dir, kill_by_pid=False), chaos)
    chaos.report.seconds = time.monotonic() - began
    chaos.note_peaks()
    return chaos.report


def play(command: str | None, episodes: int, tasks: int, directory: Path) -> tuple[Report, Findings]:
    """The undisturbed run, then the bad day; -> the report and what was found."""
    log = directory / "requests.log"
    with servers(command, log) as (env, model), three_nodes() as victim:
        path = config_for(directory, episodes, tasks, env, model)
        loaded = load_config(path)
        run(RunRequest(loaded, make_plan(loaded), directory / "runs" / "calm"), NoDisplay())
        calm = canonical_hash_of_run(RunDirectory(directory / "runs" / "calm"))
        log.write_bytes(b"")
        httpx.post(f"{env.url}/stats/reset", timeout=5.0)
        chaos = Chaos(env, model, victim, directory)
        report = bad_run(chaos, path, directory / "runs" / "bad")
        found = Findings(report, chaos.notes, directory / "runs" / "bad", log)
        found.exactly_once(episodes)
        found.same_hash(calm)
        found.leases()
        found.deaths(["actor", "raylet", "actor"])
        found.back_in_time()
        found.fenced()
        found.expect(report.blocked is not None, "no loop was blocked")
        found.expect(len(report.nodes) >= 2, "the actors were on one node")
        return report, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mock-command", default=None, help="serves both sides on --port; default: the bundled demo servers")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=None, help="distinct tasks; default: episodes, or 40 with the demo servers")
    options = parser.parse_args()
    tasks = options.tasks or (40 if options.mock_command is None else options.episodes)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    report, found = play(options.mock_command, options.episodes, tasks, directory)
    print(json.dumps(shown(report, found) | {"directory": str(directory)}))
    return 1 if found.wrong else 0


def shown(report: Report, found: Findings) -> dict[str, Any]:
    """One object for a reader."""
    attempts = (report.outcome.summary or {}).get("attempts", {}) if report.outcome else {}
    return {
        "seconds": round(report.seconds, 1),
        "nodes": len(report.nodes),
        "deaths": [{"what": d.what, "actors": len(d.actor_ids), "resets_in_flight": d.resets_in_flight} for d in report.deaths],
        "peak_leases": report.peak_leases,
        "resets_waiting_and_left_by_the_dead": report.waiting,
        "held": report.held_at_end,
        "attempts": {k: attempts.get(k) for k in ("lines", "failed_lines", "by_kind", "lost", "model_retries")},
        "figures": found.figures,
        "wrong": found.wrong,
    }


if __name__ == "__main__":
    raise SystemExit(main())
