import asyncio
import pickle
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from rayeval.exceptions import (
    ConfigurationError,
    ConnectFailedError,
    EpisodeDeadlineError,
    EpisodeError,
    ModelCallError,
    ReplyLostError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    TransportError,
)
from rayeval.models import Backoff, ChatModel, ModelRequest, OpenAIChat, call, completion
from rayeval.schemas import ErrorKind, ModelOutput
from rayeval.transport import AiohttpTransport, FakeTransport, HttpResponse, SentRequest
from tests.models.servers import GOOD, TOOLS, Reply, chat_server

KEY = "sk-leak-9876543210abcdef"
QUICK = Backoff(base_s=0.002, cap_s=0.004, retry_after_cap_s=0.01)
URL = "http://model.test/v1"


@pytest.fixture
async def transport() -> AsyncIterator[AiohttpTransport]:
    made = AiohttpTransport()
    yield made
    await made.aclose()


@pytest.fixture
def api_key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_API_KEY", KEY)
    return "TEST_API_KEY"


def chat(transport: Any, url: str = URL, **settings: Any) -> OpenAIChat:
    settings = {"backoff": QUICK, "rng": random.Random(1), **settings}
    return OpenAIChat(name="m", endpoints=[url], transport=transport, **settings)


def request(deadline_s: float = 60, **changes: Any) -> ModelRequest:
    given: dict[str, Any] = {"messages": [b'{"role":"user","content":"\xe4\xbd\xa0\xe5\xa5\xbd"}'], "tools": TOOLS, "seed": 11}
    return ModelRequest(**{**given, **changes}, deadline=time.monotonic() + deadline_s)


def answering(*answers: HttpResponse | TransportError) -> FakeTransport:
    left = list(answers)

    def handler(sent: SentRequest) -> HttpResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    return FakeTransport(handler)


OK = HttpResponse(200, {}, GOOD)


def status(number: int, body: bytes = b"no", **headers: str) -> HttpResponse:
    return HttpResponse(number, {k.replace("_", "-"): v for k, v in headers.items()}, body)


async def test_a_turn_over_a_real_server(transport: AiohttpTransport, api_key: str) -> None:
    async with chat_server([Reply(headers={"X-Request-Id": "req-1"})]) as server:
        model = chat(transport, server.url + "/", api_key_env=api_key)
        output = await model.generate(request())
    assert isinstance(model, ChatModel)
    assert output.tool_calls[0].arguments == {"value": "Buy Now"} and output.retries == () and not output.resampled
    assert output.metadata == {"request_id": "req-1", "model": "scripted"} and output.latency_ms > 0
    sent = server.requests[0]
    assert sent["_path"] == "/v1/chat/completions" and sent["_headers"]["Authorization"] == f"Bearer {KEY}"
    assert sent["_headers"]["Content-Type"] == "application/json"
    assert sent["messages"] == [{"role": "user", "content": "你好"}] and sent["tools"] == TOOLS


def test_body_keys_and_order() -> None:
    model = chat(answering(OK), extra_body={"top_k": 20, "enable_thinking": True}, max_tokens=99)
    body = orjson.loads(model.request_body(request()))
    expected = ["model", "messages", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "seed", "top_k", "enable_thinking"]
    assert list(body) == expected
    assert (body["seed"], body["max_tokens"], body["top_k"], body["tool_choice"]) == (11, 99, 20, "auto")
    assert model.request_body(request()) == model.request_body(request(tools_json=orjson.dumps(TOOLS)))


def test_body_without_tools_seed_or_limits() -> None:
    model = chat(answering(OK), send_seed=False, temperature=None, top_p=None, max_tokens=None)
    assert list(orjson.loads(model.request_body(request(tools=[])))) == ["model", "messages"]


async def test_a_request_is_not_changed() -> None:
    given = request()
    before = (list(given.messages), orjson.dumps(given.tools), given.seed, given.deadline, dict(given.context))
    await chat(answering(status(500), OK)).generate(given)
    assert (list(given.messages), orjson.dumps(given.tools), given.seed, given.deadline, given.context) == before


