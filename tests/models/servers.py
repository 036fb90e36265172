"""A chat server that answers from a list."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from rayeval.models import call, completion

GOOD = completion(call("click", {"value": "Buy Now"}), usage={"prompt_tokens": 7, "completion_tokens": 3})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "click",
            "parameters": {"type": "object", "properties": {"value": {"type": "string", "enum": ["a"]}}},
        },
    }
]


class Reply(NamedTuple):
    status: int = 200
    body: bytes = GOOD
    headers: Mapping[str, str] = MappingProxyType({})


Answer = Reply | Callable[[web.Request], Awaitable[Reply]]


class ChatServer(NamedTuple):
    url: str
    requests: list[dict[str, Any]]
    """Bodies received, parsed, with ``_headers`` and ``_path``."""


@asynccontextmanager
async def chat_server(answers: Sequence[Answer]) -> AsyncIterator[ChatServer]:
    """The n-th request gets the n-th answer, later ones the last."""
    requests: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        requests.append({**body, "_headers": request.headers.copy(), "_path": request.path})
        answer = answers[min(len(requests), len(answers)) - 1]
        reply = answer if isinstance(answer, Reply) else await answer(request)
        return web.Response(status=reply.status, body=reply.body, headers=reply.headers)

    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield ChatServer(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests)
    finally:
        await runner.cleanup()
