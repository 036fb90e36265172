import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from actors.broker import NAME, NAMESPACE, Answer, BrokerGoneError, RayBroker, Report, RunSpec
from rayeval.demo import DemoServers
from rayeval.store import iter_traces

SLOTS = 8
FENCE_S = 12.0
DEADLINE_S = 120.0
ASK = f"""
import json, ray
ray.init(address={{address!r}}, log_to_driver=False, logging_level="error")
broker = ray.get_actor({NAME!r}, namespace={NAMESPACE!r})
if {{kill!r}}:
    ray.kill(broker)
else:
    print(json.dumps(ray.get(broker.status.remote(), timeout=20)))
"""


def report(number: int, incarnation: str | None, *, registers: bool) -> Report:
    spec = RunSpec("run", 1, 30.0, {}, False, ("http://shop.invalid",)) if registers else None
    counts = {"http://shop.invalid": 4}
    return Report("run-1", number, incarnation, 0, wants=counts, taken=counts, slots=counts, spec=spec)


async def next_answer(link: RayBroker, incarnation: str) -> Answer:
    """As a client does it: once more, should the dead one's name still stand."""
    for number in range(400, 420):
        with contextlib.suppress(BrokerGoneError):
            return await link.sync(report(number, incarnation, registers=False), 60.0)
    raise AssertionError("no broker")


@pytest.mark.ray
async def test_a_cluster_has_one_broker_and_a_run_starts_another_when_it_is_gone(ray_session: None) -> None:
    first, second = RayBroker(), RayBroker()
    answer = await first.sync(report(1, None, registers=True), 60.0)
    assert answer.quotas == {"http://shop.invalid": 4} and not answer.settled
    assert (await second.sync(report(2, answer.incarnation, registers=False), 60.0)).incarnation == answer.incarnation
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE))
    with pytest.raises(BrokerGoneError):
        for number in range(3, 400):  # a kill takes a moment to arrive
            await first.sync(report(number, answer.incarnation, registers=False), 60.0)
            await asyncio.sleep(0.05)
    another = await next_answer(first, answer.incarnation)
    assert another.incarnation != answer.incarnation and another.quotas is None
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE))


@pytest.fixture
def head() -> Iterator[str]:
    """Address of a head that both jobs join."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 << 20})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


class Job:
    """One ``rayeval run`` process."""

    def __init__(self, root: Path, name: str, servers: DemoServers, address: str) -> None:
        self.run_dir = root / "runs" / name
        split = {"role": "train", "persona": False, "task_ids": list(range(40))}
        (root / "split.json").write_text(json.dumps({"version": "t", "splits": {"train": split}}))
        config = {
            "experiment": {"name": name, "seed": 7, "output_dir": "runs"},
            "tasks": {"split_file": "split.json", "split": "train", "repeats": 25},
            "environment": {"base_url": servers.shop_url},
            "prompt": {"system_prompt": "Shop."},
            "model": {"name": "scripted", "base_url": servers.model_url, "checkpoint_id": "fixed"},
            "execution": {"concurrency": SLOTS, "actors": 1, "broker": True, "fence_s": FENCE_S, "shards": False},
        }
        path = root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = root / f"{name}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "rayeval", "run", str(path), "--address", address]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.run_dir / "status.json").read_bytes())
        except FileNotFoundError:
            return {"done": 0, "environment": []}
        return found

    @property
    def held(self) -> int:
        return sum(server["held"] for server in self.status["environment"])

    @property
    def admission(self) -> int:
        return sum(server["admission"] for server in self.status["environment"])


def wait_until(holds: Callable[[], bool], *jobs: Job) -> float:
    """-> seconds until it held."""
    began = time.monotonic()
    while not holds():
        for job in jobs:
            assert job.process.poll() is None, job.log.read_text()
        assert time.monotonic() - began < DEADLINE_S, [(job.status, job.log.read_text()[-2000:]) for job in jobs]
        time.sleep(0.1)
    return time.monotonic() - began


def ask_broker(address: str, *, kill: bool = False) -> Any:
    script = ASK.format(address=address, kill=kill)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.slow
def test_two_jobs_share_a_server_and_one_takes_over_from_the_other_when_it_is_killed(
    head: str, tmp_path: Path, start_demo_with: Callable[..., DemoServers]
) -> None:
    servers = start_demo_with(slots=SLOTS, model_latency="fixed:0.1")
    jobs: list[Job] = []
    try:
        training = Job(tmp_path, "training", servers, head)
        jobs.append(training)
        wait_until(lambda: training.held == SLOTS, training)
        evaluation = Job(tmp_path, "evaluation", servers, head)
        jobs.append(evaluation)
        wait_until(lambda: training.admission == SLOTS // 2 == evaluation.admission, *jobs)
        ask_broker(head, kill=True)
        before = training.status["done"], evaluation.status["done"]
        wait_until(lambda: training.status["done"] > before[0] + 5 and evaluation.status["done"] > before[1] + 5, *jobs)
        wait_until(lambda: len(ask_broker(head)["runs"]) == 2, *jobs)
        training.process.send_signal(signal.SIGKILL)
        training.process.wait(10)
        killed_at = time.monotonic()
        wait_until(lambda: "run training was silent for" in evaluation.log.read_text(), evaluation)
        unnamed = re.search(r"up to (\d+) more cannot be named", evaluation.log.read_text())
        lost = int(unnamed[1]) if unnamed else 0
        assert lost <= SLOTS // 2
        wait_until(lambda: evaluation.held >= SLOTS - lost, evaluation)
        assert time.monotonic() - killed_at < 60.0
        evaluation.process.send_signal(signal.SIGTERM)
        assert evaluation.process.wait(DEADLINE_S) == 128 + signal.SIGTERM, evaluation.log.read_text()
        stats = httpx.get(f"{servers.shop_url}/stats", timeout=5.0).json()["env"]
        assert stats["peak_leases_held"] <= SLOTS and stats["leases_held"] <= lost
        for job in jobs:
            lines = [trace["status"] for trace in iter_traces(job.run_dir / "traces.jsonl")]
            assert lines and set(lines) == {"completed"}
        assert ask_broker(head)["runs"] == {}
    finally:
        for job in jobs:
            if job.process.poll() is None:
                job.process.kill()
            job.process.wait(10)