async def test_retries_send_the_same_bytes_to_the_given_endpoint() -> None:
    fake = answering(status(503), ReplyLostError("gone"), OK)
    await chat(fake).generate(request(), "http://other.test/v1")
    assert len({s.body for s in fake.requests}) == 1 and len(fake.requests) == 3
    assert {s.url for s in fake.requests} == {"http://other.test/v1/chat/completions"}


@pytest.mark.parametrize(
    ("thrown", "cause", "resampled"),
    [(status(n), f"status_{n}", False) for n in (408, 409, 429, 500, 502, 503, 504)]
    + [
        (ConnectFailedError("x"), "connect", False),
        (ReplyTimeoutError("x"), "timeout", True),
        (ReplyLostError("x"), "disconnected", True),
    ],
)
async def test_what_is_tried_again(thrown: HttpResponse | TransportError, cause: str, resampled: bool) -> None:
    output = await chat(answering(thrown, thrown, OK)).generate(request())
    assert [r.cause for r in output.retries] == [cause, cause] and output.protocol_error is None
    assert all(0.001 <= r.waited_s <= 0.004 for r in output.retries) and output.resampled is resampled


async def test_attempts_are_a_total(api_key: str) -> None:
    fake = answering(status(500), ReplyTimeoutError("slow"), status(429, b"busy\n\n now"))
    with pytest.raises(ModelCallError) as caught:
        await chat(fake, model_attempts=3).generate(request())
    error = caught.value
    assert len(fake.requests) == 3 and error.kind is ErrorKind.MODEL_UNAVAILABLE and error.retryable
    assert [r.cause for r in error.retries] == ["status_500", "timeout", "status_429"]
    assert error.retries[-1].waited_s == 0.0 and "HTTP 429: busy now" in str(error)
    assert pickle.loads(pickle.dumps(error)).retries == error.retries


@pytest.mark.parametrize("number", [400, 401, 403, 404, 405, 413, 418, 422, 501])
async def test_other_statuses_are_final(number: int) -> None:
    fake = answering(status(number, b"line one\nline two " + b"x" * 999))
    with pytest.raises(ModelCallError) as caught:
        await chat(fake).generate(request())
    error = caught.value
    assert len(fake.requests) == 1 and error.kind is ErrorKind.MODEL_REFUSED and not error.retryable
    assert f"HTTP {number}" in str(error) and "line one line two" in str(error)
    assert len(str(error)) < 300 + 120 and "\n" not in str(error) and error.retries == ()


@pytest.mark.parametrize("number", [400, 422, 500])
async def test_an_echo_of_a_solution_stays_in_and_what_stands_before_it_is_told(number: int) -> None:
    body = orjson.dumps({"detail": [{"msg": "Field required", "input": {"page": "p", "goal": {"asin": "B0CANARY99"}}}]})
    with pytest.raises(ModelCallError) as caught:
        await chat(answering(status(number, body)), model_attempts=1).generate(request())
    assert "Field required" in str(caught.value) and "CANARY" not in str(caught.value)


@pytest.mark.parametrize("number", [301, 302, 307, 308])
async def test_redirects_are_refused(transport: AiohttpTransport, number: int) -> None:
    async with chat_server([Reply(number, b"", {"Location": "/v2/chat/completions"})]) as server:
        with pytest.raises(ModelCallError, match="redirects are not followed") as caught:
            await chat(transport, server.url).generate(request())
    assert len(server.requests) == 1 and caught.value.kind is ErrorKind.MODEL_REFUSED


async def test_too_large_is_final(transport: AiohttpTransport) -> None:
    async with chat_server([Reply(body=b"x" * 5000)]) as server:
        with pytest.raises(ModelCallError, match="larger than 4096 bytes") as caught:
            await chat(transport, server.url, max_reply_bytes=4096).generate(request())
    assert len(server.requests) == 1 and not caught.value.retryable
    assert [r.cause for r in caught.value.retries] == ["too_large"]


