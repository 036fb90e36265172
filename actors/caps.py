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
        self._drained: tuple[str, str] | None = None
        """The cap that drained the run, and the reason that was given."""

    def refuse_if_reached(self) -> None:
        """Before anything is started. Raises RefusedError when earlier invocations have used up a cap."""
        reached = self._used_up(self.before)
        if reached is not None:
            raise RefusedError(
                f"{self._in_words(reached, self.before)} by earlier invocations of this run; raise the cap, or set it to null, to go on"
            )

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
        tokens = self.tokens(pool.ledger)
        reached = self._used_up(tokens)
        if reached is not None:
            self._drained = reached, self._in_words(reached, tokens)
            pool.drain(self._drained[1], ExitCode.REFUSED)

    def reason_at_end(self, reason: str | None, ledger: Ledger) -> str | None:
        """``reason``, why the run has ended; where that is a cap, with what was used in the end: what was in flight came on top."""
        if self._drained is None or reason != self._drained[1]:
            return reason
        return f"{reason}, and {self._used(self._drained[0], self.tokens(ledger))} with the episodes that were in flight"

    def _used_up(self, tokens: Mapping[str, int]) -> str | None:
        """Which cap is reached."""
        if self.max_tokens_total is not None and tokens.get("tokens", 0) >= self.max_tokens_total:
            return "max_tokens_total"
        if self.max_cost is not None and self.prices is not None and self.prices.of(tokens) >= self.max_cost:
            return "max_cost"
        return None

    def _in_words(self, cap: str, tokens: Mapping[str, int]) -> str:
        value = getattr(self, cap)
        return f"execution.{cap} = {value if isinstance(value, int) else format(value, 'g')} is reached: {self._used(cap, tokens)} are used"

    def _used(self, cap: str, tokens: Mapping[str, int]) -> str:
        if cap == "max_cost" and self.prices is not None:
            return money(self.prices.of(tokens), self.prices.currency)
        return f"{tokens.get('tokens', 0)} tokens"

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
