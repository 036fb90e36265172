"""No work on the head: a cluster of three nodes whose head offers no CPU, and where the actors of a run are.

    python -m tests.acceptance.head [--ready-s 120]

prints one JSON line a row and exits 1 when one does not hold. Every actor of the cluster is looked at while the run lives, those that
are not the engine's too. ``--ready-s`` is how long the last row waits for an actor that cannot be placed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private.state import actors as actor_table
from ray.cluster_utils import Cluster

from actors.broker import NAME as BROKER
from actors.cluster import prepare_environment
from actors.control_actor import actor_name
from actors.handles import RayHandle
from actors.nodes import NodeCpus, living_nodes
from rayeval.config import load_config
from rayeval.exceptions import PlacementError
from rayeval.schemas import ExitCode
from rayeval.store import load_journal
from tests.acceptance.runs import Bench, Driver, JsonObject, assert_exactly_once, status_of
from tests.acceptance.servers import DemoPair, StartServers
from tests.actors.specs import spec

ROLLOUT = "_RayRolloutActor"
_WORKER_CPUS = 2
_STORE = 100 << 20


@contextlib.contextmanager
def three_nodes() -> Iterator[str]:
    """-> address of a head without CPUs and two workers; this process is a job of it."""
    prepare_environment()
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=_WORKER_CPUS, object_store_memory=_STORE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def head_of(nodes: tuple[NodeCpus, ...]) -> NodeCpus:
    """The one head, which offers nothing."""
    (head,) = (node for node in nodes if node.head)
    assert head.cpus == 0 and len(nodes) == 3, nodes
    return head


def seen_actors(seen: dict[str, set[str]]) -> None:
    """Add (class or name -> nodes) of every actor that has a node now."""
    for row in actor_table().values():
        if row["State"] == "ALIVE":
            seen[row["Name"] or row["ActorClassName"]].add(row["Address"]["NodeID"])


def spread(start: StartServers, root: Path, address: str, episodes: int = 400) -> JsonObject:
    """Actors of a run that joins the cluster: none on the head, rollout actors on both workers; also by the journal of the run."""
    nodes = living_nodes()
    head, names = head_of(nodes), {node.node_id: f"worker-{i}" for i, node in enumerate(n for n in nodes if not n.head)}
    seen: dict[str, set[str]] = defaultdict(set)
    tasks = 40  # the demo's catalogue has no more than 48
    bench = Bench(root, tasks)
    with start(slots=16, model_latency="fixed:0.02", env_latency="fixed:0.02") as servers:
        sharing = {"execution.broker": True, "execution.exclusive_environment": False}
        config = bench.config(
            "spread", servers, {"tasks.repeats": episodes // tasks, "execution.actors": 2, "execution.concurrency": 16, **sharing}
        )
        driver = Driver(config, "--address", address)
        while driver.process.poll() is None:
            seen_actors(seen)
            time.sleep(0.1)
        assert driver.wait() == ExitCode.OK, driver.output
        assert_exactly_once(driver.run_dir, episodes)
        assert servers.stats()["env"]["leases_held"] == 0
    on_head = sorted(name for name, where in seen.items() if head.node_id in where)
    assert not on_head, f"on the head: {on_head}"
    assert seen[ROLLOUT] == set(names), f"rollout actors are on {[names[n] for n in seen[ROLLOUT]]}"
    journalled = {a.node_id for a in load_journal(driver.run_dir.leases).actors.values()}
    assert journalled == set(names), f"the journal says {journalled}"
    assert {BROKER, actor_name("spread")} <= set(seen), f"broker or mailbox was not seen: {sorted(seen)}"
    assert status_of(driver.run_dir)["exit_code"] == 0
    return {"episodes": episodes, "actors": {name: sorted(names[n] for n in where) for name, where in sorted(seen.items())}}


@ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")
class _Half:
    """Takes half a CPU: two on each worker leave one there, three leave half a one."""

    def ready(self) -> None: ...


def full(root: Path, ready_s: float = 5.0) -> JsonObject:
    """CPUs enough in all and none whole: an actor is not placed, in bounded time, and it is said what is missing."""
    taken = [_Half.remote() for _ in range(6)]
    ray.get([half.ready.remote() for half in taken], timeout=60)
    while sum(node.free for node in living_nodes()) != 1.0:  # what is free is told with a delay
        time.sleep(0.1)
    bench = Bench(root, 1)
    config = load_config(bench.config("full", _Nowhere())).config.model_dump(mode="json")
    began = time.monotonic()
    try:
        asyncio.run(RayHandle(spec(config)).start(ready_s))
    except PlacementError as error:
        said = str(error)
    else:
        raise AssertionError("an actor of 1 CPU runs where no node has one free")
    finally:
        for half in taken:
            ray.kill(half)
    waited = time.monotonic() - began
    assert waited < ready_s + 5.0, f"it took {waited:.1f} s"
    assert "no node has more than 0.5 free" in said and "4 CPUs on 2 of 3 nodes" in said, said
    return {"waited_s": round(waited, 1), "said": said}


class _Nowhere(DemoPair):
    """Servers that are never called."""

    def __init__(self) -> None:
        self.model_url, self.shop_url = "http://127.0.0.1:9/v1", "http://127.0.0.1:9"


def main() -> int:
    """-> 1 when a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready-s", type=float, default=5.0)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="rayeval-head-") as place, three_nodes() as address:
        rows: dict[str, Callable[[Path], Any]] = {
            "spread": lambda root: spread(DemoPair, root, address),
            "full": lambda root: full(root, args.ready_s),
        }
        for name, row in rows.items():
            try:
                print(json.dumps({"row": name, "holds": True, "figures": row(Path(place) / name)}), flush=True)
            except Exception as error:
                wrong += 1
                traceback.print_exc()
                print(json.dumps({"row": name, "holds": False, "why": str(error)}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
