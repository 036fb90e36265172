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
    assert await box.publish({"done": 1}) == 0
    assert (await box.status(0, 10.0))["status"] == {"done": 1}
    waiting = asyncio.create_task(box.status(1, 10.0))
    await asyncio.sleep(0.01)
    assert await box.publish({"done": 2}) == 1
    answer = await waiting
    assert (answer["number"], answer["status"]) == (2, {"done": 2}) and answer["age_s"] < 1
    same = await box.status(2, 0.05)
    assert same["number"] == 2 and same["age_s"] >= 0.05


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
