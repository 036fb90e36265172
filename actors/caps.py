"""``execution.max_tokens_total``, ``max_cost``, ``max_wall_s``: what a run may use before it drains.

Tokens and cost are those of the whole run, earlier invocations included, over every attempt whose trace is durable; time is that of this
invocation. A cap is reached when the figure is: the episodes in flight then go on for ``grace_s``, and what they use comes on top.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rayeval.costs import Prices, money
from rayeval.exceptions import RefusedError
from rayeval.schemas import ExitCode

if TYPE_CHECKING:
    from actors.ledger import Ledger
    from actors.pool import RolloutPool

_STEPS_TO_JUDGE = 20
"""Model turns without a word on usage, after which the server is held to give none."""


class Caps:
    """A governor. The limits may be changed while the run goes on; None lifts one."""

    def __init__(
        self,
        *,
        max_tokens_total: int | None = None,
        max_cost: float | None = None,
        max_wall_s: float | None = None,
        prices: Prices | None = None,
        before: Mapping[str, int] | None = None,
        started: float | None = None,
    ) -> None:
        """``before``: tokens of earlier invocations by kind, None when they were not counted; ``started``: monotonic."""
        self.max_tokens_total, self.max_cost, self.max_wall_s = max_tokens_total, max_cost, max_wall_s
        self.prices = prices
        self.before = Counter(before or {})
        self.knows_before = before is not None
        self._started = time.monotonic() if started is None else started
        self._told = False

    def refuse_if_reached(self) -> None:
        """Before anything is started. Raises RefusedError when earlier invocations have used up a cap."""
        reached = self._used_up(self.before)
        if reached is not None:
            raise RefusedError(f"{reached} by earlier invocations of this run; raise the cap, or set it to null, to go on")

    def tokens(self, ledger: Ledger) -> Counter[str]:
        """Tokens of the run so far, by kind."""
        return self.before + ledger.totals

    def look(self, pool: RolloutPool, now: float) -> None:
        if pool.phase.draining:
            return
        if self.max_wall_s is not None and now - self._started >= self.max_wall_s:
            pool.drain(f"execution.max_wall_s = {self.max_wall_s:g} is reached", ExitCode.REFUSED)
            return
        if self.max_tokens_total is None and self.max_cost is None:
            return
        self._see_usage(pool)
        if not pool.queue.waiting and not any(m.last.queued for m in pool.members.values() if m.alive and m.last):
            return  # nothing is left to be stopped from starting
        reached = self._used_up(self.tokens(pool.ledger))
        if reached is not None:
            pool.drain(reached, ExitCode.REFUSED)

    def _used_up(self, tokens: Mapping[str, int]) -> str | None:
        """Which cap is reached, in words."""
        used = tokens.get("tokens", 0)
        if self.max_tokens_total is not None and used >= self.max_tokens_total:
            return f"execution.max_tokens_total = {self.max_tokens_total} is reached: {used} tokens are used"
        if self.max_cost is not None and self.prices is not None:
            cost = self.prices.of(tokens)
            if cost >= self.max_cost:
                return f"execution.max_cost = {self.max_cost:g} is reached: {money(cost, self.prices.currency)} are used"
        return None

    def _see_usage(self, pool: RolloutPool) -> None:
        """A cap on what nobody counts would never be reached: say so once."""
        totals = pool.ledger.totals
        if self._told or totals["steps"] < _STEPS_TO_JUDGE:
            return
        self._told = True
        name = "max_tokens_total" if self.max_tokens_total is not None else "max_cost"
        counted = totals["tokens"] if name == "max_tokens_total" else totals["prompt_tokens"] + totals["completion_tokens"]
        if not counted:
            pool.note("warning", f"the model server reports no token usage: execution.{name} will not be reached")