OVERFLOWS = {
    "openai": {"error": {"message": "Too many tokens.", "type": "invalid_request_error", "code": "context_length_exceeded"}},
    "vllm": {
        "object": "error",
        "message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
        "code": 400,
    },
    "vllm prompt": {"error": {"message": "The decoder prompt (length 9000) is longer than the maximum model length of 8192."}},
    "sglang": {"message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."},
    "sglang total": {"message": "Requested token count exceeds the model's maximum context length of 8192 tokens."},
    "siliconflow": {"code": 20015, "message": "length of prompt_tokens (9000) must be less than max_seq_len (8192)."},
    "llama.cpp": {"error": {"message": "request exceeds the available context size", "type": "exceed_context_size_error"}},
    "prompt too long": {"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}},
    "detail": {"detail": "Input is too long for the context window"},
}


@pytest.mark.parametrize("name", OVERFLOWS)
@pytest.mark.parametrize("number", [400, 413, 422])
async def test_context_overflow_ends_the_episode(name: str, number: int) -> None:
    fake = answering(status(500), status(number, orjson.dumps(OVERFLOWS[name])))
    output = await chat(fake).generate(request())
    assert output.policy_failure is not None and output.policy_failure.code == "context_overflow"
    assert output.protocol_error is None and output.raw_response == OVERFLOWS[name]
    assert len(fake.requests) == 2 and [r.cause for r in output.retries] == ["status_500"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>400 Bad Request</html>",
        orjson.dumps({"error": {"message": "max_tokens is too large: 4096. This model supports at most 2048 tokens"}}),
        orjson.dumps({"error": {"message": "bad tool schema"}, "echo": "the context length is exceeded"}),
    ],
)
async def test_other_400s_are_no_overflow(body: bytes) -> None:
    with pytest.raises(ModelCallError, match="HTTP 400"):
        await chat(answering(status(400, body))).generate(request())


async def test_max_tokens_beyond_the_context_is_a_mistake_of_the_configuration() -> None:
    answer = status(400, orjson.dumps(OVERFLOWS["vllm"]))
    with pytest.raises(ModelCallError, match=r"model\.max_tokens 8192 leaves no room"):
        await chat(answering(answer), max_tokens=8192).generate(request())


async def test_retry_after_is_waited_for() -> None:
    patient = Backoff(base_s=0.001, cap_s=0.001, retry_after_cap_s=0.05)
    output = await chat(answering(status(429, Retry_After="3600"), OK), backoff=patient).generate(request())
    assert 0.05 <= output.retries[0].waited_s < 0.06 and output.latency_ms >= 49


async def test_no_wait_runs_past_the_deadline() -> None:
    fake = answering(status(429, Retry_After="30"))
    started = time.monotonic()
    with pytest.raises(EpisodeDeadlineError) as caught:
        await chat(fake, backoff=Backoff()).generate(request(deadline_s=5))
    assert time.monotonic() - started < 4, "it ends at once, for nothing could come of waiting"
    assert len(fake.requests) == 1 and caught.value.kind is ErrorKind.EPISODE_TIMEOUT and caught.value.retryable
    assert [r.cause for r in caught.value.retries] == ["status_429"]
    assert pickle.loads(pickle.dumps(caught.value)).retries == caught.value.retries


async def test_an_attempt_is_held_to_the_deadline(transport: AiohttpTransport) -> None:
    async def hang(_: web.Request) -> Reply:
        await asyncio.sleep(30)
        return Reply()

    async with chat_server([hang]) as server:
        for attempts in (1, 5):
            with pytest.raises(EpisodeDeadlineError, match="deadline passed"):
                await chat(transport, server.url, model_attempts=attempts).generate(request(deadline_s=0.2))
        with pytest.raises(ModelCallError, match="2 x timeout"):
            await chat(transport, server.url, model_attempts=2, model_timeout_s=0.1).generate(request())


