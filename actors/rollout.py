"""RolloutActor: one process that owns a model client, environment leases and up to ``slots`` episodes.

Invariants:
* A queued job takes a slot and a server only when it starts (``_fill``, synchronous: no await between check and start), and the sum of
  episodes and unanswered resets on a server never passes this actor's quota for it.
* Every assignment ends in exactly one of: a trace in the outbox, an id in ``returned``, or the death of the process.
* The environment is touched only while ``Freshness`` holds; releases are always allowed.
* The control thread (``ping``) reads one float and renews the right; it touches nothing else of the work loop.
* Of several open exchanges only the newest waits; older ones return what there is.
Closing rule: ``stop`` cancels what runs, waits a bounded time for unanswered resets, closes both clients and returns the last reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import platform
import resource
import sys
import time
from collections import Counter, deque
from functools import partial
from typing import Any

import psutil

from actors.burial import process_space, release_leases
from actors.freshness import Freshness
from actors.messages import ActorInfo, ActorSpec, Assignment, Order, Ping, Reply
from actors.outbox import Outbox
from actors.pacing import CpuMeter, ResetPacer
from actors.record_box import RecordBox
from actors.servers import ServerWatch
from actors.whereabouts import Whereabouts
from rayeval.config import Config
from rayeval.environments import Environment, load_environment
from rayeval.environments.base import EnvironmentEpisode
from rayeval.exceptions import FencedError
from rayeval.models import ChatModel, KeyMark, Scrubber, load_model
from rayeval.models.gate import EndpointGate, http_probe
from rayeval.models.limiter import AdaptiveLimiter
from rayeval.prompts import PromptBuilder
from rayeval.runtime import AgentRuntime, RuntimeSettings
from rayeval.schemas import ErrorKind, JsonObject, Lease
from rayeval.skills import JsonSkillBank, NoSkills, SkillProvider
from rayeval.stages import EpisodeMark
from rayeval.transport import AiohttpTransport

_log = logging.getLogger(__name__)

_TICK_S = 0.1
_STOP_S = 10.0
_RESET_SLACK_S = 5.0
"""An environment ends the wait for a reset itself; one that does not is held to this much more."""
_CLOSE_S = 16.0
"""Longer than an environment waits for resets that nobody awaits (``drain_timeout_s``), so that it can say how many are left."""
_OVERDUE_SLACK_S = 60.0
"""An episode's own deadlines end it; one that is still there this much later is cancelled from outside."""
_WEDGED_S = 60.0
"""An episode still there this long after that wedges its actor: the process ends."""
_LOOK_EVERY_S = 5.0
_ASK_ABOUT = frozenset({ErrorKind.ENVIRONMENT_UNAVAILABLE, ErrorKind.LEASE_LOST})
"""Failures after which a server is asked whether it is still there."""
_SPARE_FILES = 256
"""File descriptors kept for Ray, logs and modules."""


class _Unopened:
    """An episode whose environment could not open it: the runtime turns the error into a failed trace."""

    lease: Lease | None = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def reset(self) -> JsonObject:
        raise self._error

    async def step(self, action: str) -> JsonObject:
        raise self._error

    async def terminate(self, reason: str) -> JsonObject:
        raise self._error

    async def close(self) -> None:
        return


