"""A bad day for one run: actors and a node killed, servers restarted, a loop blocked; by hand ``python -m tests.acceptance.chaos``.

Three nodes on this machine (``ray.cluster_utils.Cluster``), the head without CPUs. Pids of lost actors are not trusted
(``kill_by_pid=False``), as on machines of their own: every death is fenced by time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

from actors.engine import RunOutcome, RunRequest, run
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.plan import make_plan
from rayeval.store import RunDirectory, canonical_hash_of_run, iter_traces

ENV_SLOTS = 64
FENCE_S = 15.0
CONFIG = """
experiment: {{name: chaos, seed: 11, output_dir: {runs}}}
tasks: {{split_file: {split}, split: all, repeats: 1}}
environment: {{kind: tests.acceptance.blocking_shop.BlockingShop, base_url: "{shop}", persona: true, options: {{marker: "{marker}"}}}}
prompt: {{system_prompt: "You are a shopper. Call one tool a turn."}}
model: {{name: scripted, base_url: "{model}", checkpoint_id: fixed}}
execution: {{concurrency: 64, actors: 4, fence_s: {fence}, exclusive_environment: true, model_timeout_s: 60, step_timeout_s: 10,
             reset_timeout_s: 60, shards: false}}
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


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


def servers(command: str | None, log: Path) -> tuple[Server, Server]:
    """-> (environment server, model server), each with its own process."""
    shop, model = free_port(), free_port()
    if command is None:
        demo = [sys.executable, "-m", "rayeval.demo"]
        env_words = [*demo, f"--shop-port={shop}", f"--slots={ENV_SLOTS}", "--env-latency=fixed:0.05", f"--request-log={log}"]
        model_words = [*demo, f"--model-port={model}", "--model-latency=fixed:0.6"]
    else:
        base = shlex.split(command)
        env_words = [*base, f"--port={shop}", f"--env-slots={ENV_SLOTS}", "--env-latency=fixed:0.05", f"--request-log={log}"]
        model_words = [*base, f"--port={model}", "--model-latency=fixed:0.6"]
    return Server(env_words, shop), Server(model_words, model)


