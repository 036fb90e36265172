"""What is read out of answers, also bad ones: the lease is never lost and never told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rayeval.environments import EnvironmentTimeouts, ShopSimulator
from rayeval.environments._shop_answers import call_error, lease_of, parsed, result_of
from rayeval.environments.shopsimulator import MAX_PAGE_BYTES
from rayeval.exceptions import EnvironmentCallError
from rayeval.schemas import EpisodeJob, ErrorKind, Lease
from rayeval.transport import AiohttpTransport, FakeTransport, HttpResponse
from tests.environments.shop_server import ShopServer

JOB = EpisodeJob(3, 0, 7, "val")
QUICK = EnvironmentTimeouts(reset_timeout_s=20, step_timeout_s=20, release_timeout_s=5, drain_timeout_s=5)
SERVER = "http://shop.test:5700"
ID = "1dad514bae6346a48818e4857b66c0de"
HELD = Lease(SERVER, 3, ID)


def dumped(result: dict[str, Any]) -> bytes:
    """As Python's json module writes it: lone surrogates and NaN pass."""
    return json.dumps({"result": result}).encode()


def body(**fields: Any) -> bytes:
    return dumped({"env_idx": 3, "lease_id": ID, **fields})


BAD_RESETS = {
    "NaN": body(reward=float("nan")),
    "cut short": body(observation="x" * 100)[:-60],
    "not UTF-8": body(observation="MARK").replace(b"MARK", b"\xff\xfe"),
    "too deep": b'{"result": {"env_idx": 3, "lease_id": "%s", "a": %s1%s}}' % (ID.encode(), b"[" * 5000, b"]" * 5000),
    "a surrogate, and too deep": b'{"result": {"env_idx": 3, "lease_id": "%s", "o": "\\ud800", "a": %s1%s}}'
    % (ID.encode(), b"[" * 200_000, b"]" * 200_000),
    "no result": json.dumps({"env_idx": 3, "lease_id": ID}).encode(),
    "a list": json.dumps([{"env_idx": 3, "lease_id": ID}]).encode(),
    "two documents": body() + body(),
    "spaced": b'{"result"\n:{ "env_idx" : 3 ,"lease_id"\t:\t"%s" , ' % ID.encode(),
}


@pytest.mark.parametrize("name", BAD_RESETS)
def test_the_lease_in_an_answer_that_is_none_is_known_and_not_told(name: str) -> None:
    given = BAD_RESETS[name]
    assert lease_of(given, SERVER) == HELD
    for known in (None, HELD):
        with pytest.raises(EnvironmentCallError) as raised:
            result_of(HttpResponse(200, {}, given), SERVER, "reset", known)
        assert raised.value.kind is ErrorKind.ENVIRONMENT_ERROR and raised.value.retryable
        assert not any(ID[i : i + 6] in str(raised.value) for i in range(len(ID) - 6))


PRIVATE = {
    "goal": {"asin": "B0CANARY99", "attributes": ["CANARY red"]},
    "private_task_instruction": "CANARY: buy B0CANARY99",
    "reason_key": "CANARY",
}
PAGE = {"observation": "p", "observation_state": {"observation_version": "v"}, "task_instruction": "t"}
LEAKY = {
    "NaN": lambda: body(**PAGE, **PRIVATE, reward=float("nan")),
    "cut short": lambda: body(**PRIVATE, **PAGE)[:-40],
    "no result": lambda: json.dumps({**PRIVATE, "B0CANARY99": 1}).encode(),
    "another name": lambda: json.dumps({"data": {"result": PRIVATE}, "target": "B0CANARY99"}).encode(),
    "a list": lambda: json.dumps([PRIVATE]).encode(),
    "a string": lambda: json.dumps(f"CANARY {PRIVATE}").encode(),
    "a page of a debugger": lambda: f"<html><b>TypeError</b> item B0CANARY99 {PRIVATE}</html>".encode(),
    "an error with values": lambda: dumped({"error": f"KeyError in {PRIVATE}"}),
    "an error that is an object": lambda: dumped({"error": {"code": 3, "context": PRIVATE}}),
    "an error with a message": lambda: dumped({"error": {"message": f"no page, {PRIVATE}"}}),
    "a page that is an object": lambda: body(**{**PAGE, "observation": PRIVATE}),
    "a state that is a text": lambda: body(**{**PAGE, "observation_state": f"CANARY {PRIVATE}"}),
    "an index that is an object": lambda: dumped({**PAGE, "env_idx": PRIVATE, "lease_id": ID}),
    "a task that is an object": lambda: body(**PAGE, idx=PRIVATE),
}


