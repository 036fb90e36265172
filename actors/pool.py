"""RolloutPool: feeds actors from one queue, takes their traces, replaces the dead ones.

Owners and invariants:
* One asyncio loop owns every field here and in ``Member``; the health thread only writes ``Vitals``. No await stands between reading the
  queue or a quota and acting on it.
* Each actor has one ``_live`` task, and in it one loop of exchanges (``exchanges.py``).
* A job leaves ``member.jobs`` exactly once: by its record, by being given back, or by the burial of its actor.
* Results of an actor declared dead are dropped and counted; its jobs and slots are used again only after ``burial.fence``.
* Every reference is awaited at once, so that no result waits in a node that may die.
Closing rule: ``run`` returns after every job has ended or was given back (drain), every actor is stopped or buried, and every line
handed to the log is durable or the log has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from actors.burial import fence, in_company, process_space, release_leases
from actors.dealing import Dealer
from actors.dispatch import Dispatcher, Phase
from actors.exchanges import Exchanges
from actors.governors import Admission, Governor, Outages
from actors.handles import ActorFaultError, ActorGoneError, ActorHandle
from actors.health import SILENT_S, SLOW_S, HealthThread
from actors.ledger import Ledger, described
from actors.member import Member, MemberState
from actors.messages import ActorSpec
from actors.queue import JobQueue
from actors.replies import Replies
from actors.suspects import PLACE_S, Suspects
from rayeval.environments import Environment
from rayeval.exceptions import PlacementError, RayevalError
from rayeval.schemas import ExitCode, Lease
from rayeval.store import LeaseJournal

_TICK_S = 0.25
_STOP_S = 30.0
_NODE_S = 5.0
MIN_DEATHS_IN_VAIN = 9
"""Actors that may die in a row without one episode ending; a job that kills its actor takes at most three of them."""
ASK_ACTOR_EVERY_S = 60.0
_ASLEEP_S = 5.0
"""A supervision this late was not late by itself: the whole driver stood still."""
_ALIVE = (MemberState.WORKING, MemberState.SLOW)
ALL_DURABLE = "every trace is durable"
"""Debug note at whose moment a run has done its work; benchmarks measure from ``exchanges.FIRST_DISPATCH`` to it."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How a pool runs."""

    actors: int
    slots: int
    """Episodes in flight over all actors."""
    fence_s: float
    grace_s: float
    ready_s: float = 120.0
    stall_timeout_s: float = 600.0
    endpoint_outage_s: float = 600.0
    company_s: float = 2.0
    """Actors whose ends are seen within this time of each other had one cause, which was no job. Ray tells of them one by one."""
    kill_by_pid: bool = True
    """Whether a lost actor whose pid means something here is killed by it; else its fence is always waited for."""


