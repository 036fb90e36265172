"""A pool over local actors in a shared fake world, with handles that can die."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from actors.dealing import Dealer
from actors.handles import ActorFaultError, ActorGoneError, LocalHandle, ReplyGoneError
from actors.ledger import Ledger
from actors.messages import ActorInfo, ActorSpec, Order, Ping, Reply
from actors.pool import PoolSettings, RolloutPool
from actors.queue import JobQueue
from rayeval.config import load_config
from rayeval.exceptions import PlacementError
from rayeval.plan import make_plan
from rayeval.schemas import EnvironmentIdentity, ErrorKind, ExitCode
from rayeval.store import LeaseJournal, RunDirectory, RunLock, TraceLog, iter_traces, load_resume_index
from tests.actors.plans import SHOP, write_config
from tests.actors.specs import spec
from tests.actors.worlds import KIND, new_world

MODEL = "http://model.invalid/v1"
DEADLINE_S = 60.0


class FragileHandle(LocalHandle):
    """A local actor that fails on demand. ``fail_next``: raised by the next exchange, after the actor has answered it."""

    def __init__(self, actor_spec: ActorSpec) -> None:
        super().__init__(actor_spec)
        self.spec = actor_spec
        self.fail_next: Exception | None = None
        self.unplaceable = False
        self.waits_for_a_place = False
        self.hears_no_kill = False
        """While it waits for a place: as Ray, when the head is gone."""
        self.dies_at_birth = False
        self.tick_age_s = 0.0
        """What a ping says of the work loop."""
        self.killed = False
        self.on_a_lost_node = False

    async def start(self, timeout_s: float) -> ActorInfo:
        if self.unplaceable:
            raise PlacementError(f"actor {self.spec.actor_id} was not running after {timeout_s:.0f} s")
        if self.waits_for_a_place:
            await (asyncio.sleep(3600.0) if self.hears_no_kill else self._gone.wait())
            raise ActorGoneError("killed before it was placed")
        if self.dies_at_birth:
            raise ActorGoneError("its process ended as it began")
        return await super().start(timeout_s)

    async def exchange(self, order: Order) -> Reply:
        reply = await super().exchange(order)
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error
        return reply

    def ping(self, timeout_s: float) -> Ping | None:
        answer = super().ping(timeout_s)
        return answer and Ping(self.tick_age_s)

    async def lost_its_node(self, timeout_s: float) -> bool:
        return self.on_a_lost_node

    def kill(self) -> None:
        self.killed = True
        super().kill()

    def runs(self, episode_id: str) -> bool:
        """Whether it lives and runs this episode."""
        return not self.killed and episode_id in self._actor._running

    def running(self) -> set[str]:
        """Episodes it runs or has queued."""
        return {*self._actor._running, *(a.job.episode_id for a in self._actor._queue)}

    def die(self) -> None:
        self.fail_next = ActorGoneError("its process was killed")

    def lose_a_reply(self) -> None:
        self.fail_next = ReplyGoneError("its node is gone")

    def fault(self) -> None:
        self.fail_next = ActorFaultError("Traceback: a defect")


class Field:
    """Everything a pool needs, over ``tasks`` jobs."""

    def __init__(
        self,
        root: Path,
        *,
        tasks: int,
        actors: int,
        slots: int,
        hook: Any,
        servers: tuple[str, ...],
        handle: type[FragileHandle] = FragileHandle,
        **settings: Any,
    ) -> None:
        self._handle = handle
        overrides = {"environment.kind": KIND, "environment.options": {"world": root.name}}
        loaded = load_config(write_config(root, tasks=tasks, overrides=overrides))
        self.plan = make_plan(loaded)
        self.config = loaded.config.model_dump(mode="json")
        self.world = new_world(root.name, servers, hook=hook)
        self.run_dir = RunDirectory(root / "run").create()
        self.lock = RunLock.acquire(self.run_dir)
        self.log = TraceLog(self.run_dir, self.lock)
        self.journal = LeaseJournal(self.run_dir.leases)
        index = load_resume_index(self.run_dir)
        self.queue = JobQueue(
            self.plan, index, attempts=settings.pop("attempts", 3), longest_first=False, quarantined=tuple(index.quarantined)
        )
        self.handles: list[FragileHandle] = []
        self.notes: list[tuple[str, str]] = []
        self.prepare: Callable[[FragileHandle], None] = lambda handle: None
        fence_s = settings.pop("fence_s", 30.0)
        self.ledger = Ledger(
            self.log,
            self.queue,
            {"plan_fingerprint": self.plan.fingerprint},
            EnvironmentIdentity(),
            on_pinned=lambda identity: None,
            on_changed=lambda server, why: self.pool.refuse_server(server, why),
            on_final_failure=lambda kind: None,
            on_fatal=lambda error: self.pool.fatal(error),
        )
        self.pool = RolloutPool(
            PoolSettings(
                actors=actors, slots=slots, fence_s=fence_s, grace_s=settings.pop("grace_s", 30.0), **{"company_s": 0.02, **settings}
            ),
            queue=self.queue,
            ledger=self.ledger,
            dealer=Dealer(dict.fromkeys(servers, self.world.slots)),
            journal=self.journal,
            environment=self.world,
            endpoints=(MODEL,),
            make_spec=lambda actor_id, n: spec(
                self.config, actor_id=f"1-{actor_id}", slots=n, servers=servers, endpoints=(MODEL,), fence_s=fence_s
            ),
            spawn=self._spawn,
            note=lambda level, text: self.notes.append((level, text)),
        )

    def _spawn(self, actor_spec: ActorSpec) -> FragileHandle:
        handle = self._handle(actor_spec)
        self.prepare(handle)
        self.handles.append(handle)
        return handle

    async def run(self, deadline_s: float = DEADLINE_S) -> ExitCode | None:
        """Run the pool to its end; -> its exit code (None: by the count of failures)."""
        await asyncio.wait_for(self.pool.run(), deadline_s)
        return self.pool.exit_code

    def holder(self, episode_id: str) -> FragileHandle:
        """The living actor that runs this episode."""
        return next(h for h in self.handles if h.runs(episode_id))

    def noted(self, words: str) -> bool:
        """Whether a note has these words."""
        return any(words in text for _, text in self.notes)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110 (what happens in a pool has no event)
                await asyncio.sleep(0.005)


def completed(f: Field) -> Counter[str]:
    """Completed lines of each episode on disk."""
    return Counter(t["episode_id"] for t in iter_traces(f.run_dir) if t["status"] == "completed")


@contextlib.asynccontextmanager
async def field(
    root: Path, *, tasks: int = 12, actors: int = 2, slots: int = 4, hook: Any = None, servers: tuple[str, ...] = (SHOP,), **settings: Any
) -> AsyncIterator[Field]:
    """A field whose files are closed at the end."""
    made = Field(root, tasks=tasks, actors=actors, slots=slots, hook=hook, servers=servers, **settings)
    try:
        yield made
    finally:
        await made.log.close()
        made.journal.close()
        made.lock.release()


__all__ = ["DEADLINE_S", "MODEL", "ErrorKind", "Field", "FragileHandle", "field"]
