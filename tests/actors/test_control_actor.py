import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from actors.control_actor import ClusterMailbox, ControlBox, send_over_cluster
from rayeval.control import ControlRequest, done_reply
from rayeval.exceptions import InputError, RefusedError


async def test_a_request_is_given_out_once_and_its_reply_comes_back() -> None:
    box, request = ControlBox(), ControlRequest("pause").to_json()
    waiting = asyncio.create_task(box.post(request, 10.0))
    assert await box.take(10.0) == [request]
    assert await box.take(0.01) == []
    await box.answer({"id": request["id"], "ok": True})
    assert (await waiting)["ok"]


async def test_who_takes_is_woken_by_a_request() -> None:
    box, request = ControlBox(), ControlRequest("pause").to_json()
    taking = asyncio.create_task(box.take(10.0))
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(box.post(request, 0.05))
    assert await taking == [request]
    assert await waiting == {"taken": True}


async def test_a_request_that_nobody_took_is_withdrawn() -> None:
    box = ControlBox()
    assert await box.post(ControlRequest("pause").to_json(), 0.01) == {"withdrawn": True}
    assert await box.take(0.01) == []


async def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    await ControlBox().answer({"id": "x"})


async def test_who_watches_hears_of_the_next_status_or_waits_for_it_in_vain() -> None:
    box = ControlBox()
    assert await box.status(0, 0.01) == {"number": 0, "status": None, "age_s": None}
    await box.publish({"done": 1})
    assert (await box.status(0, 10.0))["status"] == {"done": 1}
    waiting = asyncio.create_task(box.status(1, 10.0))
    await asyncio.sleep(0.01)
    await box.publish({"done": 2})
    answer = await waiting
    assert (answer["number"], answer["status"]) == (2, {"done": 2}) and answer["age_s"] < 1
    same = await box.status(2, 0.05)
    assert same["number"] == 2 and same["age_s"] >= 0.05


async def test_who_is_between_two_asks_is_given_the_last_status_before_the_end() -> None:
    box = ControlBox()
    await box.publish({"done": 1})
    watchers = [f"watcher {n}" for n in range(100)]  # more than may wait: the others ask again and again

    async def follow(watcher: str, pause_s: float) -> object:
        number = 0
        while True:
            answer = await box.status(number, 0.2, watcher)
            if answer["status"]["state" if "state" in answer["status"] else "done"] == "ended":
                return answer["status"]
            number = answer["number"]
            await asyncio.sleep(pause_s)

    following = [asyncio.create_task(follow(watcher, 0.05 + n * 0.004)) for n, watcher in enumerate(watchers)]
    await asyncio.sleep(0.6)
    await box.publish({"state": "ended"})
    assert await box.handed_over(5.0)
    assert all(task.done() for task in following), "the actor may end now"


async def test_the_end_waits_for_nobody_who_has_left_nor_for_who_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.control_actor._RECENT_S", 0.3)
    box = ControlBox()
    assert await asyncio.wait_for(box.handed_over(30.0), 1.0), "nobody watches"
    await box.publish({"done": 1})
    await box.status(0, 1.0, "left")
    await box.publish({"state": "ended"})
    assert not await box.handed_over(0.05), "it may just be between two asks"
    waiting = asyncio.create_task(box.status(2, 30.0, "knows it, and asks on"))
    assert await asyncio.wait_for(box.handed_over(30.0), 5.0)
    waiting.cancel()


async def test_more_watchers_than_can_wait_are_answered_at_once() -> None:
    box = ControlBox()
    await box.publish({"done": 1})
    waiting = [asyncio.create_task(box.status(1, 30.0)) for _ in range(64)]
    await asyncio.sleep(0.01)
    assert (await asyncio.wait_for(box.status(1, 30.0), 5.0))["number"] == 1
    await box.publish({"done": 2})
    assert {answer["number"] for answer in await asyncio.gather(*waiting)} == {2}


async def test_a_box_that_is_closed_takes_no_request_and_still_tells_the_status() -> None:
    box = ControlBox()
    await box.close()
    assert await box.post(ControlRequest("pause").to_json(), 10.0) == {"ended": True}
    await box.publish({"state": "ended"})
    assert (await box.status(0, 1.0))["status"] == {"state": "ended"}


@contextlib.asynccontextmanager
async def steered(run: str, notes: list[str]) -> AsyncIterator[ClusterMailbox]:
    mailbox = ClusterMailbox(run, lambda level, text: notes.append(text))
    try:
        yield mailbox
    finally:
        await mailbox.aclose()
        mailbox.kill()


async def answer_all(mailbox: ClusterMailbox) -> None:
    while True:
        for request in mailbox.poll():
            mailbox.answer(done_reply(request, f"did {request.verb}", request.arguments))
        await asyncio.sleep(0.01)


def ask(run: str, request: ControlRequest, timeout_s: float = 20.0) -> object:
    return send_over_cluster("the one of this process", run, request, timeout_s)["done"]


@pytest.mark.ray
async def test_a_run_is_steered_by_its_name_over_the_cluster(ray_session: None) -> None:
    notes: list[str] = []
    async with asyncio.timeout(120):
        with pytest.raises(RefusedError, match="is not running"):
            await asyncio.to_thread(ask, "far", ControlRequest("pause"))
        async with steered("far", notes) as mailbox:
            while mailbox._actor is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            with pytest.raises(RefusedError, match=r"nothing was done|did not say"):
                await asyncio.to_thread(ask, "far", ControlRequest("pause"), 0.5)
            mailbox.poll()
            answering = asyncio.create_task(answer_all(mailbox))
            assert await asyncio.to_thread(ask, "far", ControlRequest("drain", {"grace_s": 3})) == "did drain"
            with pytest.raises(InputError):
                await asyncio.to_thread(ask, "far", ControlRequest("stop"))
            async with steered("far", notes):  # another run of this name gets no second mailbox, and says so
                while not notes:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert await asyncio.to_thread(ask, "far", ControlRequest("resume")) == "did resume"
            answering.cancel()
        with pytest.raises(RefusedError):
            await asyncio.to_thread(ask, "far", ControlRequest("pause"))
    assert len(notes) == 1 and "not steered over the cluster" in notes[0]
