"""A small server that speaks ShopSimulator's wire contract: slots, leases without a lifetime, resets that block on a full pool."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Answer = tuple[int, Any]
Override = Callable[[dict[str, Any]], Awaitable[web.StreamResponse | None]]
HOME = {"observation_version": "shopping-observation-v7", "page_type": "search_home", "search_available": True, "actions": []}
RESULTS = {**HOME, "page_type": "search_results", "search_available": False, "actions": ["back to search", "900000000001", "buy now"]}
ZERO = dict.fromkeys(("r_loose", "r_strict", "r_success", "r_type", "r_att", "r_option", "r_price"), 0.0)
REWARD_VERSION = "shopsimulator-paper-reward-v2"


class ShopServer:
    """``override`` may answer a request in the server's place; ``seen`` lists every request body."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.free = set(range(slots))
        self.leases: dict[str, tuple[int, int]] = {}
        self.done: set[str] = set()
        self.seen: list[dict[str, Any]] = []
        self.override: Override | None = None
        self.url = ""
        self._numbers = itertools.count(1)
        self._freed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> ShopServer:
        app = web.Application()
        app.router.add_post("/api/shop_agent", self._post)
        app.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def count(self, action: str) -> int:
        return sum(body["action"] == action for body in self.seen)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "ready": True,
                "environment_slots": self.slots,
                "free_slots": len(self.free),
                "tasks": 6,
                "environment_version": "shopsimulator-paper-aligned-v8",
                "primary_reward": "r_strict",
                "observation_version": "shopping-observation-v7",
            }
        )

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        if self.override is not None:
            answer = await self.override(body)
            if answer is not None:
                return answer
        status, result = await self.done_as_asked(body)
        return web.json_response({"result": result}, status=status)

    async def done_as_asked(self, body: dict[str, Any]) -> Answer:
        """What a request leads to, whatever is said of it: for overrides that do as asked and answer badly."""
        answer: Answer = await getattr(self, f"_{body['action']}")(body)
        return answer

    async def _reset(self, body: dict[str, Any]) -> Answer:
        async with self._freed:
            await self._freed.wait_for(lambda: self.free)
            slot = self.free.pop()
        if body["idx"] >= 100:
            await self._give_back(slot)
            return 500, {"error": f"'unknown or inactive task_id {body['idx']}'"}
        lease_id = f"{next(self._numbers):032x}"
        self.leases[lease_id] = (slot, body["idx"])
        return 200, {
            "env_idx": slot,
            "lease_id": lease_id,
            "idx": body["idx"],
            "message": f"Task {body['idx']} started",
            "task_instruction": "买个桌面风扇",
            "task_mode": "persona" if body["if_persona"] else "standard",
            "interaction_mode": "single_turn",
            "environment_version": "shopsimulator-paper-aligned-v8",
            "observation": "页面：搜索首页",
            "observation_state": HOME,
            "user_persona": {"user_id": "u-01", "__reasoning__": "PRIVATE"},
            "private_task_instruction": "PRIVATE",
            "goal_options": ["PRIVATE"],
            "reason_key": None,
        }

    def _leased(self, body: dict[str, Any]) -> Answer | None:
        held = self.leases.get(body["lease_id"])
        if held is None or held[0] != body["env_idx"]:
            return 409, {"error": f"stale or invalid lease for environment {body['env_idx']}"}
        if body["lease_id"] in self.done and body["action"] != "release_one":
            return 500, {"error": "episode is already terminated; reset before stepping"}
        return None

    def _result(self, body: dict[str, Any], reason: str | None, state: dict[str, Any]) -> dict[str, Any]:
        slot, idx = self.leases[body["lease_id"]]
        if reason is not None:
            self.done.add(body["lease_id"])
        return {
            "done": reason is not None,
            "over": reason is not None,
            "reward": 0.0,
            "reward_detail": {"reward_version": REWARD_VERSION, **ZERO} if reason else {},
            "purchase": {},
            "goal": {"task_id": idx} if reason else {},
            "env_idx": slot,
            "lease_id": body["lease_id"],
            "idx": f"slot-{slot}-{idx}",
            "message": "Continue interaction",
            "observation": "页面：搜索结果",
            "observation_state": state,
            **({"termination_reason": reason} if reason else {}),
        }

    async def _interact(self, body: dict[str, Any]) -> Answer:
        bad = self._leased(body)
        if bad is not None:
            return bad
        reason = "purchase" if body["response"] == "click[buy now]" else None
        result = self._result(body, reason, RESULTS)
        result["action_feedback"] = {"action": body["response"], "valid": True, "reason": "executed", "message": "ok"}
        return 200, result

    async def _terminate(self, body: dict[str, Any]) -> Answer:
        return self._leased(body) or (200, self._result(body, body["termination_reason"], RESULTS))

    async def _release_one(self, body: dict[str, Any]) -> Answer:
        bad = self._leased(body)
        if bad is not None:
            return bad
        slot, _ = self.leases.pop(body["lease_id"])
        await self._give_back(slot)
        return 200, {"message": f"Environment {slot} has been released"}

    async def _release_all(self, body: dict[str, Any]) -> Answer:
        for slot, _ in self.leases.values():
            await self._give_back(slot)
        self.leases.clear()
        return 200, {"message": "All environments have been initialized"}

    async def _give_back(self, slot: int) -> None:
        async with self._freed:
            self.free.add(slot)
            self._freed.notify()