class RolloutActor:
    """Runs episodes. A plain class; ``handles.py`` puts it on Ray or runs it in the driver's own loop."""

    def __init__(self, spec: ActorSpec, *, own_process: bool = True, on_event: Any = None) -> None:
        self._spec = spec
        self._own_process = own_process
        self._on_event = on_event
        self._fresh = Freshness(spec.fence_s)
        self._slots = spec.slots
        self._pinned = spec.pinned
        self._queue: deque[Assignment] = deque()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._unleased: Counter[str] = Counter()
        """For each server: running episodes that hold no lease yet (and those of an environment without leases)."""
        self._awaiting: dict[tuple[str, int], str] = {}
        self._asked: set[tuple[str, int]] = set()
        self._held: dict[tuple[str, str], Lease] = {}
        """By server and lease id: servers may number alike."""
        self._held_on: Counter[str] = Counter()
        self._quotas: dict[str, int] = {}
        self._newest = 0
        self._waiter: asyncio.Event | None = None
        self._tick = time.monotonic()
        self._next_look = self._tick + _LOOK_EVERY_S
        self._where = Whereabouts()
        self._overdue: set[str] = set()
        """Running episodes that were cancelled for outliving every deadline."""
        self._lag_s = 0.0
        self._cpu = CpuMeter()
        self._give_back = False
        self._stopping = False
        self._ending: asyncio.Task[None] | None = None
        self._records: RecordBox | None = None
        """Where the process is this actor's own."""
        self._key_mark: KeyMark | None = None

    async def start(self) -> ActorInfo:
        """Build the clients in this loop. Raises ConfigurationError for what the configuration cannot give (a missing API key)."""
        for directory in self._spec.sys_path:
            if directory not in sys.path:
                sys.path.append(directory)
        if self._own_process:
            # a collection walks every live conversation; young garbage is freed by counting anyway
            gc.collect()
            gc.freeze()
            gc.set_threshold(100_000, 20, 50)
        self._slots = min(self._slots, _slots_for_files())
        config = Config.model_validate(self._spec.config)
        if self._own_process:
            key = config.model.api_key_env
            scrubber = Scrubber(os.environ.get(key) if key else None)
            self._records, self._key_mark = RecordBox(scrubber.text), scrubber.mark()
            root = logging.getLogger()
            if not root.handlers and logging.lastResort is not None:
                root.addHandler(logging.lastResort)  # the last words of a process that ends at once are in its own output alone
            root.addHandler(self._records)
        self._transport = AiohttpTransport(trust_env=config.execution.trust_env)
        adaptive = config.execution.concurrency == "auto"
        limiters = {endpoint: AdaptiveLimiter() for endpoint in self._spec.endpoints} if adaptive else None
        self._gate = EndpointGate(self._spec.endpoints, http_probe(self._transport), limiters)
        self._model: ChatModel = load_model(config, self._spec.endpoints, self._transport, self._gate)
        self._environment: Environment = load_environment(config, self._spec.persona, self._spec.servers)
        self._servers = ServerWatch(self._environment, self._fill)
        execution = config.execution
        self._overdue_s = execution.reset_timeout_s + execution.episode_timeout_s + _OVERDUE_SLACK_S
        skills: SkillProvider = NoSkills()
        if self._spec.skill_bank is not None:
            skills = JsonSkillBank(self._spec.skill_bank, config.skills.max_skills)
        settings = RuntimeSettings(
            max_steps=config.runtime.max_steps,
            tool_schema=config.runtime.tool_schema,
            episode_timeout_s=config.execution.episode_timeout_s,
            step_timeout_s=config.execution.step_timeout_s,
            reset_timeout_s=config.execution.reset_timeout_s + _RESET_SLACK_S,
        )
        self._runtime = AgentRuntime(self._model, PromptBuilder(self._spec.system_prompt), skills, settings, self._spec.provenance)
        self._environment_identity = self._environment.identity()
        self._pacer = ResetPacer(self._spec.resets_per_s)
        self._outbox = Outbox(self._wake)
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_TICK_S, self._on_tick, self._loop.time() + _TICK_S)
        self._fresh.renew()
        self._fresh.watch(
            self._tell_lapse,
            exit_process=self._own_process,
            watch_parent=self._own_process,
        )
        return ActorInfo(
            node_id=os.environ.get("RAYEVAL_NODE_ID", platform.node()),
            host=platform.node(),
            space=process_space(),
            pid=os.getpid(),
            start_time=psutil.Process().create_time(),
            slots=self._slots,
            key_mark=self._key_mark,
        )

    async def exchange(self, order: Order) -> Reply:
        """Take an order, give back what is finished. Returns when a reply is due, when a newer exchange came, or after ``idle_s``."""
        self._fresh.renew()
        self._outbox.acknowledge(order.ack)
        missed = self._outbox.kept(order.ack) if order.resend else []
        self._apply(order)
        if order.number > self._newest:
            self._newest = order.number
            mine = asyncio.Event()
            older, self._waiter = self._waiter, mine
            if older is not None:
                older.set()
                await asyncio.sleep(0)  # the older exchange answers first
            if not (missed or self._outbox.is_due or self._stopping):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(order.idle_s):
                        await mine.wait()
        return self._reply(missed)

    async def ping(self) -> Ping:
        """Renew the right to act; -> how long ago the work loop ran. Runs in the control thread."""
        self._fresh.renew()
        return Ping(time.monotonic() - self._tick)

    async def stop(self, ack: int) -> Reply:
        """Cancel what runs, release, close. -> the last reply, with every earlier one after ``ack`` in ``missed``."""
        self._stopping = True
        self._wake()
        self._cancel(("*",))
        tasks = list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._servers.aclose()
                await self._environment.aclose()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._gate.aclose()
                await self._model.aclose()
                await self._transport.aclose()
        self._fresh.stop()
        return self._reply(self._outbox.kept(ack))

    def revoke(self, reason: str) -> None:
        """End the right to act: cancel what runs and release. For an actor that has no process of its own to kill."""
        self._fresh.revoke(reason)
        if self._running or self._queue or self._held:
            self._on_lapse(reason)

    # ---- the work loop ------------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.set()

    def _apply(self, order: Order) -> None:
        self._outbox.flush_s, self._outbox.lease_flush_s = order.flush_s, order.lease_flush_s
        if order.quotas is not None and order.number > self._newest:
            self._quotas = order.quotas
        if order.slots is not None and order.number > self._newest:
            self._slots = min(order.slots, _slots_for_files())
        if order.pinned is not None:
            self._pinned = order.pinned
        self._queue.extend(order.assignments)
        for endpoint, seconds in (order.pauses or {}).items():
            self._gate.pause(endpoint, seconds)
        if order.give_back:
            self._give_back = True
        if self._give_back:
            while self._queue:
                self._outbox.add_returned(self._queue.popleft().job.episode_id)
        if order.cancel:
            self._cancel(order.cancel)
        self._fill()

    def _cancel(self, episode_ids: tuple[str, ...]) -> None:
        everything = "*" in episode_ids
        for assignment in [a for a in self._queue if everything or a.job.episode_id in episode_ids]:
            self._queue.remove(assignment)
            self._outbox.add_returned(assignment.job.episode_id)
        for episode_id, task in self._running.items():
            if everything or episode_id in episode_ids:
                # one turn later: a task cancelled before its first step never enters its own clean-up
                self._loop.call_soon(task.cancel)

    def _fill(self) -> None:
        while self._queue and len(self._running) < self._slots and not self._stopping and self._fresh.lapsed is None:
            server = self._server_with_room()
            if server is None:
                return
            assignment = self._queue.popleft()
            episode_id = assignment.job.episode_id
            self._awaiting[episode_id, assignment.attempt] = server
            self._unleased[server] += 1
            mark = self._where.begin(episode_id)
            self._running[episode_id] = self._loop.create_task(self._episode(assignment, server, mark), name=episode_id)

    def _used(self, server: str) -> int:
        """Slots this actor takes of a server: leases (also those whose episode is over and whose release is not), resets under way, and
        resets that only the reaper waits for."""
        return self._unleased[server] + self._held_on[server] + self._environment.pending_resets(server)

    def _server_with_room(self) -> str | None:
        best, room = None, 0
        for server, quota in self._quotas.items():
            left = quota - self._used(server)
            if left > room and not self._servers.is_out(server):
                best, room = server, left
        return best

    async def _episode(self, assignment: Assignment, server: str, mark: EpisodeMark) -> None:
        job = assignment.job
        key = (job.episode_id, assignment.attempt)
        episode: EnvironmentEpisode
        try:
            await self._pacer.wait(server)
            self._asked.add(key)
            try:
                episode = self._environment.open(job, server, partial(self._on_lease, key), self._fresh.check)
            except Exception as error:  # a user's class: its defect is a failed trace, not the actor's end
                episode = _Unopened(error)
            trace = await self._runtime.run(
                job,
                assignment.attempt,
                episode,
                endpoint=assignment.endpoint or None,
                server=server,
                environment_identity=self._environment_identity,
                pinned=self._pinned,
                on_event=self._on_event,
                mark=mark,
            )
            if trace.error_kind in _ASK_ABOUT:
                self._servers.suspect(server)
            self._outbox.add_trace(trace)
        except asyncio.CancelledError:
            self._outbox.add_returned(job.episode_id, overdue=job.episode_id in self._overdue)
        except FencedError:
            self._outbox.add_returned(job.episode_id)
        finally:
            self._lease_known(key)
            self._running.pop(job.episode_id, None)
            self._where.end(job.episode_id)
            self._overdue.discard(job.episode_id)
            self._fill()

    def _lease_known(self, key: tuple[str, int]) -> None:
        server = self._awaiting.pop(key, None)
        if server is not None:
            self._unleased[server] -= 1
            if key in self._asked:
                self._asked.discard(key)
                self._pacer.answered(server)

    def _on_lease(self, key: tuple[str, int], event: str, lease: Lease) -> None:
        if event == "held":
            self._lease_known(key)
            if (lease.server, lease.lease_id) not in self._held:
                self._held[lease.server, lease.lease_id] = lease
                self._held_on[lease.server] += 1
        elif self._held.pop((lease.server, lease.lease_id), None) is not None:
            self._held_on[lease.server] -= 1
            self._loop.call_soon(self._fill)  # also a late release makes room
        self._outbox.add_lease(event, lease)

    def _reply(self, missed: list[Reply]) -> Reply:
        reply = self._outbox.take(self._newest)
        for server in self._quotas:
            used = self._used(server)
            reply.taken[server] = max(self._quotas.get(server, 0), used)
            reply.resetting[server] = used - self._held_on[server]
        reply.in_flight = len(self._running)
        reply.queued = len(self._queue)
        reply.out = self._servers.out() | self._gate.open_circuits()
        reply.pauses = self._gate.pauses()
        reply.limits = self._gate.loads()
        reply.cpu_share = self._cpu.share()
        reply.lag_s, self._lag_s = self._lag_s, 0.0
        reply.view = self._where.view(len(self._queue))
        if self._records is not None:
            reply.logs = self._records.take()
        reply.missed = missed
        return reply

    def _on_tick(self, expected: float) -> None:
        now = self._loop.time()
        self._lag_s = max(self._lag_s, now - expected)
        self._tick = time.monotonic()
        if self._tick >= self._next_look:
            self._next_look = self._tick + _LOOK_EVERY_S
            self._look_for_overdue()
        if not self._stopping:
            self._loop.call_later(_TICK_S, self._on_tick, now + _TICK_S)

    def _look_for_overdue(self) -> None:
        """Cancel what outlived every deadline of its own; end the process when even that does not help (a class that swallows it)."""
        now = time.monotonic()
        for episode_id, watched in self._where.episodes.items():
            over = now - watched.started - self._overdue_s
            if over > _WEDGED_S and self._own_process:
                _log.error("%s cannot be cancelled: this actor ends", episode_id)
                os._exit(1)
            if over > 0:
                self._overdue.add(episode_id)
                self._running[episode_id].cancel()

    def _tell_lapse(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: so has the actor
            self._loop.call_soon_threadsafe(self._on_lapse, reason)

    def _on_lapse(self, reason: str) -> None:
        self._queue.clear()
        self._cancel(("*",))
        self._ending = self._loop.create_task(self._end_after_lapse())
        if self._own_process:
            self._ending.add_done_callback(lambda _: os._exit(1))

    async def _end_after_lapse(self) -> None:
        tasks = list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_STOP_S):
                # releasing is always allowed: a lease that is somebody else's by now answers 409
                await release_leases(self._environment, list(self._held.values()), lambda _: None)
                await self._environment.aclose()


def _slots_for_files() -> int:
    """Slots that this process's file descriptors bear: two sockets an episode."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard if hard != resource.RLIM_INFINITY else 1_048_576
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - _SPARE_FILES) // 2)
