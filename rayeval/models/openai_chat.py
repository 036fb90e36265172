"""Chat models behind an OpenAI-compatible server: OpenAI, vLLM, SGLang, SiliconFlow and their like.

One call of ``generate`` is one turn. Each HTTP attempt ends in one of these ways:

    200                                    decoded (``_answer``); broken or not, it is the turn's answer
    400, 413, 422 about the context        a policy failure ``context_overflow``: the episode ends, scored
    408, 409, 429, 500, 502, 503, 504      thrown away and tried again: ``status_<n>``
    connect, timeout, disconnected         likewise; after the last two an answer may have been generated and lost
    larger than ``max_reply_bytes``        MODEL_REFUSED, final: asking again would cost as much and give the same
    anything else, redirects among it      MODEL_REFUSED, final

Attempts are ``model_attempts`` in total, each at most ``model_timeout_s`` long; none runs and none is waited for past
the request's deadline. The client keeps nothing of a conversation, changes no request and is shared by all
episodes of an actor.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import orjson

from rayeval.exceptions import (
    ConfigurationError,
    ConnectFailedError,
    EpisodeDeadlineError,
    ModelCallError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    TransportError,
)
from rayeval.models._answer import parse_clean, raw_body, read_answer
from rayeval.models._retry import RETRIED_STATUSES, AttemptObserver, Backoff, retry_after
from rayeval.models._secrets import Scrubber
from rayeval.models.base import ModelRequest
from rayeval.private_fields import without_solution
from rayeval.schemas import ErrorKind, JsonObject, ModelOutput, ModelRetry, ProtocolError, Termination
from rayeval.transport import MAX_REPLY_BYTES, HttpResponse, HttpTransport, public_url

_OVERFLOW_STATUSES = frozenset({400, 413, 422})
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size"
    r"|maximum context length|maximum model length|model'?s context length|available context size"
    r"|context (length|window|size) (is |was )?exceed|exceeds? (the |this )?(model'?s )?(maximum )?context"
    r"|(prompt|input|inputs|message|messages)\b.{0,60}\b(is|are) too long|max_seq_len|max_model_len"
    r"|range of input length should be|input token count .{0,40}exceeds",
    re.IGNORECASE,
)
_CONTEXT_LIMIT = re.compile(r"(?:maximum context length|maximum model length|model'?s context length)\D{0,12}([0-9]{1,9})", re.IGNORECASE)
_OWN_KEYS = frozenset({"model", "messages", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "seed", "stream", "n"})
_SHOWN_CHARS = 300
_CLOCK_SLACK_S = 0.005
"""Timers of an event loop may fire a millisecond early."""
_SEARCHED_CHARS = 4000
"""Where a server says that the context is exceeded; further on it would be an echo of the conversation."""


class _Attempt(NamedTuple):
    """How one HTTP attempt ended."""

    outcome: str
    """A word of ``AttemptObserver.after``."""
    response: HttpResponse | None
    said: str
    """Without a response: what the transport said."""
    retry_after_s: float | None


class OpenAIChat:
    """``ChatModel`` over ``POST {endpoint}/chat/completions``.

    ``endpoints``: base URLs with their ``/v1``. ``api_key_env``: environment variable that holds the key, read here and
    now. ``rng`` jitters the back-off; it is no part of any result. ``observer`` is told of each attempt.

    Raises ConfigurationError: no endpoint, an API key missing or unusable, ``extra_body`` with a key set elsewhere.
    """

    def __init__(
        self,
        *,
        name: str,
        endpoints: Sequence[str],
        transport: HttpTransport,
        checkpoint_id: str | None = None,
        api_key_env: str | None = None,
        temperature: float | None = 0.6,
        top_p: float | None = 1.0,
        max_tokens: int | None = 4096,
        send_seed: bool = True,
        tool_choice: str = "auto",
        extra_body: Mapping[str, Any] | None = None,
        model_attempts: int = 5,
        model_timeout_s: float = 180.0,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        backoff: Backoff | None = None,
        observer: AttemptObserver | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not endpoints:
            raise ConfigurationError("model.base_url", None, "give the URL of an OpenAI-compatible server, with its /v1")
        if model_attempts < 1:
            raise ConfigurationError("execution.model_attempts", model_attempts, "give 1 or more")
        if not model_timeout_s > 0:
            raise ConfigurationError("execution.model_timeout_s", model_timeout_s, "give more than 0 seconds")
        extra = dict(extra_body or {})
        if taken := sorted(_OWN_KEYS & extra.keys()):
            hint = "is set by the engine; use the key of its own under model where there is one"
            raise ConfigurationError(f"model.extra_body.{taken[0]}", extra[taken[0]], hint)
        key = _api_key(api_key_env)
        self._name = name
        self._endpoints = tuple(endpoints)
        self._transport = transport
        self._attempts = model_attempts
        self._timeout_s = model_timeout_s
        self._max_reply_bytes = max_reply_bytes
        self._max_tokens = max_tokens
        self._backoff = backoff if backoff is not None else Backoff()
        self._observer = observer
        self._rng = rng if rng is not None else random.Random()
        self._scrub = Scrubber(key)
        self._urls: dict[str, str] = {}
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

        sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        self._send_seed = send_seed
        self._identity: JsonObject = {"provider": "openai_chat", "model": name}
        if checkpoint_id is not None:
            self._identity["checkpoint_id"] = checkpoint_id
        self._identity["sampling"] = {
            **sampling,
            "send_seed": send_seed,
            "tool_choice": tool_choice,
            "extra_body": orjson.loads(orjson.dumps(extra)),
        }
        # A body is these pieces around messages, tools and seed: what does not change is encoded once.
        self._head = b'{"model":' + orjson.dumps(name) + b',"messages":['
        self._choice = b',"tool_choice":' + orjson.dumps(tool_choice)
        self._sampling = _members({k: v for k, v in sampling.items() if v is not None})
        self._tail = _members(extra) + b"}"

    def __repr__(self) -> str:
        return f"OpenAIChat({self._name!r}, {[public_url(e) for e in self._endpoints]})"

    def __reduce__(self) -> Any:
        raise TypeError("OpenAIChat holds an API key and is never pickled: build it where it is used")

    def identity(self) -> JsonObject:
        return orjson.loads(orjson.dumps(self._identity))  # type: ignore[no-any-return]

    def transport_identity(self) -> JsonObject:
        """``provenance.model.transport``: how the calls are made, no part of the plan.

        ``max_retries`` is the number of attempts in total, as in foreign traces."""
        return {
            "timeout_seconds": self._timeout_s,
            "max_retries": self._attempts,
            "retry_backoff_seconds": self._backoff.base_s,
        }

    def request_body(self, request: ModelRequest) -> bytes:
        """The JSON that is posted, keys always in one order; ``tools`` and ``tool_choice`` only with tools."""
        parts = [self._head, b",".join(request.messages), b"]"]
        if request.tools:
            tools = request.tools_json if request.tools_json is not None else orjson.dumps(list(request.tools))
            parts += (b',"tools":', tools, self._choice)
        parts.append(self._sampling)
        if self._send_seed:
            parts.append(b',"seed":%d' % request.seed)
        parts.append(self._tail)
        return b"".join(parts)

    async def generate(self, request: ModelRequest, endpoint: str | None = None) -> ModelOutput:
        """One turn. Raises ModelCallError (kind MODEL_UNAVAILABLE, may be tried again, or MODEL_REFUSED, may not), and
        EpisodeDeadlineError when the request's deadline is what ended it."""
        started = time.monotonic()
        target = endpoint if endpoint is not None else self._endpoints[0]
        body = self.request_body(request)
        retries: list[ModelRetry] = []
        said = "none was made"
        while True:
            waits = False
            if self._observer is not None:
                target = self._observer.route(target)
                waits = not self._observer.ready(target)
                if waits and not await _leave(self._observer, target, request.deadline):
                    self._out_of_time(target, retries, said)
            left_s = request.deadline - time.monotonic()
            if left_s <= 0 and not waits:
                self._out_of_time(target, retries, said)
            attempt = await self._attempt(target, body, max(0.0, min(self._timeout_s, left_s)))
            response = attempt.response
            if response is None:
                said = attempt.said
                if attempt.outcome == "too_large":
                    retries.append(ModelRetry("too_large", 0.0))
                    raise ModelCallError(said, ErrorKind.MODEL_REFUSED, False, tuple(retries))
            elif 200 <= response.status < 300:
                offered = [tool["function"]["name"] for tool in request.tools]
                latency_ms = (time.monotonic() - started) * 1e3
                metadata = self._metadata(response.headers)
                return read_answer(response.body, offered, self._scrub, latency_ms, tuple(retries), metadata)
            elif response.status not in RETRIED_STATUSES:
                return self._not_retried(target, response, started, tuple(retries))
            else:
                said = f"HTTP {response.status}: {self._one_line(response.body)}"

            last = len(retries) + 1 >= self._attempts
            wait_s = 0.0 if last else self._backoff.wait_s(len(retries) + 1, attempt.retry_after_s, self._rng)
            # An attempt that the deadline cut short is the deadline's failure, also when it was the last.
            if time.monotonic() + wait_s >= request.deadline - _CLOCK_SLACK_S:
                retries.append(ModelRetry(attempt.outcome, 0.0))
                self._out_of_time(target, retries, said)
            retries.append(ModelRetry(attempt.outcome, wait_s))
            if last:
                counted = ", ".join(f"{n} x {c}" for c, n in Counter(r.cause for r in retries).items())
                message = f"{public_url(target)}: no answer in {len(retries)} attempts ({counted}); last: {said}"
                raise ModelCallError(message, ErrorKind.MODEL_UNAVAILABLE, True, tuple(retries))
            await asyncio.sleep(wait_s)

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    async def _attempt(self, target: str, body: bytes, limit_s: float) -> _Attempt:
        url = self._urls.get(target)
        if url is None:
            url = self._urls[target] = f"{target.rstrip('/')}/chat/completions"
        attempt = _Attempt("cancelled", None, "", None)
        try:
            response = await self._transport.request("POST", url, body, self._headers, limit_s, self._max_reply_bytes)
            if 200 <= response.status < 300:
                attempt = _Attempt("answered", response, "", None)
            else:
                attempt = _Attempt(f"status_{response.status}", response, "", retry_after(response.headers))
        except TransportError as error:
            attempt = _Attempt(_cause(error), None, self._scrub.text(str(error)), None)
        finally:
            if self._observer is not None:
                self._observer.after(target, attempt.outcome, attempt.retry_after_s)
        return attempt

    def _not_retried(self, target: str, response: HttpResponse, started: float, retries: tuple[ModelRetry, ...]) -> ModelOutput:
        """A status that is final: the context overflow as an output, everything else raised as MODEL_REFUSED."""
        status, shown = response.status, self._one_line(response.body)
        hint = ""
        if 300 <= status < 400:
            hint = " (redirects are not followed: give the final URL as model.base_url)"
        elif status in (401, 403):
            hint = " (check model.api_key_env)"
        elif status in _OVERFLOW_STATUSES:
            payload = parse_clean(response.body, self._scrub)
            told = self._scrub.text(_error_words(payload, response.body))
            if _OVERFLOW.search(told):
                limit = _CONTEXT_LIMIT.search(told)
                if limit is None or self._max_tokens is None or self._max_tokens < int(limit[1]):
                    return ModelOutput(
                        content=None,
                        reasoning=None,
                        tool_calls=(),
                        finish_reason=None,
                        usage={},
                        response_id=None,
                        latency_ms=(time.monotonic() - started) * 1e3,
                        policy_failure=ProtocolError(Termination.CONTEXT_OVERFLOW.value, f"HTTP {status}: {shown}"),
                        raw_response=raw_body(response.body, payload, self._scrub),
                        retries=retries,
                        metadata=self._metadata(response.headers),
                    )
                # It would score every episode 0 at its first turn: the operator's mistake, not the policy's.
                hint = f" (model.max_tokens {self._max_tokens} leaves no room for a prompt: give less)"
        message = f"{public_url(target)}: refused with HTTP {status}{hint}: {shown}"
        raise ModelCallError(message, ErrorKind.MODEL_REFUSED, False, retries)

    def _out_of_time(self, target: str, retries: Sequence[ModelRetry], said: str) -> NoReturn:
        message = f"{public_url(target)}: the episode's deadline passed after {len(retries)} attempts at a model call"
        raise EpisodeDeadlineError(f"{message}; last: {said}", ErrorKind.EPISODE_TIMEOUT, True, tuple(retries))

    def _one_line(self, body: bytes) -> str:
        words = self._scrub.text(body.decode("utf-8", "replace"))
        shown = " ".join(without_solution(words[: 8 * _SHOWN_CHARS]).split())
        return shown[:_SHOWN_CHARS] if shown else "(empty body)"

    def _metadata(self, headers: Mapping[str, str]) -> JsonObject:
        request_id = headers.get("x-request-id")
        if not request_id:
            return {}
        # Header bytes beyond ASCII come as lone surrogates, which no JSON writer takes.
        return {"request_id": self._scrub.text(request_id.encode("ascii", "replace").decode())[:200]}


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigurationError("model.api_key_env", variable, f"the environment variable {variable} is not set: export it, or give null")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            "model.api_key_env",
            variable,
            f"the environment variable {variable} holds characters that no HTTP header takes: export the bare key",
        )
    return key


