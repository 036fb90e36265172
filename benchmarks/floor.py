"""The floor: the requests of a finished run, sent again by the least code that can send them.

    python -m benchmarks.floor RUN_DIR SHOP_URL MODEL_URL [--concurrency 64] [--client aiohttp|raw]

One asyncio process on uvloop with one aiohttp session, or with the raw client of ``raw_client.py``. For each episode of the run, in the
order in which they started: the same reset, the same model request bodies byte for byte, the same actions under the new lease, the same
release. It reads every answer, checks its status, parses what names the lease or says ``done``, and writes nothing. Bodies are rebuilt
before the clock starts. Prints one JSON line; in it, ``ideal_wall_s`` is what the model calls that were seen would take if each place
in flight took its next call, and its next episode, at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import heapq
import json
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson
import uvloop

from benchmarks.raw_client import RawClient
from rayeval.hashing import step_seed
from rayeval.models import ModelRequest, OpenAIChat
from rayeval.store import iter_traces
from rayeval.transport import FakeTransport, HttpResponse, SentRequest

Post = Callable[[str, bytes], Awaitable[bytes]]


class Turn(NamedTuple):
    """One model call and what followed it."""

    body: bytes
    action: str | None
    """Sent to the environment; None after a protocol error."""


class Episode(NamedTuple):
    """What one episode sent."""

    reset: bytes
    turns: list[Turn]
    terminate: str | None
    """Reason of a termination that the run asked for."""


def episodes_of(run_dir: Path) -> list[Episode]:
    """Rebuild what was sent from the traces, in the order of their starts. Raises ValueError for a run with failed or repeated attempts:
    it sent more than it kept."""
    started = [(trace["started_at"], _episode(trace)) for trace in iter_traces(run_dir / "traces.jsonl")]
    return [episode for _, episode in sorted(started, key=lambda pair: str(pair[0]))]


def _episode(trace: dict[str, Any]) -> Episode:
    if trace["status"] != "completed" or trace["attempt"] != 1:
        raise ValueError(f"{trace['episode_id']}: attempt {trace['attempt']}, {trace['status']}: only clean runs can be replayed")
    job, provenance = trace["job"], trace["provenance"]
    reset = {
        "action": "reset",
        "idx": job["task_id"],
        "if_persona": provenance["environment"]["persona"],
        "include_private_goal": False,
        "interaction_mode": provenance["environment"]["interaction_mode"],
    }
    model = _client(provenance["model"])
    messages = [orjson.dumps(message) for message in trace["conversation"]]
    turns: list[Turn] = []
    seen = 2  # the system message and the first user message
    for step in trace["steps"]:
        request = ModelRequest(messages[:seen], step["tools"], step_seed(job["seed"], step["step_index"]), deadline=0.0)
        action = None
        if step["environment"] is not None:
            action = step.get("sent_action", step["action"])
        turns.append(Turn(model.request_body(request), action))
        seen += _added(step)
    last = trace["steps"][-1]["environment"]
    ended_itself = last is not None and last["done"]
    return Episode(orjson.dumps(reset), turns, None if ended_itself else trace["final"]["termination_reason"])


def _client(model: dict[str, Any]) -> OpenAIChat:
    """The run's own client, for its ``request_body``; it sends nothing here."""
    key = json.dumps({"model": model["model"], **model["sampling"]}, sort_keys=True)
    if key not in _clients:
        _clients[key] = OpenAIChat(
            name=model["model"], endpoints=("http://nowhere",), transport=FakeTransport(_silent), **model["sampling"]
        )
    return _clients[key]


_clients: dict[str, OpenAIChat] = {}


def _silent(_: SentRequest) -> HttpResponse:
    raise RuntimeError("the replay's model client is never asked")


def _added(step: dict[str, Any]) -> int:
    """Messages that a turn added to the conversation."""
    if step["environment"] is not None:
        return 2
    calls = len(step["model"]["tool_calls"])
    if calls:
        return 1 + calls
    content = step["model"]["content"]
    return 2 if content is not None and content.strip() else 1


@contextlib.asynccontextmanager
async def _aiohttp() -> AsyncIterator[Post]:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:

        async def post(url: str, body: bytes) -> bytes:
            async with session.post(url, data=body) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(f"{url}: {response.status} {answer[:200]!r}")
                return answer

        yield post


@contextlib.asynccontextmanager
async def _raw() -> AsyncIterator[Post]:
    client = RawClient()
    yield client.post
    await client.aclose()


_CLIENTS = {"aiohttp": _aiohttp, "raw": _raw}


async def replay(episodes: list[Episode], shop: str, model: str, concurrency: int, client: str = "aiohttp") -> dict[str, float]:
    """Send everything; -> wall, CPU and ideal wall in seconds. Raises RuntimeError at the first answer that is not a 200."""
    shop_url, model_url = f"{shop}/api/shop_agent", f"{model}/chat/completions"
    durations: list[float] = [0.0] * len(episodes)
    async with _CLIENTS[client]() as post:

        async def shop_call(**fields: Any) -> Any:
            return orjson.loads(await post(shop_url, orjson.dumps(fields)))["result"]

        async def worker(queue: Iterator[tuple[int, Episode]]) -> None:
            for k, episode in queue:
                started = orjson.loads(await post(shop_url, episode.reset))["result"]
                lease = {"env_idx": started["env_idx"], "lease_id": started["lease_id"]}
                done = False
                for turn in episode.turns:
                    asked = time.monotonic()
                    await post(model_url, turn.body)
                    durations[k] += time.monotonic() - asked
                    if turn.action is not None:
                        done = (await shop_call(action="interact", **lease, response=turn.action))["done"]
                if episode.terminate is not None:
                    done = (await shop_call(action="terminate", **lease, termination_reason=episode.terminate))["done"]
                if not done:
                    raise RuntimeError("a replayed episode did not end where the run's did")
                await shop_call(action="release_one", **lease)

        queue = iter(enumerate(episodes))
        gc.collect()
        gc.freeze()  # else each collection would walk every body that waits to be sent
        wall, cpu = time.monotonic(), _cpu()
        await asyncio.gather(*(worker(queue) for _ in range(concurrency)))
        return {"wall_s": time.monotonic() - wall, "cpu_s": _cpu() - cpu, "ideal_wall_s": ideal_wall_s(durations, concurrency)}


def ideal_wall_s(durations: list[float], places: int) -> float:
    """List scheduling in the given order: each of ``places`` takes the next episode the moment its last one is over."""
    free = [0.0] * places
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("shop")
    parser.add_argument("model")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--client", choices=sorted(_CLIENTS), default="aiohttp")
    options = parser.parse_args()
    episodes = episodes_of(options.run_dir)
    measured = uvloop.run(replay(episodes, options.shop, options.model, options.concurrency, options.client))
    steps = sum(len(e.turns) for e in episodes)
    sent = sum(len(t.body) for e in episodes for t in e.turns)
    print(json.dumps({**measured, "episodes": len(episodes), "steps": steps, "model_request_bytes": sent}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
