"""An OpenAI-compatible chat server with scripted shoppers behind it, in the shapes that vLLM gives.

An answer depends on the request alone: ids and ``created`` are functions of it as well, so that two servers give
equal bytes.

Invariants: ``_busy`` counts requests that hold a slot; a request that ends hands its slot to the longest waiting one
before anything else can take it. A client that leaves cancels its request, as vLLM aborts it, and its slot or place
in the queue is given up.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import zlib
from collections import deque
from collections.abc import Callable

import orjson
from aiohttp import web

from rayeval.demo import policy
from rayeval.demo.faults import Latency, Refusals, u01
from rayeval.demo.options import DemoOptions
from rayeval.demo.policy import Answer, Habits
from rayeval.demo.serving import Tally, plain_json
from rayeval.schemas import JsonObject

MODELS: dict[str, Habits | None] = {"scripted": policy.SCRIPTED, "scripted-careful": policy.CAREFUL, "random": None}
"""Model name -> habits; None clicks at random."""
CREATED = 1_750_000_000
COUNTERS = (
    "requests",
    "ok",
    "bad_requests",
    "request_bytes",
    "prompt_tokens",
    "completion_tokens",
    "refused_full",
    "refused_key",
    "context_overflow",
    "client_disconnects",
    "fault_429",
    "fault_500",
    "fault_hang",
    "fault_malformed",
    "fault_length",
)
GAUGES = ("in_flight", "queued")


def _error(status: int, text: str, kind: str, retry_after: float | None = None) -> web.Response:
    headers = None if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    payload = {"error": {"message": text, "type": kind, "param": None, "code": status}}
    return plain_json(payload, status, headers)


def _tokens(text: str | None) -> int:
    return 0 if not text else 1 + len(text.encode("utf-8", "surrogatepass")) // 3


def completion(name: str, answer: Answer, key: str, prompt_bytes: int) -> JsonObject:
    """A chat completion; ``key`` makes its ids."""
    digest = hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
    calls = [
        {"id": f"call_{digest}_{i}", "type": "function", "function": {"name": tool, "arguments": raw}}
        for i, (tool, raw) in enumerate(answer.calls)
    ]
    reasoning = _tokens(answer.reasoning)
    written = reasoning + _tokens(answer.content) + sum(8 + _tokens(raw) for _, raw in answer.calls)
    prompt = 1 + prompt_bytes // 3
    return {
        "id": f"chatcmpl-{digest}",
        "object": "chat.completion",
        "created": CREATED,
        "model": name,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": answer.content,
                    "reasoning_content": answer.reasoning,
                    "tool_calls": calls,
                },
                "logprobs": None,
                "finish_reason": answer.finish_reason,
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": None,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        },
    }


class ModelServer:
    """Handler of the model's port."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._latency = Latency.parse(options.model_latency, "model_latency")
        self._refusals = Refusals(options.fault_seed)
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.tally = Tally(COUNTERS, GAUGES)
        self._clock()

    def _clock(self) -> None:
        self._since = self._ticked = time.monotonic()
        self._busy_s = 0.0

    def reset_stats(self) -> None:
        """Counters, peaks and refusals from the start."""
        self.tally.reset()
        self._refusals.clear()
        self._clock()

    def stats(self) -> JsonObject:
        """Counters and gauges with peaks; ``utilisation`` is the busy share of the slots (None without a limit)."""
        self._occupy(0)
        wall, slots = self._ticked - self._since, self._options.model_slots
        return {
            **self.tally.to_json(),
            "slots": slots,
            "busy_slot_seconds": self._busy_s,
            "utilisation": self._busy_s / (wall * slots) if slots and wall else None,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request of the model's port, ``/stats`` excepted."""
        route = request.method, request.path
        if route == ("POST", "/v1/chat/completions"):
            return await self._chat(request)
        if route == ("GET", "/v1/models"):
            data = [{"id": name, "object": "model", "created": CREATED, "owned_by": "rayeval-demo"} for name in MODELS]
            return plain_json({"object": "list", "data": data})
        if route in (("GET", "/health"), ("GET", "/healthz")):
            return plain_json({"ready": True})
        return plain_json({"detail": "Not Found"}, 404)

    async def _chat(self, request: web.BaseRequest) -> web.Response:
        self.tally.add("requests")
        try:
            return await self._complete(request)
        except asyncio.CancelledError:
            self.tally.add("client_disconnects")
            raise

    async def _complete(self, request: web.BaseRequest) -> web.Response:
        options = self._options
        raw = await request.read()
        self.tally.add("request_bytes", len(raw))
        if options.echo_key or options.echo_key_500:
            self.tally.add("refused_key")
            text = f"Incorrect API key provided: {request.headers.get('Authorization', '')}"
            return _error(500 if options.echo_key_500 else 401, text, "authentication_error")
        body = self._checked(raw)
        if isinstance(body, web.Response):
            self.tally.add("bad_requests")
            return body
        seed, turn = body.get("seed"), len(body["messages"])
        key = (seed if seed is not None else zlib.crc32(raw), turn)
        refused = self._refused(key, len(raw))
        if refused is not None:
            return refused
        if options.model_slots and self._busy >= options.model_slots and options.model_full == "429":
            self.tally.add("refused_full")
            return _error(429, "every slot is busy", "rate_limit_error", options.retry_after)
        await self._take_slot()
        try:
            if self._refusals.strikes("hang", options.fault_hang, *key):
                self.tally.add("fault_hang")
                await asyncio.sleep(options.hang_s)
                return _error(504, "demo fault: the model hung", "server_error")
            delay = self._latency.draw(*key)
            if delay > 0:
                await asyncio.sleep(delay)
            return self._respond(body, seed, key, len(raw))
        finally:
            self._leave_slot()

    def _checked(self, raw: bytes) -> JsonObject | web.Response:
        try:
            body = orjson.loads(raw)
        except ValueError as exc:
            return _error(400, f"the body is not JSON: {exc}", "BadRequestError")
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            return _error(400, "messages: give a non-empty list of objects", "BadRequestError")
        tools = body.get("tools")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
            return _error(400, "tools: give a list of objects", "BadRequestError")
        if body.get("seed") is not None and type(body["seed"]) is not int:
            return _error(400, "seed: give an integer", "BadRequestError")
        if body.get("stream"):
            return _error(400, "stream: this server does not stream", "BadRequestError")
        name = body.get("model")
        if not isinstance(name, str) or name not in MODELS:
            return _error(404, f"The model `{name}` does not exist; served are {', '.join(MODELS)}.", "NotFoundError")
        return dict(body)

    def _refused(self, key: tuple[int, int], size: int) -> web.Response | None:
        options = self._options
        if self._refusals.strikes("429", options.fault_429, *key):
            self.tally.add("fault_429")
            return _error(429, "demo fault: rate limit", "rate_limit_error", options.retry_after)
        if self._refusals.strikes("500", options.fault_500, *key):
            self.tally.add("fault_500")
            return _error(500, "demo fault: the model failed", "server_error")
        if options.model_context and size // 3 >= options.model_context:
            self.tally.add("context_overflow")
            limit = options.model_context
            text = f"This model's maximum context length is {limit} tokens. However, you requested {size // 3} tokens."
            return _error(400, text, "BadRequestError")
        return None

    def _occupy(self, delta: int) -> None:
        now = time.monotonic()
        self._busy_s += self._busy * (now - self._ticked)
        self._ticked = now
        self._busy += delta
        if delta:
            self.tally.move("in_flight", delta)

    async def _take_slot(self) -> None:
        if not self._options.model_slots or self._busy < self._options.model_slots:
            self._occupy(+1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.tally.move("queued", +1)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot had just been handed over
                self._leave_slot()
            raise
        finally:
            self.tally.move("queued", -1)

    def _leave_slot(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the slot changes hands, the count stays
                return
        self._occupy(-1)

    def _respond(self, body: JsonObject, seed: int | None, key: tuple[int, int], size: int) -> web.Response:
        options = self._options
        heard = None if options.ignore_seed else seed
        answer = policy.shop(body["messages"], body.get("tools") or (), heard, MODELS[body["model"]])
        payload: JsonObject | None = None
        if options.fault_length and u01("length", options.fault_seed, *key) < options.fault_length:
            self.tally.add("fault_length")
            answer = Answer(None, answer.reasoning, (), "length")
        elif answer.calls and options.fault_malformed:
            luck = u01("malformed", options.fault_seed, *key)
            if luck < options.fault_malformed:
                self.tally.add("fault_malformed")
                kind = _MALFORMED[int(u01("which malformed", options.fault_seed, *key) * len(_MALFORMED))]
                broken = kind(answer)
                if isinstance(broken, Answer):
                    answer = broken
                else:
                    payload = broken
        if payload is None:
            payload = completion(body["model"], answer, f"{key}{answer.calls}", size)
            self.tally.add("prompt_tokens", payload["usage"]["prompt_tokens"])
            self.tally.add("completion_tokens", payload["usage"]["completion_tokens"])
        self.tally.add("ok")
        if payload is _NOT_JSON:
            return web.Response(body=b'{"id": "chatcmpl-cut", "choices": [', content_type="application/json")
        return plain_json(payload)


_NOT_JSON: JsonObject = {}


def _with_arguments(answer: Answer, change: Callable[[str], str]) -> Answer:
    tool, raw = answer.calls[0]
    return answer._replace(calls=((tool, change(raw)),))


_MALFORMED: tuple[Callable[[Answer], Answer | JsonObject], ...] = (
    lambda a: Answer(f"Action: {a.calls[0][0]}", a.reasoning, (), "stop"),
    lambda a: Answer(None, a.reasoning, (), "stop"),
    lambda a: a._replace(calls=(a.calls[0], a.calls[0])),
    lambda a: a._replace(calls=(("finish", "{}"),)),
    lambda a: _with_arguments(a, lambda raw: raw[:-1]),
    lambda a: _with_arguments(a, lambda raw: f"[{raw}]"),
    lambda a: _with_arguments(a, lambda raw: '{"text": "wrong key"}'),
    lambda a: {"id": "chatcmpl-none", "object": "chat.completion", "choices": []},
    lambda a: _NOT_JSON,
)
"""No call; nothing at all; two calls; a tool that is not offered; arguments cut off, no object, of another shape; no
choices; no JSON."""
