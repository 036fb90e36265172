import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.outbox import FULL_BYTES, Outbox
from rayeval.schemas import EnvironmentIdentity, FinishedTrace, Lease


def trace(name: str, size: int = 10) -> FinishedTrace:
    return FinishedTrace(name, 1, "completed", b"x" * (size - 1) + b"\n", None, False, {}, EnvironmentIdentity(), "shop")


async def test_replies_are_numbered_and_kept_until_acknowledged() -> None:
    outbox = Outbox()
    outbox.add_trace(trace("one"))
    first = outbox.take(1)
    outbox.add_trace(trace("two"))
    second = outbox.take(2)
    assert [first.number, second.number] == [1, 2]
    assert [r.episode_id for r in first.records] == ["one"]
    assert outbox.kept(0) == [first, second]
    outbox.acknowledge(1)
    assert outbox.kept(0) == [second]
    assert outbox.kept(2) == []


async def test_each_record_has_its_line() -> None:
    outbox = Outbox()
    outbox.add_trace(trace("one", 5))
    outbox.add_trace(trace("two", 7))
    reply = outbox.take(1)
    assert [r.episode_id for r in reply.records] == ["one", "two"]
    assert reply.lines == [b"xxxx\n", b"xxxxxx\n"]


async def test_a_megabyte_leaves_at_once() -> None:
    told = []
    outbox = Outbox(lambda: told.append(True))
    outbox.flush_s = 3600.0
    outbox.add_trace(trace("small"))
    assert not outbox.is_due
    outbox.add_trace(trace("big", FULL_BYTES))
    assert outbox.is_due and told


async def test_a_lease_is_due_before_a_trace() -> None:
    due = asyncio.Event()
    outbox = Outbox(due.set)
    outbox.flush_s, outbox.lease_flush_s = 3600.0, 0.01
    outbox.add_trace(trace("one"))
    outbox.add_lease("held", Lease("shop", 1, "id"))
    await asyncio.wait_for(due.wait(), 10.0)
    assert outbox.is_due
    reply = outbox.take(1)
    assert reply.leases[0].lease_id == "id"
    assert not outbox.is_due


async def test_taking_ends_the_timer() -> None:
    told = []
    outbox = Outbox(lambda: told.append(True))
    outbox.flush_s = 0.01
    outbox.add_trace(trace("one"))
    outbox.take(1)
    await asyncio.sleep(0.05)
    assert not told and not outbox.is_due


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["trace", "lease", "back", "take", "ack", "lose"]), max_size=60))
def test_everything_arrives_exactly_once_when_lost_replies_are_asked_for(moves: list[str]) -> None:
    async def play() -> None:
        outbox = Outbox()
        put: list[str] = []
        seen: dict[int, list[str]] = {}
        acknowledged = 0

        def hear(replies: list) -> None:  # type: ignore[type-arg]
            for reply in replies:
                content = [*(r.episode_id for r in reply.records), *(c.lease_id for c in reply.leases), *reply.returned]
                assert seen.setdefault(reply.number, content) == content, "a reply changed after it was numbered"

        for k, move in enumerate(moves):
            if move in ("trace", "lease", "back"):
                put.append(f"{move}-{k}")
            if move == "trace":
                outbox.add_trace(trace(put[-1]))
            elif move == "lease":
                outbox.add_lease("held", Lease("shop", k, put[-1]))
            elif move == "back":
                outbox.add_returned(put[-1])
            elif move == "take":
                hear([outbox.take(1)])
            elif move == "lose":
                outbox.take(1)
            else:
                hear(outbox.kept(acknowledged))
                acknowledged = max(seen, default=0)
                outbox.acknowledge(acknowledged)
        hear([*outbox.kept(acknowledged), outbox.take(1)])
        assert sorted(n for content in seen.values() for n in content) == sorted(put)

    asyncio.run(play())