class RolloutPool:
    """Runs a queue of jobs on actors."""

    def __init__(
        self,
        settings: PoolSettings,
        *,
        queue: JobQueue,
        ledger: Ledger,
        dealer: Dealer,
        journal: LeaseJournal,
        environment: Environment,
        endpoints: tuple[str, ...],
        make_spec: Callable[[str, int], ActorSpec],
        spawn: Callable[[ActorSpec], ActorHandle],
        note: Callable[[str, str], None],
        governors: Sequence[Governor] = (),
    ) -> None:
        self.settings = settings
        self.queue, self.ledger, self.dealer, self._journal = queue, ledger, dealer, journal
        self.environment = environment
        self._make_spec, self._spawn, self.note = make_spec, spawn, note
        self._health = HealthThread()
        self.members: dict[str, Member] = {}
        self.phase = Phase()
        self.dispatch = Dispatcher(self.phase, self.members, queue=queue, ledger=ledger, dealer=dealer, endpoints=endpoints)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._born = 0
        self._faults = 0
        self._drain_until: float | None = None
        self._cancelled_at: float | None = None
        self._broken = False
        self.slots = settings.slots
        self.admission = Admission(dealer.admission)
        self.suspects = Suspects()
        self._replies = Replies(
            self.phase,
            queue=queue,
            ledger=ledger,
            dealer=dealer,
            dispatch=self.dispatch,
            admission=self.admission,
            journal=journal,
            on_progress=self._on_progress,
            on_fatal=self.fatal,
        )
        self._exchanges = Exchanges(self.phase, ledger=ledger, dispatch=self.dispatch, replies=self._replies, note=note)
        self._governors: list[Governor] = [self.admission, Outages(), self.suspects, *governors]
        self._asked_actor_at = self._looked_at = time.monotonic()
        self.reason: str | None = None
        """Why the run was drained; None while it was not."""
        self.exit_code: ExitCode | None = None
        self.replaced = 0
        self._deaths_in_vain = 0

    # ---- what the engine calls ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the queue is over or drained. Raises InputError that an actor found; everything else ends in ``exit_code``."""
        self._health.start()
        supervisor = asyncio.current_task()
        assert supervisor is not None
        try:
            share, rest = divmod(self.settings.slots, self.settings.actors)
            for k in range(self.settings.actors):
                self.bear(share + (k < rest))
            while not self._finished():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self._changed.wait()
                self._changed.clear()
                self._look()
            await self.ledger.settled()
            self.note("debug", ALL_DURABLE)
        finally:
            self.phase.closing = True
            await self._close()
            self._health.stop()
        await self.ledger.settled()

    def drain(self, reason: str, exit_code: ExitCode | None, grace_s: float | None = None) -> None:
        """Stop dispatching; let episodes end for ``grace_s`` (default: the configured one), then cancel. The first reason stays."""
        if self.reason is None:
            self.reason, self.exit_code = reason, exit_code
            grace = self.settings.grace_s if grace_s is None else grace_s
            self.note("warning", f"draining: {reason}" + (f"; running episodes have up to {grace:g} s to end" if grace else ""))
        until = time.monotonic() + (self.settings.grace_s if grace_s is None else grace_s)
        self.phase.draining = True
        self._drain_until = until if self._drain_until is None else min(self._drain_until, until)
        self.nudge_all()

    def refuse_server(self, server: str, why: str) -> None:
        """No more work for this server."""
        self.admission.refuse(self, server, why)

    def pause(self, paused: bool) -> None:
        """Start nothing new until told otherwise; what runs goes on."""
        if self.phase.paused != paused:
            self.phase.paused = paused
            for member in self.members.values():
                if member.state in (MemberState.STARTING, *_ALIVE):
                    member.slots_wanted = member.slots  # none while paused: what an actor has queued does not start either
            self.note("info", "paused: nothing new starts" if paused else "resumed")
            self.nudge_all()

    def set_slots(self, slots: int) -> None:
        """Change the episodes in flight over all actors; fewer take effect as episodes end."""
        self.slots = max(1, slots)
        members = [m for m in self.members.values() if m.state in (MemberState.STARTING, *_ALIVE) and not m.suspect]
        share, rest = divmod(self.slots, max(1, len(members)))
        for k, member in enumerate(members):
            member.slots_now = member.slots_wanted = share + (k < rest)
            self.dealer.resize(member.actor_id, member.slots_now)
        self.nudge_all()

    def _share_anew(self) -> None:
        """A new actor begins with the slots of the one before it, or with a fair part, and others may have taken them over since."""
        if self.slots != self.settings.slots or any(m.extra or m.slots_now is not None for m in self.members.values()):
            self.set_slots(self.slots)

    def add_actor(self) -> str:
        """Bear one more actor, of one slot: deal the slots anew (``set_slots``) once it works. -> its id."""
        return self.bear(1, extra=True)

    def cancel(self, episode_ids: Collection[str]) -> int:
        """Cancel episodes, running or waiting: they are not run again in this invocation. -> how many it found."""
        found = 0
        for episode_id in episode_ids:
            holder = next((m for m in self.members.values() if episode_id in m.jobs), None)
            if holder is not None:
                if holder.alive:
                    holder.cancel_wanted.add(episode_id)
                self._replies.left_out.add(episode_id)
                found += 1
            elif self.queue.leave_out(episode_id):
                found += 1
        self.nudge_all()
        return found

    def resetting(self) -> int:
        """Resets not answered yet, over all actors."""
        return sum(sum(m.last.resetting.values()) for m in self.members.values() if m.last and m.alive)

    def fatal(self, error: BaseException) -> None:
        """Nothing can be written any more: end at once."""
        code = error.exit_code if isinstance(error, RayevalError) else ExitCode.INTERNAL
        text = str(error) if isinstance(error, RayevalError) else described(error)
        if self.reason is not None and not self._broken:
            self.note("error", f"while draining: {text}")
            self.reason, self.exit_code = text, code  # comes before any milder reason to drain
        self._broken = True
        self.drain(text, code, grace_s=0.0)

    def held(self) -> list[Lease]:
        """Leases that living actors hold."""
        return [lease for member in self.members.values() for lease in member.held.values()]

    # ---- supervision --------------------------------------------------------------------------------------------------------------

    def _finished(self) -> bool:
        if any(m.state == MemberState.DEAD for m in self.members.values()):
            return False  # a burial gives its jobs back first
        if self.phase.draining:
            return self.queue.out == 0 or not any(m.alive for m in self.members.values())
        return self.queue.over

    def _look(self) -> None:
        """One synchronous pass over deadlines, signs of life and whoever waits for a nudge."""
        now = time.monotonic()
        asleep, self._looked_at = now - self._looked_at > _ASLEEP_S, now
        for member in list(self.members.values()):
            if not member.alive or member.vitals is None:
                continue
            if asleep:  # the driver itself was stopped: whose silence it was is not known
                member.vitals.answered_at = now
            age, silence = member.vitals.tick_age_s, member.vitals.silence_s(now)
            if silence > SILENT_S or age > SILENT_S:
                self._declare_dead(member, f"no sign of life for {max(silence, age):.0f} s")
                continue
            member.state = MemberState.SLOW if age > SLOW_S else MemberState.WORKING
            if member.last is not None and self.dispatch.news_for(member):
                member.nudge.set()
        if self._drain_until is not None and now >= self._drain_until and self._cancelled_at is None:
            self._cancelled_at = now
            self.phase.cancelled = True
            self.nudge_all()
        if self._cancelled_at is not None and now > self._cancelled_at + _STOP_S:
            for member in [m for m in self.members.values() if m.alive and m.jobs]:
                self._declare_dead(member, "it did not end its cancelled episodes")
        self._look_at_size(now)
        for governor in self._governors:
            governor.look(self, now)

    def _look_at_size(self, now: float) -> None:
        """An actor that could not be placed, or replaced, is asked for again now and then: a node may have come back."""
        wanted = [m for m in self.members.values() if m.state != MemberState.ENDED and (not m.suspect or m.converted) and not m.extra]
        if len(wanted) < self.settings.actors and now - self._asked_actor_at > ASK_ACTOR_EVERY_S:
            self._asked_actor_at = now
            if self.queue.waiting > len(wanted) and not self.phase.draining:
                self.bear(max(1, self.slots // self.settings.actors))

    # ---- one actor ----------------------------------------------------------------------------------------------------------------

    def bear(self, slots: int, suspect: bool = False, extra: bool = False) -> str:
        """Ask for one more actor. -> its id."""
        self._born += 1
        spec = self._make_spec(f"actor-{self._born:03d}", slots)
        actor_id = spec.actor_id  # the maker adds the driver's epoch: ids are unique over the life of the run
        member = Member(spec, self._spawn(spec), suspect=suspect, extra=extra)
        self.members[actor_id] = member
        self.dealer.join(actor_id, slots)
        self.start(self._live(member), actor_id)
        return actor_id

    async def _live(self, member: Member) -> None:
        """From placement to the last reply."""
        try:
            member.info = await member.handle.start(PLACE_S if member.suspect else self.settings.ready_s)
        except PlacementError as error:
            self._end_unplaced(member, error)
            return
        except (ActorGoneError, ActorFaultError) as error:
            if isinstance(error, ActorFaultError):
                self._count_fault(error)
            self._count_death(str(error))
            if not self.phase.draining and self._faults < 2 and not member.extra and not member.suspect:
                self.bear(member.spec.slots)
                self._share_anew()
            self._end_unplaced(member, error)
            return
        info = member.info
        if info.slots < member.spec.slots:
            self.note(
                "warning",
                f"{member.actor_id} takes {info.slots} of {member.spec.slots} slots: file descriptors are short",
            )
        self._replies.write_down(self._journal.actor, member.actor_id, info.node_id, info.host, info.space, info.pid, info.start_time)
        member.state = MemberState.WORKING
        member.vitals = self._health.watch(member.actor_id, member.handle)
        if not member.suspect:
            self._share_anew()
        try:
            await self._exchanges.serve(member)
        except ActorFaultError as error:
            self._count_fault(error)
            self._declare_dead(member, "its code raised")
        except ActorGoneError as error:
            self._declare_dead(member, str(error))

    def _end_unplaced(self, member: Member, error: Exception) -> None:
        member.state = MemberState.ENDED
        self.dealer.leave(member.actor_id)
        self.note("warning", str(error) if isinstance(error, PlacementError) else f"{member.actor_id} ended before it ran: {error}")
        if member.suspect:
            self.suspects.unplaced()
            self._changed.set()
            return
        if not any(m.alive or m.state in (MemberState.STARTING, MemberState.DEAD) for m in self.members.values()):
            self.drain(f"no actor could be placed: {error}", ExitCode.STOPPED, grace_s=0.0)
        self._asked_actor_at = time.monotonic()
        self.set_slots(self.slots)  # the others take over its share
        self._changed.set()

    def _count_death(self, cause: str) -> None:
        self._deaths_in_vain += 1
        if self._deaths_in_vain > max(MIN_DEATHS_IN_VAIN, 3 * self.settings.actors) and not self.phase.draining:
            text = f"{self._deaths_in_vain} actors died one after the other and no episode ended between them; the last one: {cause}"
            self.drain(text, ExitCode.STOPPED, grace_s=0.0)

    def _count_fault(self, error: ActorFaultError) -> None:
        self._faults += 1
        self.note("error", f"an actor's code raised:\n{error}")
        if self._faults >= 2:
            self.drain(f"a second actor's code raised:\n{error}", ExitCode.INTERNAL, grace_s=0.0)

    def _on_progress(self, episodes_ended: bool) -> None:
        if episodes_ended:
            self._deaths_in_vain = 0
        if self.queue.over or self.phase.draining:
            self._changed.set()

    # ---- ends ---------------------------------------------------------------------------------------------------------------------

    def _declare_dead(self, member: Member, cause: str) -> None:
        if not member.alive:
            return
        member.state, member.died_at = MemberState.DEAD, time.monotonic()
        self._count_death(cause)
        self._health.forget(member.actor_id)
        member.handle.kill()
        member.nudge.set()
        self.note("warning", f"{member.actor_id} is lost with {len(member.jobs)} episodes: {cause}")
        self.start(self._bury(member, cause, member.died_at), f"bury-{member.actor_id}")

    async def _bury(self, member: Member, cause: str, died_at: float) -> None:
        info = member.info
        assert info is not None
        await fence(
            here=self.settings.kill_by_pid and info.space == process_space(),
            pid=info.pid,
            start_time=info.start_time,
            last_renewal=died_at,
            fence_s=self.settings.fence_s,
        )
        left = await release_leases(
            self.environment,
            list(member.held.values()),
            lambda lease: self._replies.write_down(self._journal.ended, member.actor_id, lease),
        )
        if left:
            self.note(
                "warning",
                f"{len(left)} leases of {member.actor_id} could not be released; `rayeval leases release` tries again",
            )
        else:
            self._replies.write_down(self._journal.actor_gone, member.actor_id)
        await asyncio.sleep(max(0.0, died_at + self.settings.company_s - time.monotonic()))
        others = [m.died_at for m in self.members.values() if m is not member]
        blameless = in_company(died_at, others, self.settings.company_s) or await member.handle.lost_its_node(_NODE_S)
        tickets = [ticket for ticket, _ in member.jobs.values()]
        for _, endpoint in member.jobs.values():
            self.dispatch.endpoint_freed(endpoint)
        member.jobs.clear()
        member.held.clear()
        await self.admission.look_again(self)  # a reset it left unanswered holds a slot that nobody can name
        self.dealer.leave(member.actor_id)
        member.state = MemberState.ENDED
        if member.suspect and tickets and not blameless:
            self.note("error", f"{tickets[0].job.episode_id} killed an actor of its own and is quarantined")
            self.ledger.commit_quarantined(tickets[0], cause)
        else:
            self.ledger.commit_lost(tickets, cause, blameless=blameless)
        self._replies.leave_out(tickets)
        if (not member.suspect or member.converted) and self.queue.waiting and not self.phase.draining and not self.phase.closing:
            self.replaced += 1
            self.bear(member.spec.slots)
            self._share_anew()
        self.nudge_all()

    async def retire(self, member: Member) -> None:
        """Stop an actor in order and take its last words."""
        reply = await member.handle.stop(member.acknowledged, _STOP_S)
        if reply is None:
            self.note("warning", f"{member.actor_id} did not stop in order")
            member.state = MemberState.WORKING
            self._declare_dead(member, "it did not stop in order")
            return
        self._replies.take(member, reply)
        self._health.forget(member.actor_id)
        member.state = MemberState.ENDED
        self.dealer.leave(member.actor_id)
        if not member.held:
            self._replies.write_down(self._journal.actor_gone, member.actor_id)
        member.handle.kill()

    async def _close(self) -> None:
        """Stop every actor; bounded."""
        for member in self.members.values():
            member.nudge.set()

        starting = {member.actor_id for member in self.members.values() if member.state == MemberState.STARTING}
        for task in self._tasks:
            if task.get_name() in starting:
                task.cancel()  # what is asked for and not there yet may never come

        async def end(member: Member) -> None:
            if member.alive:
                await self.retire(member)
            elif member.state == MemberState.STARTING:
                member.state = MemberState.ENDED
                member.handle.kill()

        await asyncio.gather(*(end(m) for m in list(self.members.values())))
        deadline = time.monotonic() + _STOP_S + self.settings.fence_s
        while self._tasks and time.monotonic() < deadline:
            await asyncio.wait(self._tasks, timeout=1.0)
        for task in self._tasks:
            task.cancel()

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task that the pool owns: its failure ends the run."""
        task: asyncio.Task[None] = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._changed.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                self.error = error
                self.fatal(error)

        task.add_done_callback(ended)

    error: BaseException | None = None
    """What a task of the pool raised: bad input that an actor found, or a defect."""

    def nudge_all(self) -> None:
        """Look at once whether there is something to say to each actor."""
        for member in self.members.values():
            member.nudge.set()
        self._changed.set()
