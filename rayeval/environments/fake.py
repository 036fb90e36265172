"""An environment without a server, for tests of runtimes and for trying a pipeline: deterministic, in process, scriptable.

The world has four pages: home, results, product, done. A search leads from home to three products, a click on one to its page, where
one option must be chosen before ``buy now``. The reward is 1.0 for the product that the task asks for, else 0.0. Invalid actions change
nothing and count; after ``action_limit`` actions the environment ends the episode itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from rayeval.environments.base import LeaseListener
from rayeval.environments.timeouts import EnvironmentTimeouts
from rayeval.exceptions import ConfigurationError, EnvironmentCallError
from rayeval.schemas import EnvironmentIdentity, EpisodeJob, ErrorKind, JsonObject, Lease, ServerCapacity

OBSERVATION_VERSION = "fake-observation-v1"
REWARD_VERSION = "fake-reward-v1"
ENVIRONMENT_VERSION = "fake-shop-v1"
BACK, BUY = "back to search", "buy now"
_OPTIONS = ("颜色=白", "颜色=黑")


class FakeCall(NamedTuple):
    """One call of an episode, as the hook sees it before it happens."""

    name: str
    """reset, step, terminate or close."""
    job: EpisodeJob
    server: str
    argument: str | None
    """The action, or the reason of a termination."""
    number: int
    """How many calls of this name and job came before, over all episodes of this environment."""


Hook = Callable[[FakeCall], JsonObject | Awaitable[JsonObject | None] | None]
"""May raise (the call fails), sleep, or return a result to give in place of the real one; None lets the call happen."""


class FakeEnvironment:
    """``FakeEnvironment(hook=...)``, or ``environment.kind: rayeval.environments.FakeEnvironment`` with ``options``:
    ``slots`` (64), ``delay_s`` of each call (0), ``action_limit`` (30)."""

    def __init__(
        self,
        base_urls: Sequence[str] = (),
        persona: bool = False,
        options: JsonObject | None = None,
        timeouts: EnvironmentTimeouts | None = None,
        *,
        hook: Hook | None = None,
    ) -> None:
        given = {"slots": 64, "delay_s": 0.0, "action_limit": 30, **(options or {})}
        if unknown := given.keys() - {"slots", "delay_s", "action_limit"}:
            raise ConfigurationError("environment.options", sorted(unknown), "the options are slots, delay_s, action_limit")
        self.servers = tuple(base_urls) or ("fake://shop",)
        self.persona = persona
        self.slots = int(given["slots"])
        self.delay_s = float(given["delay_s"])
        self.action_limit = int(given["action_limit"])
        self.timeouts = timeouts or EnvironmentTimeouts()
        self.hook = hook
        self.calls: list[FakeCall] = []
        """Every call made, in order."""
        self.held: dict[str, Lease] = {}
        """Leases not yet released, by lease id."""
        self.closed = False
        self._counts: dict[tuple[str, EpisodeJob], int] = {}
        self._next_lease = 0
        self._freed = asyncio.Condition()

    def identity(self) -> JsonObject:
        return {"adapter": "fake", "persona": self.persona, "action_limit": self.action_limit}

    async def capacity(self) -> list[ServerCapacity]:
        seen = EnvironmentIdentity(ENVIRONMENT_VERSION, OBSERVATION_VERSION, REWARD_VERSION)
        return [ServerCapacity(s, self.slots, self.slots - self.taken(s), seen) for s in self.servers]

    def open(self, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> FakeEpisode:
        return FakeEpisode(self, job, server, on_lease, guard)

    async def release(self, lease: Lease) -> None:
        await self.give_back(lease)

    async def release_all(self, server: str) -> None:
        for lease in [held for held in self.held.values() if held.server == server]:
            await self.give_back(lease)

    def pending_resets(self, server: str) -> int:
        return 0  # a caller that stops waiting leaves nothing behind here

    async def aclose(self) -> None:
        self.closed = True

    def taken(self, server: str) -> int:
        return sum(lease.server == server for lease in self.held.values())

    async def called(self, name: str, job: EpisodeJob, server: str, argument: str | None = None) -> JsonObject | None:
        """Note the call, wait ``delay_s``, ask the hook."""
        number = self._counts.get((name, job), 0)
        self._counts[name, job] = number + 1
        call = FakeCall(name, job, server, argument, number)
        self.calls.append(call)
        if self.delay_s > 0:
            await asyncio.sleep(self.delay_s)
        answer = self.hook(call) if self.hook is not None else None
        return await answer if inspect.isawaitable(answer) else answer

    async def acquire(self, server: str) -> Lease:
        """A slot of ``server``; waits for one as the real server does, but gives up after ``reset_timeout_s``."""
        try:
            async with asyncio.timeout(self.timeouts.reset_timeout_s), self._freed:
                await self._freed.wait_for(lambda: self.taken(server) < self.slots)
                self._next_lease += 1
                lease = Lease(server, self.taken(server), f"fake-{self._next_lease:08d}")
                self.held[lease.lease_id] = lease
                return lease
        except TimeoutError:
            text = f"{server}: no free slot within {self.timeouts.reset_timeout_s:g} s"
            raise EnvironmentCallError(text, ErrorKind.RESET_TIMEOUT, True) from None

    async def give_back(self, lease: Lease) -> None:
        async with self._freed:
            self.held.pop(lease.lease_id, None)
            self._freed.notify_all()


class FakeEpisode:
    """One episode of the fake world."""

    def __init__(self, world: FakeEnvironment, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> None:
        self._world, self._job, self._server = world, job, server
        self._on_lease, self._guard = on_lease, guard
        self._lease: Lease | None = None
        self._page = "home"
        self._product = ""
        self._option: str | None = None
        self._actions_used = 0
        self._done = False

    @property
    def lease(self) -> Lease | None:
        return self._lease

    async def reset(self) -> JsonObject:
        self._guard()
        scripted = await self._world.called("reset", self._job, self._server)
        self._lease = await self._world.acquire(self._server)
        self._on_lease("held", self._lease)
        if scripted is not None:
            return scripted
        return {
            "idx": self._job.task_id,
            "task_instruction": f"买第 {self._job.task_id % 3 + 1} 件商品",
            "task_mode": "persona" if self._world.persona else "standard",
            "environment_version": ENVIRONMENT_VERSION,
            "user_persona": {"user_id": f"u-{self._job.task_id:02d}"},
            **self._view(),
        }

    async def step(self, action: str) -> JsonObject:
        self._guard()
        scripted = await self._world.called("step", self._job, self._server, action)
        if scripted is not None:
            return scripted
        self._must_be_open()
        reason = self._moved(action)
        self._actions_used += 1
        feedback = {"action": action, "valid": reason == "executed", "reason": reason, "message": reason}
        bought = self._page == "terminal"
        if bought or self._actions_used >= self._world.action_limit:
            return {**self._ended("purchase" if bought else "action_limit"), "action_feedback": feedback}
        return {
            "done": False,
            "reward": 0.0,
            "reward_detail": {},
            "purchase": {},
            "goal": {},
            **self._view(),
            "action_feedback": feedback,
        }

    async def terminate(self, reason: str) -> JsonObject:
        self._guard()
        scripted = await self._world.called("terminate", self._job, self._server, reason)
        if scripted is not None:
            return scripted
        self._must_be_open()
        return self._ended(reason)

    async def close(self) -> None:
        if self._lease is None:
            return
        await self._world.called("close", self._job, self._server)
        lease, self._lease = self._lease, None
        await self._world.give_back(lease)
        self._on_lease("ended", lease)

    def _must_be_open(self) -> None:
        if self._lease is None or self._done:
            raise EnvironmentCallError("the episode is over, or was never reset", ErrorKind.ENVIRONMENT_ERROR, True)

    def _moved(self, action: str) -> str:
        """Apply an action; -> ``executed``, or why it is invalid."""
        verb, _, rest = action.partition("[")
        if verb not in ("search", "click") or not rest.endswith("]"):
            return "invalid_format"
        value = rest[:-1]
        if verb == "search":
            if self._page != "home":
                return "search_unavailable"
            self._page = "results"
        elif value not in self._clickable():
            return "unavailable_action"
        elif value == BACK:
            self._page, self._option = "home", None
        elif value == BUY:
            self._page = "terminal"
        elif self._page == "results":
            self._page, self._product, self._option = "product", value, None
        else:
            self._option = value
        return "executed"

    def _clickable(self) -> list[str]:
        if self._page == "results":
            return [BACK, *(self._asin(n) for n in range(3))]
        if self._page == "product":
            return [BACK, *([BUY] if self._option else []), *(o for o in _OPTIONS if o != self._option)]
        return []

    def _asin(self, n: int) -> str:
        return f"{900_000_000_000 + self._job.task_id * 10 + n}"

    def _view(self) -> JsonObject:
        actions = self._clickable()
        lines = [f"页面：{self._page}", *(f"- {a}" for a in actions)]
        state: dict[str, Any] = {
            "observation_version": OBSERVATION_VERSION,
            "page_type": self._page,
            "search_available": self._page == "home",
            "actions": actions,
        }
        return {"observation": "\n".join(lines), "observation_state": state}

    def _ended(self, reason: str) -> JsonObject:
        self._done = True
        wanted = self._asin(self._job.task_id % 3)
        hit = float(reason == "purchase" and self._product == wanted)
        parts = ("r_loose", "r_strict", "r_type", "r_att", "r_option", "r_price")
        detail = {
            "reward_version": REWARD_VERSION,
            "termination_reason": reason,
            **dict.fromkeys(parts, hit),
            "r_success": int(hit),
        }
        bought = {"asin": self._product, "options": {"chosen": self._option}} if reason == "purchase" else {}
        return {
            "done": True,
            "reward": hit,
            "reward_detail": detail,
            "purchase": bought,
            "goal": {"task_id": self._job.task_id, "asin": wanted},
            "termination_reason": reason,
            **self._view(),
        }
