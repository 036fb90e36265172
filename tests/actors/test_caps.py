import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from actors.caps import Caps
from rayeval.costs import Prices
from rayeval.environments.fake import FakeCall
from rayeval.exceptions import RefusedError
from rayeval.schemas import ExitCode, FinishedTrace
from tests.actors.fields import Field, field

PRICES = Prices(1_000_000.0, 2_000_000.0, currency="EUR")
"""A unit a prompt token, two a completion token."""


async def slow(call: FakeCall) -> None:
    await asyncio.sleep(0.01)


def pay(f: Field, prompt: int, completion: int) -> None:
    """Every durable trace counts as so many tokens: the scripted model says nothing of them."""

    def counted(trace: FinishedTrace) -> None:
        f.ledger.totals.update({"tokens": prompt + completion, "prompt_tokens": prompt, "completion_tokens": completion})

    f.ledger.on_counted.append(counted)


async def drained(f: Field, caps: Caps) -> ExitCode | None:
    f.pool._governors.append(caps)
    return await f.run()


async def test_tokens_end_the_run_before_all_of_it_is_done(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=60, hook=slow) as f:
        pay(f, 90, 10)
        assert await drained(f, Caps(max_tokens_total=500)) == ExitCode.REFUSED
        assert 5 <= f.ledger.done < 60 and f.queue.waiting
        assert str(f.pool.reason).startswith("execution.max_tokens_total = 500 is reached: ")


async def test_cost_ends_it_too(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=60, hook=slow) as f:
        pay(f, 1, 1)
        assert await drained(f, Caps(max_cost=15.0, prices=PRICES)) == ExitCode.REFUSED
        assert "EUR are used" in str(f.pool.reason) and f.ledger.done >= 5


async def test_time_ends_it_too(tmp_path: Path) -> None:
    hang: Any = lambda call: asyncio.sleep(3600.0) if call.name == "step" else None  # noqa: E731
    async with field(tmp_path, tasks=8, hook=hang, grace_s=0.1) as f:
        assert await drained(f, Caps(max_wall_s=30.0, started=time.monotonic() - 29.5)) == ExitCode.REFUSED
        assert f.pool.reason == "execution.max_wall_s = 30 is reached" and not f.world.held


async def test_the_reason_at_the_end_says_what_was_used_then(tmp_path: Path) -> None:
    for k, (caps, used) in enumerate([(Caps(max_tokens_total=500), "{} tokens"), (Caps(max_cost=700.0, prices=PRICES), "{}.00 EUR")]):
        async with field(tmp_path / str(k), tasks=60, slots=8, hook=slow) as f:
            pay(f, 90, 10)
            assert caps.reason_at_end(None, f.ledger) is None
            await drained(f, caps)
            cost = 100 if k == 0 else 110
            end = used.format(f.ledger.done * cost)
            assert caps.reason_at_end(f.pool.reason, f.ledger) == f"{f.pool.reason}, and {end} with the episodes that were in flight"
            assert caps.reason_at_end("another", f.ledger) == "another"


async def test_earlier_invocations_count(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=60, hook=slow) as f:
        pay(f, 90, 10)
        caps = Caps(max_tokens_total=1000, before={"tokens": 900})
        caps.refuse_if_reached()
        assert await drained(f, caps) == ExitCode.REFUSED
        assert caps.tokens(f.ledger)["tokens"] >= 1000


def test_a_cap_that_is_used_up_refuses_the_start() -> None:
    with pytest.raises(RefusedError, match=r"max_tokens_total = 10 is reached: 11 tokens .* raise the cap"):
        Caps(max_tokens_total=10, before={"tokens": 11}).refuse_if_reached()
    with pytest.raises(RefusedError, match="max_cost"):
        Caps(max_cost=3.0, prices=PRICES, before={"prompt_tokens": 1, "completion_tokens": 1}).refuse_if_reached()


async def test_a_cap_that_is_reached_when_nothing_waits_stops_nothing(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=4, slots=8, hook=slow) as f:
        pay(f, 100, 0)
        f.pool._governors.append(Caps(max_tokens_total=1))
        await f.run()
        assert f.ledger.done == 4


async def test_without_caps_nothing_is_stopped(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=12) as f:
        pay(f, 1000, 1000)
        assert await drained(f, Caps(prices=PRICES)) is None
        assert f.ledger.done == 12


async def test_a_server_that_counts_no_tokens_is_told_of_once(tmp_path: Path) -> None:
    async with field(tmp_path, tasks=80, hook=slow) as f:
        assert await drained(f, Caps(max_tokens_total=1000)) is None
        assert [text for _, text in f.notes if "no token usage" in text] == [
            "the model server reports no token usage: execution.max_tokens_total will not be reached"
        ]
