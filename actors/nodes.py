"""The nodes of a cluster as placement sees them: which offer CPUs, how many whole ones are free, where an actor goes that asks for none.

Ray puts an actor without CPUs on the head, also on a head that is to bear no work (``--num-cpus=0``); and an actor that asks for a
thousandth of a CPU instead takes a whole one from the rollout actors, which need 1 on one node. So such actors ask for none and say where.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray._private.state import available_resources_per_node  # no public call gives what is free by node
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_HEAD = "node:__internal_head__"
_ROUNDING = 1e-6
"""Ray counts in ten-thousandths and answers in floats."""


class NodeCpus(NamedTuple):
    """One living node."""

    node_id: str
    head: bool
    cpus: float
    """What it offers."""
    free: float
    """What nothing has taken; seconds old at most."""


def living_nodes() -> tuple[NodeCpus, ...]:
    """All of them; blocks until the cluster answers."""
    free = available_resources_per_node()  # type: ignore[no-untyped-call]
    return tuple(
        NodeCpus(
            node["NodeID"],
            _HEAD in node["Resources"],
            float(node["Resources"].get("CPU", 0.0)),
            float(free.get(node["NodeID"], {}).get("CPU", 0.0)),
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    )


def whole_cpus(nodes: Sequence[NodeCpus]) -> int:
    """Actors of 1 CPU that fit: half a CPU here and half a CPU there bear none."""
    return sum(int(node.free + _ROUNDING) for node in nodes)


def host_without_cpu(nodes: Sequence[NodeCpus]) -> str | None:
    """Id of a node for an actor that asks for no CPU: any but the head that offers CPUs; None: there is no such node, or the head bears
    work like the others."""
    if any(node.head and node.cpus for node in nodes):
        return None
    offering = [node.node_id for node in nodes if node.cpus]
    return random.choice(offering) if offering else None


def placed_without_cpu() -> dict[str, Any]:
    """Options of an actor that does next to no work: no CPU, and not on a head that is to bear none. Whoever starts it does so again, with
    options asked for anew, when its node is lost. Blocks until the cluster answers."""
    chosen = host_without_cpu(living_nodes())
    strategy = "DEFAULT" if chosen is None else NodeAffinitySchedulingStrategy(chosen, soft=False)  # a soft one is not kept to for 0 CPUs
    return {"num_cpus": 0, "scheduling_strategy": strategy}


def what_is_missing() -> str:
    """Why an actor of 1 CPU is not placed, in words."""
    try:
        return missing(living_nodes())
    except RayError:
        return "the cluster does not answer"


def missing(nodes: Sequence[NodeCpus]) -> str:
    """As ``what_is_missing``, for these nodes."""
    offering = [node for node in nodes if node.cpus]
    if not offering:
        return f"it needs 1 CPU; no node offers CPUs ({len(nodes)} alive): add a node, or start one with --num-cpus"
    most = max(node.free for node in offering)
    total = sum(node.cpus for node in offering)
    found = f"{total:g} CPUs on {len(offering)} of {len(nodes)} nodes"
    if most >= 1.0 - _ROUNDING:
        return f"it needs 1 CPU; the cluster has {found}, and on one node {most:g} are free: Ray did not start it in time"
    return f"it needs 1 CPU on one node; the cluster has {found}, and no node has more than {most:g} free: end another job, or add a node"
