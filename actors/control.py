"""Requests to a live run, put into effect: a governor that reads mailboxes and steers the pool.

Each request is answered in the same synchronous look that acts on it, so what the answer says was so at that moment. What it sets in
motion (a running episode ends, fewer slots are used) takes effect as actors hear of it, usually within a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from actors.caps import Caps
from actors.queue import JobState
from rayeval.control import ControlRequest, done_reply, refusal
from rayeval.exceptions import InputError, RayevalError, RefusedError
from rayeval.mailbox import Mailbox
from rayeval.plan import Plan
from rayeval.schemas import ExitCode, JsonObject
from rayeval.selection import task_ranges

if TYPE_CHECKING:
    from actors.pool import RolloutPool


class Control:
    """A governor. ``record(request, reply, via)`` is called for each request; it must not raise."""

    def __init__(
        self,
        plan: Plan,
        caps: Caps,
        mailboxes: Sequence[tuple[str, Mailbox]],
        record: Callable[[ControlRequest, JsonObject, str], None],
        set_most: Callable[[int], None] | None = None,
    ) -> None:
        """``set_most``: with ``execution.concurrency: auto`` the number of episodes bounds what is found, in place of being it."""
        self._plan, self._caps, self._mailboxes, self._record = plan, caps, mailboxes, record
        self._set_most = set_most

    def look(self, pool: RolloutPool, now: float) -> None:
        for via, mailbox in self._mailboxes:
            for request in mailbox.poll():
                try:
                    checked = request.checked()
                    text, result = self._apply(pool, checked)
                    reply = done_reply(checked, text, result)
                    pool.note("info", f"control: {checked.verb} for {checked.user or 'somebody'}: {text}")
                except RayevalError as error:
                    reply = refusal(request, error)
                mailbox.answer(reply)
                self._record(request, reply, via)

    def _apply(self, pool: RolloutPool, request: ControlRequest) -> tuple[str, JsonObject]:
        """-> (what was done, in words; the same as data)."""
        if pool.phase.draining and request.verb not in ("drain", "cancel"):
            raise RefusedError(f"the run is draining ({pool.reason}); it takes drain and cancel alone")
        match request.verb:
            case "pause" | "resume":
                return self._pause(pool, request.verb == "pause")
            case "drain":
                return self._drain(pool, request)
            case "set":
                return self._set(pool, request.arguments)
            case _:
                return self._cancel(pool, request.arguments)

    def _pause(self, pool: RolloutPool, paused: bool) -> tuple[str, JsonObject]:
        was = pool.phase.paused
        pool.pause(paused)
        running, waiting = _counts(pool)
        result: JsonObject = {"paused": paused, "in_flight": running, "waiting": waiting}
        if was == paused:
            return ("it was paused already" if paused else "it was not paused"), result
        if paused:
            return f"paused: {running} episodes in flight go on, {waiting} wait", result
        return f"resumed: {waiting} episodes wait", result

    def _drain(self, pool: RolloutPool, request: ControlRequest) -> tuple[str, JsonObject]:
        grace = request.arguments.get("grace_s", pool.settings.grace_s)
        pool.drain(f"{request.user or 'somebody'} asked for it (rayeval control)", ExitCode.REFUSED, grace)
        running, waiting = _counts(pool)
        text = f"draining: {running} episodes in flight have up to {grace:g} s to end, {waiting} are not run"
        return text, {"in_flight": running, "waiting": waiting, "grace_s": grace}

    def _set(self, pool: RolloutPool, values: JsonObject) -> tuple[str, JsonObject]:
        if values.get("max_cost") is not None and self._caps.prices is None:
            raise RefusedError("max_cost: this run knows no prices; start it with execution.prices")
        said: list[str] = []
        result: JsonObject = {}
        for key, value in values.items():
            before: Any
            if key == "concurrency":
                before, more = pool.slots, self._set_concurrency(pool, value)
            elif key == "grace_s":
                before, more = pool.settings.grace_s, ""
                pool.settings = dataclasses.replace(pool.settings, grace_s=value)
            else:
                before, more = getattr(self._caps, key), ""
                setattr(self._caps, key, value)
                if key != "max_wall_s" and value is not None and not self._caps.knows_before:
                    more = " (what earlier invocations used does not count)"
            said.append(f"{key} {_shown(before)} -> {_shown(value)}{more}")
            result[key] = {"before": before, "now": value}
        return ", ".join(said), result

    def _set_concurrency(self, pool: RolloutPool, slots: int) -> str:
        if self._set_most is not None:
            self._set_most(slots)
            return " at most (execution.concurrency is auto)"
        pool.set_slots(slots)
        admitted = sum(pool.dealer.admission.values())
        return f" (the environment admits {admitted})" if admitted < slots else ""

    def _cancel(self, pool: RolloutPool, arguments: JsonObject) -> tuple[str, JsonObject]:
        ids = dict.fromkeys([*self._of_tasks(arguments.get("task")), *self._known(arguments["episodes"])])
        before = pool.queue.cancelled
        found = pool.cancel(ids)
        left_out = pool.queue.cancelled - before
        stopping, over = found - left_out, len(ids) - found
        parts = [f"{stopping} dispatched are being stopped"] if stopping else []
        parts += [f"{left_out} waiting are left out"] if left_out else []
        parts += [f"{over} were over or left out already"] if over else []
        text = f"{found} of {len(ids)} episodes cancelled" + (f": {', '.join(parts)}" if parts else "")
        return text, {"episodes": len(ids), "cancelled": found, "dispatched": stopping, "waiting": left_out, "over": over}

    def _of_tasks(self, text: str | None) -> Iterator[str]:
        """Ids of all episodes of tasks ``12,40-60``. Raises InputError for an id that is not in the plan, and for a range that holds no
        task of the plan or reaches beyond its first or last one: who names what is not there may mean another run."""
        if text is None:
            return
        wanted: set[int] = set()
        first, last = min(self._plan.task_ids), max(self._plan.task_ids)
        for low, high in task_ranges(text):
            if low < high and (low < first or high > last):
                hint = f"reaches beyond the plan of this run, whose tasks lie between {first} and {last}"
                raise InputError("--task", f"{low}-{high}", hint)
            inside = [task_id for task_id in self._plan.task_ids if low <= task_id <= high]
            if not inside:
                raise InputError("--task", str(low) if low == high else f"{low}-{high}", "no such task in the plan of this run")
            wanted.update(inside)
        for i, task_id in enumerate(self._plan.task_ids):
            if task_id in wanted:
                first = i * self._plan.repeats
                for place in range(first, min(first + self._plan.repeats, self._plan.job_count)):
                    yield self._plan.job_at(place).episode_id

    def _known(self, episode_ids: Sequence[str]) -> Sequence[str]:
        for episode_id in episode_ids:
            if self._plan.index_of(episode_id) is None:
                shape = self._plan.job_at(0).episode_id
                raise InputError("--episode", episode_id, f"is not in the plan of this run; an id looks like {shape}")
        return episode_ids


def _counts(pool: RolloutPool) -> tuple[int, int]:
    """-> (episodes that run, episodes that wait), as far as the actors have said."""
    said = [m.last for m in pool.members.values() if m.alive and m.last]
    running = sum(reply.in_flight for reply in said)
    return running, max(0, pool.queue.counts[JobState.WAITING] + pool.queue.counts[JobState.OUT] - running)


def _shown(value: Any) -> str:
    return "no cap" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
