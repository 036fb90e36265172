"""The live figures of a run, as ``status.json`` and the display show them."""

from __future__ import annotations

import time
from collections import Counter, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from actors.member import MemberState
from actors.queue import JobQueue, JobState
from rayeval.costs import Prices
from rayeval.schemas import STATUS_SCHEMA, JsonObject

if TYPE_CHECKING:
    from actors.lag import LoopLag
    from actors.ledger import Ledger
    from actors.pool import RolloutPool

_RATE_WINDOW_S = 60.0


class Progress:
    """Puts counts of queue, ledger and pool into one status. ``done`` counts durable episodes only, those of earlier invocations too."""

    def __init__(self, run: str, planned: int, queue: JobQueue, started_at: str) -> None:
        self._run, self._planned, self._queue, self._started_at = run, planned, queue, started_at
        self._pool: RolloutPool | None = None
        self._ledger: Ledger | None = None
        self._marks: deque[tuple[float, int]] = deque()
        self.prices: Prices | None = None
        self.lag: LoopLag | None = None
        """Of the driver's loop, while there is one."""

    @property
    def cancelled(self) -> int:
        """Episodes left out by request."""
        return self._queue.cancelled

    def attach(self, pool: RolloutPool, ledger: Ledger) -> None:
        """From now on there is something to count."""
        self._pool, self._ledger = pool, ledger
        self._marks.append((time.monotonic(), 0))

    def status(self, state: str) -> JsonObject:
        """The content of ``status.json``."""
        queue, ledger, pool = self._queue, self._ledger, self._pool
        reused = queue.counts[JobState.REUSED]
        done = reused + (ledger.done if ledger else 0)
        failed = ledger.failed if ledger else 0
        if pool is not None and pool.reason is not None and state == "running":
            state = "draining"
        elif pool is not None and pool.phase.paused and state == "running":
            state = "paused"
        rate = self._rate(ledger.done if ledger else 0)
        left = queue.waiting + queue.out
        out: JsonObject = {
            "schema": STATUS_SCHEMA,
            "run": self._run,
            "state": state,
            "started_at": self._started_at,
            "updated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "planned": self._planned,
            "reused": reused,
            "done": done,
            "failed": failed,
            "not_run": self._planned - done - failed,
            "in_flight": 0,
            "queued": queue.waiting,
            "cancelled": queue.cancelled,
            "retries": 0,
            "lost": 0,
            "late": 0,
            "rate_per_min": None if rate is None else round(rate * 60.0, 2),
            "eta_s": round(left / rate, 1) if rate and state == "running" else None,
            "reward_mean": None,
            "reward_n": 0,
            "steps": 0,
            "protocol_errors": 0,
            "tokens": 0,
            "cost": None,
            "driver_lag_s": round(self.lag.take(), 3) if self.lag is not None else 0.0,
            "actors": [],
            "environment": [],
            "model": [],
            "exit_code": None,
            "reason": pool.reason if pool else None,
        }
        if ledger is not None:
            out |= {
                "retries": ledger.retries,
                "lost": ledger.lost,
                "late": ledger.late,
                "reward_mean": ledger.reward_sum / ledger.reward_n if ledger.reward_n else None,
                "reward_n": ledger.reward_n,
                "steps": ledger.totals["steps"],
                "protocol_errors": ledger.totals["protocol_errors"],
                "tokens": ledger.totals["tokens"],
                "cost": None
                if self.prices is None
                else {"amount": round(self.prices.of(ledger.totals), 6), "currency": self.prices.currency},
                "failures": dict(ledger.failures),
                "model_retries": {
                    name.removeprefix("model_retry."): n for name, n in sorted(ledger.totals.items()) if name.startswith("model_retry.")
                },
            }
        if pool is not None and state != "ended":
            out |= snapshot(pool)
        return out

    def _rate(self, done: int) -> float | None:
        """Episodes a second over the last minute."""
        now = time.monotonic()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        return (done - before) / (now - since) if now - since > 0.5 and done > before else None


def snapshot(pool: RolloutPool) -> JsonObject:
    """The pool's part of ``status.json``; lags are those since the last one."""
    alive = [m for m in pool.members.values() if m.state != MemberState.ENDED]
    held = Counter(lease.server for lease in pool.held())
    shot: JsonObject = {
        "in_flight": sum(m.last.in_flight for m in alive if m.last),
        "queued": pool.queue.waiting + sum(m.last.queued for m in alive if m.last),
        "actors": [
            {
                "id": m.actor_id,
                "node": m.info.node_id if m.info else None,
                "pid": m.info.pid if m.info else None,
                "state": str(m.state),
                "slots": m.slots,
                "in_flight": m.last.in_flight if m.last else 0,
                "lag_s": round(m.lag_s, 3),
            }
            for m in alive
        ],
        "actors_replaced": pool.replaced,
        "environment": [
            {
                "server": server,
                "admission": admission,
                "held": held[server],
                "resetting": sum(m.last.resetting.get(server, 0) for m in alive if m.last),
            }
            for server, admission in pool.dealer.admission.items()
        ],
        "model": [{"endpoint": endpoint, "episodes": n} for endpoint, n in pool.dispatch.endpoint_load.items()],
    }
    for member in alive:
        member.lag_s = 0.0
    return shot