async def test_a_passed_deadline_sends_nothing() -> None:
    fake = answering(OK)
    with pytest.raises(EpisodeDeadlineError):
        await chat(fake).generate(request(deadline_s=-1))
    assert fake.requests == []


async def test_each_attempt_gets_the_lesser_time() -> None:
    fake = answering(OK)
    await chat(fake, model_timeout_s=7).generate(request(60))
    await chat(fake, model_timeout_s=70).generate(request(60))
    first, second = (s.timeout_s or 0 for s in fake.requests)
    assert first == 7 and 50 < second <= 60


async def test_broken_answers_are_not_asked_for_again() -> None:
    for body in (b"<html>", b"data: {}\n\n", completion({"role": "assistant", "content": "hello"})):
        fake = answering(HttpResponse(200, {}, body))
        output = await chat(fake).generate(request())
        assert output.protocol_error is not None and len(fake.requests) == 1


async def test_cancelling_passes() -> None:
    async def hang(_: SentRequest) -> HttpResponse:
        await asyncio.sleep(60)
        raise AssertionError

    for model in (chat(FakeTransport(hang)), chat(answering(status(500)), backoff=Backoff(30, 30))):
        task = asyncio.create_task(model.generate(request()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# The key never comes out.

LEAKS = {
    "401": (401, f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'.encode()),
    "401 as header text": (401, f"authorization: bearer {KEY}".encode()),
    "400 overflow": (400, f'{{"message": "maximum context length is 8 tokens, key {KEY}"}}'.encode()),
    "500": (500, f"Traceback: headers={{'Authorization': 'Bearer {KEY}'}}".encode()),
    "500 at the cut": (500, b"x" * 295 + KEY.encode()),
    "302": (302, KEY.encode()),
    "200 content": (200, completion({"role": "assistant", "content": KEY})),
    "200 call": (200, completion(call("click", {"value": KEY}, call_id=KEY, reasoning=KEY))),
    "200 not JSON": (200, f"<pre>Bearer {KEY}</pre>".encode()),
    "200 utf-16": (200, f"Bearer {KEY}".encode("utf-16")),
}


@pytest.mark.parametrize("name", LEAKS)
async def test_an_echo_of_the_key_stays_in(
    transport: AiohttpTransport, api_key: str, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    number, body = LEAKS[name]
    async with chat_server([Reply(number, body, {"X-Request-Id": f"id-{KEY}"})]) as server:
        model = chat(transport, server.url, api_key_env=api_key, model_attempts=2, max_tokens=4)
        outcome: ModelOutput | EpisodeError
        try:
            outcome = await model.generate(request())
        except EpisodeError as error:
            outcome = error
            assert error.__cause__ is None and error.__context__ is None
            assert KEY.encode() not in pickle.dumps(error)
    assert server.requests[0]["_headers"]["Authorization"] == f"Bearer {KEY}"
    everything = repr(outcome) + str(outcome) + repr(model) + repr(model.identity()) + caplog.text + "".join(capfd.readouterr())
    assert KEY not in everything and KEY[:10] not in everything.replace("\\x00", "")


async def test_the_key_stays_in_when_the_network_fails(transport: AiohttpTransport, api_key: str) -> None:
    with pytest.raises(ModelCallError) as caught:
        await chat(transport, f"http://u:{KEY}@127.0.0.1:1/v1", api_key_env=api_key, model_attempts=2).generate(request())
    assert KEY not in str(caught.value) + repr(caught.value)
    assert [r.cause for r in caught.value.retries] == ["connect", "connect"]


def test_a_missing_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "  \n"):
        monkeypatch.delenv("ABSENT_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("ABSENT_KEY", value)
        with pytest.raises(ConfigurationError, match="ABSENT_KEY is not set"):
            chat(answering(OK), api_key_env="ABSENT_KEY")


@pytest.mark.parametrize("key", ["sk-a b", "sk-a\r\nX: 1", "sk-é"])
def test_a_key_no_header_takes_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("ODD_KEY", key)
    with pytest.raises(ConfigurationError, match="ODD_KEY") as caught:
        chat(answering(OK), api_key_env="ODD_KEY")
    assert "sk-" not in str(caught.value)


def test_is_never_pickled(api_key: str) -> None:
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(chat(answering(OK), api_key_env=api_key))


def test_identity(api_key: str) -> None:
    extra: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    model = chat(answering(OK), api_key_env=api_key, extra_body=extra)
    sampling = {
        "temperature": 0.6,
        "top_p": 1.0,
        "max_tokens": 4096,
        "send_seed": True,
        "tool_choice": "auto",
        "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
    }
    assert model.identity() == {"provider": "openai_chat", "model": "m", "sampling": sampling}
    extra["chat_template_kwargs"]["enable_thinking"] = False
    model.identity()["sampling"]["temperature"] = 9
    assert model.identity()["sampling"] == sampling
    assert chat(answering(OK), checkpoint_id="step-9").identity()["checkpoint_id"] == "step-9"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"extra_body": {"stream": True}}, "model.extra_body.stream"),
        ({"extra_body": {"messages": []}}, "model.extra_body.messages"),
        ({"model_attempts": 0}, "execution.model_attempts"),
        ({"model_timeout_s": 0}, "execution.model_timeout_s"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        chat(answering(OK), **settings)
    assert caught.value.field == field


def test_without_an_endpoint_there_is_no_client() -> None:
    with pytest.raises(ConfigurationError, match=r"model\.base_url"):
        OpenAIChat(name="m", endpoints=[], transport=answering(OK))


class Watch:
    def __init__(self, patience_s: float = 0.0) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.patience_s = patience_s

    def route(self, endpoint: str) -> str:
        return endpoint

    def ready(self, endpoint: str) -> bool:
        return False

    async def before(self, endpoint: str) -> None:
        await asyncio.sleep(self.patience_s)
        self.seen.append(("before", endpoint))

    def after(self, endpoint: str, outcome: str, retry_after_s: float | None) -> None:
        self.seen.append(("after", outcome, retry_after_s))


async def test_an_observer_sees_every_attempt() -> None:
    watch = Watch()
    fake = answering(status(429, Retry_After="0"), ConnectFailedError("x"), ReplyLostError("x"), OK)
    await chat(fake, observer=watch).generate(request())
    assert watch.seen[0] == ("before", URL) and watch.seen[::2] == [("before", URL)] * 4
    outcomes = [("after", "status_429", 0.0), ("after", "connect", None), ("after", "disconnected", None)]
    assert watch.seen[1::2] == [*outcomes, ("after", "answered", None)]


async def test_an_observer_is_told_of_an_answer_too_large_and_of_a_cancelled_attempt() -> None:
    watch = Watch()
    with pytest.raises(ModelCallError):
        await chat(answering(ReplyTooLargeError("x")), observer=watch).generate(request())

    async def hang(_: SentRequest) -> HttpResponse:
        await asyncio.sleep(60)
        raise AssertionError

    task = asyncio.create_task(chat(FakeTransport(hang), observer=watch).generate(request()))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [s[1] for s in watch.seen if s[0] == "after"] == ["too_large", "cancelled"]


async def test_an_observer_is_held_to_the_deadline() -> None:
    watch, fake = Watch(patience_s=60), answering(OK)
    with pytest.raises(EpisodeDeadlineError):
        await chat(fake, observer=watch).generate(request(deadline_s=0.05))
    assert fake.requests == [] and watch.seen == []


async def test_odd_header_bytes_do_no_harm() -> None:
    output = await chat(answering(HttpResponse(200, {"x-request-id": "r\udcff"}, GOOD))).generate(request())
    orjson.dumps(output.metadata)


async def test_closing_closes_the_transport() -> None:
    fake = answering(OK)
    await chat(fake).aclose()
    assert fake.closed
