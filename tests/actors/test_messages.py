import pickle

from actors.messages import Assignment, LeaseChange, Order, Record, Reply
from rayeval.schemas import EnvironmentIdentity, EpisodeJob
from tests.actors.specs import spec


def test_messages_survive_a_process_border() -> None:
    job = EpisodeJob(1, 0, 7, "train")
    order = Order(3, 2, (Assignment(job, 1, "http://model/v1"),), {"shop": 4}, cancel=("*",), pinned=EnvironmentIdentity("v"))
    record = Record(job.episode_id, 1, "completed", 3, None, False, {"steps": 2}, EnvironmentIdentity(), "shop")
    reply = Reply(1, 3, [record], b"{}\n", [LeaseChange("held", "shop", 1, "id")], ["x"], {"shop": 4}, missed=[Reply(0, 1)])
    for message in (order, reply, spec()):
        assert pickle.loads(pickle.dumps(message)) == message


def test_a_spec_holds_no_key() -> None:
    assert "api_key" not in set(spec().__slots__)
