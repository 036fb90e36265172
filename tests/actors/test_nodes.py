import pytest
import ray

from actors import nodes
from actors.nodes import NodeCpus

HEAD = NodeCpus("h", True, 0.0, 0.0)
WORKING_HEAD = NodeCpus("h", True, 4.0, 1.0)


def worker(name: str, cpus: float, free: float) -> NodeCpus:
    return NodeCpus(name, False, cpus, free)


def test_actors_need_whole_cpus_of_one_node() -> None:
    assert nodes.whole_cpus((worker("a", 4.0, 1.5), worker("b", 4.0, 1.5), HEAD)) == 2
    assert nodes.whole_cpus((worker("a", 4.0, 0.999), worker("b", 4.0, 3.0 - 1e-9))) == 3
    assert nodes.whole_cpus(()) == 0


def test_an_actor_without_cpus_goes_to_a_node_that_works_however_full_it_is() -> None:
    full = (HEAD, worker("a", 4.0, 0.0), worker("b", 0.0, 0.0))
    assert {nodes.host_without_cpu(full) for _ in range(20)} == {"a"}
    both = (HEAD, worker("a", 4.0, 0.0), worker("b", 2.0, 0.0))
    assert {nodes.host_without_cpu(both) for _ in range(100)} == {"a", "b"}


def test_a_head_that_bears_work_bears_this_too() -> None:
    assert nodes.host_without_cpu((WORKING_HEAD, worker("a", 4.0, 4.0))) is None
    assert nodes.host_without_cpu((HEAD,)) is None


@pytest.mark.parametrize(
    ("alive", "said"),
    [
        ((HEAD,), "no node offers CPUs (1 alive)"),
        ((HEAD, worker("a", 4.0, 0.5), worker("b", 4.0, 0.5)), "8 CPUs on 2 of 3 nodes, and no node has more than 0.5 free"),
        ((WORKING_HEAD,), "on one node 1 are free: Ray did not start it in time"),
    ],
)
def test_what_is_missing_is_said(alive: tuple[NodeCpus, ...], said: str) -> None:
    assert said in nodes.missing(alive)


@pytest.mark.ray
def test_the_nodes_of_a_ray(ray_session: None) -> None:
    (node,) = nodes.living_nodes()
    assert node.head and node.node_id == ray.get_runtime_context().get_node_id()
    assert node.cpus >= 1.0 and 0.0 <= node.free <= node.cpus
    assert nodes.placed_without_cpu() == {"num_cpus": 0, "scheduling_strategy": "DEFAULT"}