@pytest.mark.parametrize("status", [200, 422, 500, 503])
@pytest.mark.parametrize("name", LEAKY)
async def test_no_word_of_a_solution_leaves_by_an_error_of_a_reset(name: str, status: int) -> None:
    answers = iter([HttpResponse(status, {}, LEAKY[name]())])
    transport = FakeTransport(lambda sent: next(answers, HttpResponse(200, {}, dumped({}))))
    shop = ShopSimulator([SERVER], transport=transport, timeouts=QUICK)
    episode = shop.open(JOB, SERVER, lambda event, lease: None, lambda: None)
    with pytest.raises(EnvironmentCallError) as raised:
        await episode.reset()
    assert "CANARY" not in str(raised.value) and ID not in str(raised.value) and f"{SERVER}: reset: " in str(raised.value)
    await episode.close()
    await shop.aclose()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "0 bytes, empty"),
        (b"upstream timed out", "18 bytes, no JSON"),
        (b" <!DOCTYPE html><p>x", "20 bytes, an HTML page"),
        (b"null", "4 bytes, null"),
        (b"[1]", "3 bytes, a list"),
        (b"true", "4 bytes, a boolean"),
        (b'{"detail": "Not Found"}', "23 bytes, an object with detail"),
        (b'{"code": 1, "B0X": 2, "message": "m"}', "37 bytes, an object with code, message and 1 more"),
        (b"{}", "2 bytes, an object with no plain key"),
    ],
)
def test_a_body_off_the_contract_is_told_by_its_kind(given: bytes, said: str) -> None:
    with pytest.raises(EnvironmentCallError) as raised:
        result_of(HttpResponse(502, {}, given), SERVER, "interact")
    assert str(raised.value) == f"{SERVER}: interact: HTTP 502 without a result object: {said}"
    assert raised.value.kind is ErrorKind.ENVIRONMENT_UNAVAILABLE


def test_an_error_that_the_server_words_is_told() -> None:
    for error in ("unknown or inactive task_id 3", {"message": "unknown or inactive task_id 3", "goal": 1}):
        with pytest.raises(EnvironmentCallError, match=r"reset: HTTP 500: unknown or inactive task_id 3$") as raised:
            result_of(HttpResponse(500, {}, dumped({"error": error})), SERVER, "reset")
        assert raised.value.kind is ErrorKind.ENVIRONMENT_REFUSED and not raised.value.retryable


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"<html>lease_id</html>",
        b'{"result": {"error": "no"}}',
        b'{"result": {"env_idx": 3}}',
        b'{"env_idx": 3, "lease_id": ""',
        b'{"env_idx": 1.5, "lease_id": "abc"',
        b'{"env_idx": true, "lease_id": "abc"',
        b'{"env_idx": 3, "lease_id": "\xff"',
        b'{"result": {"env_idx": 1180591620717411303424, "lease_id": "abc"}}',
    ],
)
def test_where_no_lease_is_none_is_made_up(given: bytes) -> None:
    assert lease_of(given, SERVER) is None


def test_an_escaped_lease_is_read_as_json_reads_it() -> None:
    assert lease_of(b'{"env_idx": -1, "lease_id": "a\\u0062\\"c\\ud800", ', SERVER) == Lease(SERVER, -1, 'ab"c�')


def test_lone_surrogates_are_replaced_and_nothing_else_is_let_pass() -> None:
    assert parsed(b'{"a": "\\ud800x", "\\udc00": ["\\ud83d\\ude00"]}') == {"a": "�x", "�": ["😀"]}
    assert parsed(b'{"a": "\xed\xa0\x80"}') == {"a": "�"}
    assert parsed(b'{"a": "\\ud800", "b": NaN}') is None
    assert parsed(b'{"a": "\\ud800"') is None
    assert parsed(b'{"b": Infinity}') is None


