import pickle

from actors.messages import Assignment, LeaseChange, Order, Record, Reply, own_bytes
from rayeval.schemas import EnvironmentIdentity, EpisodeJob
from tests.actors.specs import spec


def test_messages_survive_a_process_border() -> None:
    job = EpisodeJob(1, 0, 7, "train")
    order = Order(3, 2, (Assignment(job, 1, "http://model/v1"),), {"shop": 4}, cancel=("*",), pinned=EnvironmentIdentity("v"))
    record = Record(job.episode_id, 1, "completed", None, False, {"steps": 2}, EnvironmentIdentity(), "shop")
    reply = Reply(1, 3, [record], [b"{}\n"], [LeaseChange("held", "shop", 1, "id")], ["x"], {"shop": 4}, missed=[Reply(0, 1)])
    for message in (order, reply, spec()):
        for protocol in (4, 5):
            assert pickle.loads(pickle.dumps(message, protocol)) == message


def test_lines_travel_beside_the_pickled_reply() -> None:
    record = Record("e", 1, "completed", None, False, {}, EnvironmentIdentity(), "shop")
    beside: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(Reply(1, 1, [record], [b"x" * 100_000]), 5, buffer_callback=beside.append)
    assert len(packed) < 2_000 and len(beside) == 1
    reply = pickle.loads(packed, buffers=[memoryview(b"x" * 100_000)])
    assert own_bytes(reply.lines[0]) == b"x" * 100_000 and isinstance(own_bytes(reply.lines[0]), bytes)


def test_a_spec_holds_no_key() -> None:
    assert "api_key" not in set(spec().__slots__)