def _members(values: Mapping[str, Any]) -> bytes:
    """``,"a":1,"b":2``: the members of an object, to go after others."""
    return b"".join(b"," + orjson.dumps(key) + b":" + orjson.dumps(value) for key, value in values.items())


async def _leave(observer: AttemptObserver, target: str, deadline: float) -> bool:
    """Whether the observer let the attempt go ahead before the deadline."""
    bound = asyncio.timeout(deadline - time.monotonic())
    try:
        async with bound:
            await observer.before(target)
    except TimeoutError:
        if bound.expired():
            return False
        raise
    return True


def _cause(error: TransportError) -> str:
    match error:
        case ConnectFailedError():
            return "connect"
        case ReplyTimeoutError():
            return "timeout"
        case ReplyTooLargeError():
            return "too_large"
    return "disconnected"


def _error_words(payload: Any, body: bytes) -> str:
    """Code, type and message of an error body, wherever a dialect puts them; of a body that is no object, its start."""
    if not isinstance(payload, dict):
        return body[:_SEARCHED_CHARS].decode("utf-8", "replace")
    words = []
    for holder in (payload, payload.get("error"), payload.get("detail")):
        if isinstance(holder, str):
            words.append(holder)
        elif isinstance(holder, dict):
            words += [holder[k] for k in ("code", "type", "message", "msg") if isinstance(holder.get(k), str)]
    return "\n".join(word[:_SEARCHED_CHARS] for word in words)
