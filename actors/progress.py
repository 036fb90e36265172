"""The live figures of a run, as ``status.json`` and the display show them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from heapq import nlargest
from typing import TYPE_CHECKING

from actors.member import Member, MemberState
from actors.queue import JobQueue, JobState
from rayeval.costs import Prices
from rayeval.models import Scrubber
from rayeval.schemas import STATUS_SCHEMA, JsonObject
from rayeval.stages import STAGES
from rayeval.transport import public_url

if TYPE_CHECKING:
    from actors.broker_client import BrokerClient
    from actors.lag import LoopLag
    from actors.ledger import Ledger
    from actors.pool import RolloutPool

_RATE_WINDOW_S = 60.0
SLOWEST = 10
"""Episodes in ``slowest``."""
NOTES = 5
"""Warnings and errors that a status repeats."""
_NOTE_CHARS = 400


class RecentNotes:
    """The newest warnings and errors of what people were told, without the model's key (which the driver need not have)."""

    def __init__(self, key: str | None = None) -> None:
        self._scrubber = Scrubber(key)
        self._kept: deque[JsonObject] = deque(maxlen=NOTES)

    def heard(self, level: str, text: str) -> None:
        if level in ("warning", "error"):
            at = datetime.now(UTC).isoformat(timespec="seconds")
            self._kept.append({"at": at, "level": level, "text": self._scrubber.text(" ".join(text.split()))[:_NOTE_CHARS]})

    def list(self) -> list[JsonObject]:
        """Oldest first."""
        return [*self._kept]


class Progress:
    """Puts counts of queue, ledger and pool into one status. ``done`` counts durable episodes only, those of earlier invocations too."""

    def __init__(self, run: str, planned: int, queue: JobQueue, started_at: str, notes: RecentNotes | None = None) -> None:
        self._run, self._planned, self._queue, self._started_at = run, planned, queue, started_at
        self._pool: RolloutPool | None = None
        self._ledger: Ledger | None = None
        self._marks: deque[tuple[float, int]] = deque()
        self._began = time.monotonic()
        self._notes = notes if notes is not None else RecentNotes()
        self.broker: BrokerClient | None = None
        """This run's side of the slot broker, where it takes part."""
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
            "elapsed_s": round(time.monotonic() - self._began, 1),
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
            "stages": dict.fromkeys(STAGES, 0),
            "slowest": [],
            "failures": {},
            "failures_retried": {},
            "failure_samples": {},
            "model_retries": {},
            "actors": [],
            "environment": [],
            "model": [],
            "broker": self.broker.picture() if self.broker is not None else None,
            "notes": self._notes.list(),
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
                "cost": self._cost(ledger, left),
                "failures": dict(ledger.failures),
                "failures_retried": dict(ledger.retried),
                "failure_samples": dict(ledger.samples),
                "model_retries": {
                    name.removeprefix("model_retry."): n for name, n in sorted(ledger.totals.items()) if name.startswith("model_retry.")
                },
            }
        if pool is not None and state != "ended":
            out |= snapshot(pool)
        return out

    def _cost(self, ledger: Ledger, left: int) -> JsonObject | None:
        """What this invocation has cost, and what it will have when the episodes that are left cost as much as those that have ended."""
        if self.prices is None:
            return None
        amount, ended = self.prices.of(ledger.totals), ledger.done + ledger.failed
        expected = round(amount * (ended + left) / ended, 6) if ended and left else None
        return {"amount": round(amount, 6), "currency": self.prices.currency, "expected": expected}

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
    stages: Counter[str] = Counter(dict.fromkeys(STAGES, 0))
    for member in alive:
        stages.update(member.view.stages if member.view else {})
    shot: JsonObject = {
        "in_flight": sum(m.last.in_flight for m in alive if m.last),
        "queued": pool.queue.waiting + sum(m.last.queued for m in alive if m.last),
        "stages": dict(stages),
        "slowest": slowest(alive, time.monotonic()),
        "actors": [
            {
                "id": m.actor_id,
                "node": m.info.node_id if m.info else None,
                "pid": m.info.pid if m.info else None,
                "state": str(m.state),
                "starting_s": round(time.monotonic() - m.asked_at, 1) if m.state == MemberState.STARTING else None,
                "slots": m.slots,
                "in_flight": m.last.in_flight if m.last else 0,
                "queued": m.last.queued if m.last else 0,
                "cpu_share": round(m.last.cpu_share, 3) if m.last and m.last.cpu_share is not None else None,
                "lag_s": round(m.lag_s, 3),
            }
            for m in alive
        ],
        "actors_replaced": pool.replaced,
        "environment": [
            {
                "server": public_url(server),
                "slots": pool.admission.slots.get(server),
                "admission": admission,
                "held": held[server],
                "resetting": sum(m.last.resetting.get(server, 0) for m in alive if m.last),
                "out_s": _out_s(alive, server),
                "refused": server in pool.admission.refused,
            }
            for server, admission in pool.dealer.admission.items()
        ],
        "model": [
            {
                "endpoint": public_url(endpoint),
                "episodes": n,
                "out_s": _out_s(alive, endpoint),
                "pause_s": round(pool.dispatch.pause_left(endpoint), 1) or None,
                **_window(alive, endpoint),
                "retries": dict(pool.dispatch.endpoint_retries.get(endpoint, {})),
            }
            for endpoint, n in pool.dispatch.endpoint_load.items()
        ],
    }
    for member in alive:
        member.lag_s = 0.0
    return shot


def slowest(members: Iterable[Member], now: float) -> list[JsonObject]:
    """The oldest episodes in flight, oldest first, as their actors last told of them; ``now`` is monotonic."""
    seen = [(view, m.actor_id, max(0.0, now - m.view_at)) for m in members if m.view is not None for view in m.view.oldest]
    oldest = nlargest(SLOWEST, seen, key=lambda row: row[0].age_s + row[2])
    return [
        {
            "episode_id": view.episode_id,
            "age_s": round(view.age_s + since, 1),
            "stage": view.stage,
            "stage_s": round(view.stage_s + since, 1),
            "step": view.step,
            "actor": actor_id,
        }
        for view, actor_id, since in oldest
    ]


def _out_s(members: Iterable[Member], name: str) -> float | None:
    """For how long a server or endpoint has not answered the actor that has waited longest; None: it answers everybody."""
    longest = max((m.last.out[name] for m in members if m.last and name in m.last.out), default=None)
    return None if longest is None else round(longest, 1)


def _window(members: Iterable[Member], endpoint: str) -> JsonObject:
    """Adaptive concurrency: the limit, calls in flight and calls that wait, over all actors; nulls without it."""
    loads = [m.last.limits[endpoint] for m in members if m.last and endpoint in m.last.limits]
    if not loads:
        return {"limit": None, "calls": None, "calls_waiting": None}
    limit, calls, waiting = map(sum, zip(*loads, strict=True))
    return {"limit": limit, "calls": calls, "calls_waiting": waiting}