@dataclass
class Report:
    """What happened."""

    outcome: RunOutcome | None = None
    deaths: list[tuple[str, float, list[str]]] = field(default_factory=list)
    """(what, unix time, actor ids)"""
    resets_in_flight: list[int] = field(default_factory=list)
    peak_leases: int = 0
    held_at_end: int = -1
    nodes: set[str] = field(default_factory=set)
    blocked: str | None = None
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Chaos(NoDisplay):
    """Strikes when the run has come far enough. Each strike runs in a thread, so that the driver is not held up by it."""

    def __init__(self, env: Server, model: Server, cluster: Any, victim: Any, marker: Path, episodes: int) -> None:
        self.env, self.model, self.cluster, self.victim, self.marker = env, model, cluster, victim, marker
        self.report = Report()
        self.status: dict[str, Any] = {}
        at = lambda share: int(share * episodes)  # noqa: E731
        self._plan = [
            (at(0.10), self.kill_actor),
            (at(0.25), self.kill_raylet),
            (at(0.40), self.stop_model),
            (at(0.55), self.restart_environment),
            (at(0.65), self.block_loop),
            (at(0.75), self.kill_actor),
        ]
        self._quiet_until = 0.0
        self._busy: threading.Thread | None = None
        self.notes: list[str] = []

    def note(self, level: str, text: str) -> None:
        self.notes.append(f"{time.time():.2f} {level} {text}")

    def update(self, status: dict[str, Any]) -> None:
        self.status = status
        self.report.nodes |= {a["node"] for a in status["actors"] if a["in_flight"]}
        if self._busy is not None and self._busy.is_alive():
            return
        if time.time() < self._quiet_until:
            return  # one disaster at a time, so that each recovery can be timed
        if self._plan and status["done"] >= self._plan[0][0]:
            _, strike = self._plan.pop(0)
            self._busy = threading.Thread(target=self._guarded, args=(strike,), daemon=True)
            self._busy.start()

    def _guarded(self, strike: Any) -> None:
        try:
            strike()
        except Exception as error:
            self.report.problems.append(f"{strike.__name__}: {error!r}")

    def _wait_for_reset(self) -> None:
        """Strike while a reset is in flight."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            n = int(self.env.stats()["env"]["resets_in_flight"])
            if n:
                self.report.resets_in_flight.append(n)
                return
            time.sleep(0.003)
        self.report.resets_in_flight.append(0)

    def _living(self) -> list[dict[str, Any]]:
        return [a for a in self.status["actors"] if a["state"] == "working" and a["pid"] and psutil.pid_exists(a["pid"])]

    def kill_actor(self) -> None:
        victim = max(self._living(), key=lambda a: a["in_flight"])
        self._wait_for_reset()
        self.report.deaths.append(("actor", time.time(), [victim["id"]]))
        self._quiet_until = time.time() + FENCE_S + 12
        os.kill(victim["pid"], signal.SIGKILL)

    def kill_raylet(self) -> None:
        pid = self.victim.all_processes["raylet"][0].process.pid
        own = [a["id"] for a in self._living() if a["node"] == self.victim.node_id]
        self._wait_for_reset()
        self.report.deaths.append(("raylet", time.time(), own))
        self._quiet_until = time.time() + FENCE_S + 12
        os.kill(pid, signal.SIGKILL)

    def stop_model(self) -> None:
        self.model.kill()
        time.sleep(20)
        self.model.start()

    def restart_environment(self) -> None:
        self.report.peak_leases = max(self.report.peak_leases, int(self.env.stats()["env"]["peak_leases"]))
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
        runs=directory / "runs", split=split, shop=env.url, model=f"{model.url}/v1", marker=directory / "marker", fence=FENCE_S
    )
    path = directory / "chaos.yaml"
    path.write_text(text.replace("repeats: 1", f"repeats: {repeats}"))
    return path


def play(command: str | None, episodes: int, tasks: int, directory: Path) -> tuple[Report, list[str]]:
    """The undisturbed run, then the bad day; -> the report and everything that is not as promised."""
    import ray
    from ray.cluster_utils import Cluster

    log = directory / "requests.log"
    env, model = servers(command, log)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 150 << 20},
    )
    try:
        nodes = [cluster.add_node(num_cpus=4, object_store_memory=150 << 20) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        path = config_for(directory, episodes, tasks, env, model)
        loaded = load_config(path)
        plan = make_plan(loaded)
        run(RunRequest(loaded, plan, directory / "runs" / "calm"), NoDisplay())
        calm = canonical_hash_of_run(RunDirectory(directory / "runs" / "calm"))
        log.write_bytes(b"")
        httpx.post(f"{env.url}/stats/reset", timeout=5.0)
        chaos = Chaos(env, model, cluster, nodes[1], directory / "marker", episodes)
        began = time.monotonic()
        outcome = run(RunRequest(loaded, plan, directory / "runs" / "bad", kill_by_pid=False), chaos)
        report = chaos.report
        report.outcome, report.seconds = outcome, time.monotonic() - began
        stats = env.stats()["env"]
        report.peak_leases = max(report.peak_leases, int(stats["peak_leases"]))
        report.held_at_end = int(stats["leases_held"])
        return report, findings(report, directory / "runs" / "bad", log, episodes, calm, chaos.notes)
    finally:
        ray.shutdown()
        cluster.shutdown()
        env.kill()
        model.kill()


def findings(report: Report, run_dir: Path, log: Path, episodes: int, calm: str, notes: list[str]) -> list[str]:
    """Everything that is not as promised; empty when all is well."""
    wrong = list(report.problems)
    lines = list(iter_traces(RunDirectory(run_dir)))
    completed = Counter(t["episode_id"] for t in lines if t["status"] == "completed")
    if len(completed) != episodes or set(completed.values()) != {1}:
        wrong.append(f"{len(completed)} of {episodes} episodes completed, most often {max(completed.values(), default=0)} times")
    if canonical_hash_of_run(RunDirectory(run_dir)) != calm:
        wrong.append("the canonical hash differs from the undisturbed run's")
    if report.peak_leases > ENV_SLOTS:
        wrong.append(f"{report.peak_leases} leases at the peak, {ENV_SLOTS} slots")
    if report.held_at_end:
        wrong.append(f"{report.held_at_end} leases held at the end")
    if len(report.nodes) < 2:
        wrong.append("the actors were on one node")
    if len(report.deaths) != 3 or not all(report.resets_in_flight):
        wrong.append(f"deaths {report.deaths}, resets in flight {report.resets_in_flight}")
    if report.blocked is None:
        wrong.append("no loop was blocked")
    wrong += late_dispatches(report, lines) + late_interacts(report, run_dir, log)
    return wrong


def late_dispatches(report: Report, lines: list[dict[str, Any]]) -> list[str]:
    """Episodes of a dead actor whose next attempt began later than ``fence_s`` + 10 s after the death."""
    from datetime import datetime

    wrong = []
    by_episode: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for trace in lines:
        by_episode[trace["episode_id"]].append(trace)
    lost = 0
    for episode_id, traces in by_episode.items():
        traces.sort(key=lambda t: t["attempt"])
        for before, after in itertools.pairwise(traces):
            if (before.get("error") or {}).get("stage") != "lost":
                continue
            lost += 1
            gone = datetime.fromisoformat(before["ended_at"]).timestamp()
            again = datetime.fromisoformat(after["started_at"]).timestamp()
            deaths = [at for _, at, _ in report.deaths if at <= gone]
            if not deaths or again - max(deaths) > FENCE_S + 10:
                wrong.append(f"{episode_id} ran again {again - max(deaths, default=0.0):.1f} s after the death")
    if not lost:
        wrong.append("no attempt was lost")
    return wrong[:5]


def late_interacts(report: Report, run_dir: Path, log: Path) -> list[str]:
    """Interacts of an actor of the killed raylet later than ``fence_s`` after its last renewal (which the driver's last ping bounds)."""
    ours: dict[str, str] = {}
    for line in (run_dir / "leases.jsonl").read_bytes().splitlines():
        record = orjson.loads(line)
        if record["kind"] == "held":
            ours[record["lease"][2]] = record["actor"]
    wrong = []
    for what, at, actor_ids in report.deaths:
        if what != "raylet":
            continue
        # the death is seen within 4 s; a ping may have been on its way for 5 s more
        limit = at + 9.0 + FENCE_S
        for line in log.read_text().splitlines():
            when, action, _, lease_id, _ = line.split()
            if action == "interact" and ours.get(lease_id) in actor_ids and float(when) > limit:
                wrong.append(f"interact of {ours[lease_id]} {float(when) - at:.1f} s after its raylet's end")
    return wrong[:5]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mock-command", default=None, help="serves both sides on --port; default: the bundled demo servers")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=None, help="distinct tasks; default: episodes, or 40 with the demo servers")
    options = parser.parse_args()
    tasks = options.tasks or (40 if options.mock_command is None else options.episodes)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    report, wrong = play(options.mock_command, options.episodes, tasks, directory)
    attempts = (report.outcome.summary or {}).get("attempts", {}) if report.outcome else {}
    shown = {k: attempts.get(k) for k in ("lines", "failed_lines", "by_kind", "lost", "model_retries")}
    print(json.dumps({"seconds": round(report.seconds, 1), "deaths": [d[0] for d in report.deaths], "nodes": len(report.nodes),
                      "resets_in_flight": report.resets_in_flight, "peak_leases": report.peak_leases, "held": report.held_at_end,
                      "attempts": shown, "wrong": wrong, "directory": str(directory)}))  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