@given(st.text(max_size=60))
def test_a_value_with_surrogates_equals_the_value_without(text: str) -> None:
    assert parsed(json.dumps({"a": [text, "\ud800"]}).encode()) == {"a": [text, "�"]}


@pytest.mark.parametrize(
    "said",
    [
        f'{{"result": {{"lease_id": "{ID}", "x": 1}}}}',
        f'{{"lease_id":"{ID}',
        f"{{'env_idx': 3, 'lease_id': '{ID}'}}",
        f'{{\\"lease_id\\": \\"{ID}\\"}}',
        f"env_idx=3&lease_id={ID}&x=1",
        f"stale lease {ID}",
        f"Lease-ID: {ID}",
        f'LEASE ID = "{ID} and words"',
    ],
)
def test_an_error_quotes_no_lease_id_known_or_not(said: str) -> None:
    text = str(call_error(SERVER, "reset", said, ErrorKind.ENVIRONMENT_ERROR, True))
    assert ID[:8] not in text and ID[-8:] not in text and "***" in text


@pytest.mark.parametrize(
    "said", ["stale or invalid lease for environment 1", "release_one requires a valid env_idx and lease_id", "the lease's end"]
)
def test_what_is_no_lease_id_is_left(said: str) -> None:
    assert said in str(call_error(SERVER, "reset", said, ErrorKind.ENVIRONMENT_ERROR, True))


def test_a_known_lease_is_quoted_nowhere_and_a_long_error_is_cut() -> None:
    text = str(call_error(SERVER, "interact", f"token {ID}: " + "x" * 10**6, ErrorKind.ENVIRONMENT_ERROR, True, HELD))
    assert ID not in text and "token ***" in text and len(text) < 1000


async def played(server: ShopServer, action: str) -> tuple[EnvironmentCallError | None, list[str]]:
    """Reset and one action; -> what was raised, and what the lease listener heard."""
    heard: list[str] = []
    shop = ShopSimulator([server.url], transport=AiohttpTransport(), timeouts=QUICK)
    failure = None
    try:
        episode = shop.open(JOB, server.url, lambda event, lease: heard.append(event), lambda: None)
        try:
            await episode.reset()
            if action != "reset":
                await episode.step("search[x]")
        except EnvironmentCallError as error:
            failure = error
        await episode.close()
    finally:
        await shop.aclose()
    return failure, heard


def answering(server: ShopServer, action: str, made: Callable[[dict[str, Any]], bytes], chunked: bool = False) -> None:
    """Have ``action`` done by the server and ``made(result)`` answered."""

    async def override(sent: dict[str, Any]) -> web.StreamResponse | None:
        if sent["action"] != action:
            return None
        _, result = await server.done_as_asked(sent)
        response = web.Response(body=made(result), headers={"Content-Type": "application/json"})
        if chunked:
            response.enable_chunked_encoding()
        return response

    server.override = override


@pytest.mark.parametrize("action", ["reset", "interact"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_answer_that_is_too_large_uses_up_an_attempt_and_leaves_no_lease(action: str, chunked: bool) -> None:
    async with ShopServer(slots=1) as server:
        answering(server, action, lambda result: dumped({**result, "observation": "B" * MAX_PAGE_BYTES}), chunked)
        failure, heard = await played(server, action)
        assert failure is not None and failure.kind is ErrorKind.ENVIRONMENT_ERROR and failure.retryable
        assert "larger than 16777216 bytes" in str(failure)
        assert heard == ["held", "ended"] and server.free == {0}


async def test_a_lone_surrogate_on_a_page_ends_no_episode() -> None:
    async with ShopServer(slots=1) as server:
        answering(server, "reset", lambda result: dumped({**result, "observation": "\ud800 page"}))
        failure, heard = await played(server, "interact")
        assert failure is None and heard == ["held", "ended"] and server.free == {0}


async def test_a_reset_that_is_cut_short_gives_its_slot_back() -> None:
    async with ShopServer(slots=1) as server:
        answering(server, "reset", lambda result: dumped(result)[:-3])
        failure, heard = await played(server, "reset")
        assert failure is not None and failure.kind is ErrorKind.ENVIRONMENT_ERROR
        assert heard == ["held", "ended"] and server.free == {0}
