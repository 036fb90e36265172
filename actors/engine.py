"""Run a plan: from a configuration to a directory of durable traces and an exit code.

Order, each step undone by the ones around it in reverse: lock the directory, repair its tail, check or write the manifest, start the
demo if asked, look at the servers, clear what an earlier driver left, run the pool, clear again, write shards where asked, summarize,
unlock.
Closing rule: whatever ends the run, the demo is stopped, Ray is left, the last status says ``ended`` with its exit code, and the lock is
given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import uvloop

from actors import cluster, recovery, shards
from actors.adaptive import EPISODES_PER_ACTOR, Adaptive
from actors.asking import ask_head
from actors.broker import RayBroker, RunSpec
from actors.broker_client import BrokerClient
from actors.dealing import Dealer
from actors.governors import Governor
from actors.handles import ActorHandle, LocalHandle, RayHandle
from actors.head_watch import head_watch
from actors.lag import LoopLag
from actors.ledger import Ledger
from actors.messages import ActorSpec
from actors.pool import PoolSettings, RolloutPool
from actors.preflight import check_classes, reach_all
from actors.progress import Progress
from actors.queue import JobQueue, JobState
from actors.request import RunOutcome, RunRequest
from actors.scaling import Scaling
from actors.signals import StopSignals
from actors.steering import Steering
from actors.telling import Telling
from actors.tracing import check_extra
from rayeval.demo import DemoServers, start_demo
from rayeval.display import RunDisplay
from rayeval.environments import Environment, load_environment
from rayeval.exceptions import EndpointsOutError, InputError, RayevalError, RefusedError
from rayeval.models.limiter import START
from rayeval.plan import check_manifest, manifest_of, record_test_access
from rayeval.schemas import EnvironmentIdentity, ExitCode, JsonObject
from rayeval.store import (
    LeaseJournal,
    ResumeIndex,
    RunDirectory,
    RunLock,
    TraceLog,
    load_resume_index,
    repair_torn_tail,
    write_launch,
)
from rayeval.summary import summarize_run

__all__ = ["RunOutcome", "RunRequest", "run"]

_ASK_S = 10.0
RESETS_PER_S = 200.0
"""Resets that a server which does not keep up may get in a second, over all actors (``ResetPacer``)."""


def run(request: RunRequest, display: RunDisplay) -> RunOutcome:
    """Run (or resume) a plan to its end. Raises RayevalError for what stops it before the first episode."""
    signals = StopSignals()
    signals.install()
    try:
        with _Engine(request, display, signals) as engine:
            return engine.run()
    finally:
        signals.restore()


class _Engine:
    """One invocation."""

    def __init__(self, request: RunRequest, display: RunDisplay, signals: StopSignals) -> None:
        self._request, self._signals = request, signals
        self._config = request.loaded.config
        self._plan = request.plan
        self._run_dir = RunDirectory(request.run_dir)
        self._telling = Telling(self._run_dir, self._config, display)
        self._display, self._note = self._telling.display, self._telling.note
        self._stack = contextlib.ExitStack()
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._pinned = EnvironmentIdentity()
        self._unaccounted: dict[str, int] = {}
        self._shared = False
        """Whether other jobs may be on the same cluster."""
        self._broker: BrokerClient | None = None
        self._started = time.monotonic()

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    # ---- before the first episode -------------------------------------------------------------------------------------------------

    def run(self) -> RunOutcome:
        plan, config = self._plan, self._config
        check_extra(config)
        if self._request.address is None and "RAY_ADDRESS" not in os.environ:
            check_classes(config, plan.persona)  # on a cluster the key may be where the actors are
        manifest = manifest_of(plan, self._request.loaded)
        if self._run_dir.manifest.exists():
            self._check(manifest)  # before anything is touched
        self._run_dir.create()
        self._lock = RunLock.acquire(self._run_dir, job_id=cluster.job_id(), on_wait=lambda text: self._display.note("warning", text))
        self._stack.callback(self._lock.release)
        self._steering = Steering(self._run_dir, plan, config, self._note, self._started)
        self._stack.callback(self._steering.close)
        if self._run_dir.manifest.exists():
            self._check(manifest)  # another driver may have written it meanwhile
            if not self._holds_traces():
                self._run_dir.manifest.unlink()  # a start that never came to an episode binds nobody
        record_test_access(plan, self._request.loaded)
        if not self._run_dir.manifest.exists():
            self._run_dir.write_manifest(manifest)
        loaded = self._request.loaded
        launch = write_launch(
            self._run_dir,
            config_text=loaded.text,
            resolved=config.model_dump(mode="json"),
            origins=loaded.origins,
            argv=self._request.argv,
        )
        self._telling.open_files(launch)
        self._stack.callback(self._telling.logs.close)
        torn = repair_torn_tail(self._run_dir)
        if torn:
            self._note("warning", f"{torn} bytes of an unfinished line were cut off and kept in {self._run_dir.torn.name}")
        index = load_resume_index(self._run_dir)
        if index.completed and not config.execution.resume:
            raise RefusedError(
                f"execution.resume is false and {self._run_dir.path} holds {len(index.completed)} completed episodes; "
                "give another experiment.name or execution.resume=true"
            )
        self._run_dir.point_latest()
        queue = JobQueue(
            plan,
            index,
            attempts=config.execution.attempts,
            longest_first=config.execution.order == "longest_first",
            only_failed=self._request.retry_failed,
            quarantined=() if self._request.retry_quarantined else tuple(index.quarantined),
        )
        self._progress = Progress(self._run_dir.name, plan.job_count, queue, self._started_at, self._telling.notes)
        self._telling.begin(self._progress, self._steering.publish)
        self._display.start(
            {
                "run": self._run_dir.name,
                "path": str(self._run_dir.path),
                "config": str(self._request.loaded.path),
                "planned": plan.job_count,
                "reused": queue.counts[JobState.REUSED],
                "to_run": queue.waiting,
                "failed_before": queue.failed_before,
                "quarantined": queue.quarantined,
                "fingerprint": plan.fingerprint,
            }
        )
        self._stack.push(self._end_by_error)
        if queue.over:
            asyncio.run(self._write_shards(None))
            return self._end(None, None, index)
        self._telling.start_tracing(plan, self._lock.epoch)
        self._steering.read_caps(resuming=index.lines > 0)
        self._progress.prices = self._steering.caps.prices
        servers, endpoints = self._endpoints()
        actors = self._actor_count()
        asyncio.run(reach_all(self._config, servers, endpoints))  # before Ray: a port with nothing behind it is told at once
        if not self._request.show:
            self._telling.tell("starting")
            self._note("info", "starting Ray")
            self._stack.enter_context(contextlib.redirect_stdout(cluster.RayTalk(self._note)))
            joined = cluster.join(self._request.address, actors)
            if joined.ours:
                self._stack.callback(cluster.leave)
                self._signals.before_exit = cluster.kill_local
            self._stack.callback(self._telling.logs.settle)
            self._telling.on_ray()
            self._stack.callback(self._telling.leave_ray)
            self._note("debug", f"on {joined.words}")
            self._shared = not joined.private
            actors = self._actor_count(cluster.free_cpus())
            self._signals.install()
        loop_factory = None if os.environ.get("RAYEVAL_LOOP") == "asyncio" else uvloop.new_event_loop
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                return runner.run(self._drive(queue, index, servers, endpoints, actors))
        finally:
            self._signals.install()  # the loop took its own handlers with it

    def _broker_client(self, slots: dict[str, int], servers: tuple[str, ...], endpoints: tuple[str, ...]) -> BrokerClient | None:
        """This run's side of the slot broker; None where there is nobody to share with."""
        execution = self._config.execution
        if not execution.broker:
            return None
        if not self._shared:
            self._note("info", "execution.broker has no effect: no other job can be on this run's own Ray (give --address)")
            return None
        spec = RunSpec(
            name=self._run_dir.name,
            weight=execution.broker_weight,
            fence_s=execution.fence_s,
            config=self._config.model_dump(mode="json"),
            persona=self._plan.persona,
            servers=servers,
            sys_path=cluster.import_paths(),
        )
        return BrokerClient(RayBroker(), spec, slots, dict.fromkeys(endpoints, execution.model_slots) if execution.model_slots else {})

    def _holds_traces(self) -> bool:
        return self._run_dir.traces.exists() and self._run_dir.traces.stat().st_size > 0

    def _check(self, manifest: JsonObject) -> None:
        if not self._holds_traces():
            return
        check_manifest(self._run_dir.read_manifest(), manifest, self._request.same_weights)

    def _endpoints(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """-> (environment servers, model endpoints), the demo started where asked."""
        config = self._config
        servers, endpoints = config.environment.base_urls, config.model.base_urls
        if "demo" in servers or "demo" in endpoints:
            demo: DemoServers = start_demo()
            self._stack.callback(demo.close)
            servers = (demo.shop_url,) if "demo" in servers else servers
            endpoints = (demo.model_url,) if "demo" in endpoints else endpoints
        return servers, endpoints

    def _actor_count(self, free_cpus: int | None = None) -> int:
        execution = self._config.execution
        if execution.actors != "auto":
            return int(execution.actors) if execution.concurrency == "auto" else min(int(execution.actors), execution.concurrency)
        wanted = 1 if execution.concurrency == "auto" else -(-execution.concurrency // EPISODES_PER_ACTOR)
        return max(1, min(wanted, free_cpus if free_cpus is not None else wanted))

    def _first_slots(self, actors: int, endpoints: int) -> int:
        concurrency = self._config.execution.concurrency
        return 2 * START * actors * max(1, endpoints) if concurrency == "auto" else concurrency

    def _governors(self, ledger: Ledger) -> list[Governor]:
        execution = self._config.execution
        adaptive = execution.concurrency == "auto"
        chosen: list[Governor] = [] if self._broker is None else [self._broker]
        found = Adaptive() if adaptive else None
        chosen += self._steering.governors(ledger, found)
        if found is not None:
            chosen.append(found)
        if not self._request.show and (head := head_watch(private=not self._shared)) is not None:
            chosen.append(head)
        if execution.actors == "auto" and not self._request.show:
            chosen.append(Scaling(partial(ask_head, cluster.unclaimed_cpus, _ASK_S), per_actor=EPISODES_PER_ACTOR if adaptive else None))
        return chosen

    # ---- episodes -----------------------------------------------------------------------------------------------------------------

    async def _drive(
        self, queue: JobQueue, index: ResumeIndex, servers: tuple[str, ...], endpoints: tuple[str, ...], actors: int
    ) -> RunOutcome:
        config, execution = self._config, self._config.execution
        loop = asyncio.get_running_loop()
        environment = load_environment(config, self._plan.persona, servers)
        journal = LeaseJournal(self._run_dir.leases)
        pool: RolloutPool | None = None
        status: asyncio.Task[None] | None = None
        self._progress.lag = lag = LoopLag()
        try:
            await self._clear_before(environment, journal)
            agreeing = list(self._agreeing(await recovery.capacities(environment)))
            admission = {c.server: max(0, min(c.slots, c.free)) for c in agreeing}
            self._broker = self._broker_client({c.server: c.slots for c in agreeing}, servers, endpoints)
            if self._shared:
                self._steering.open_to_cluster()
            log = TraceLog(self._run_dir, self._lock, execution.fsync)
            provenance: JsonObject = {"plan_fingerprint": self._plan.fingerprint}

            def pin(identity: EnvironmentIdentity) -> None:
                self._run_dir.write_environment(identity._asdict())

            def on_final_failure(kind: str) -> None:
                if self._request.fail_fast and pool is not None:
                    pool.drain(f"an episode failed for good ({kind}) and -x was given", ExitCode.FAILED_EPISODES)

            ledger = Ledger(
                log,
                queue,
                provenance,
                self._pinned,
                on_pinned=pin,
                on_changed=lambda server, why: pool.refuse_server(server, why) if pool is not None else None,
                on_final_failure=on_final_failure,
                on_note=self._note,
                on_fatal=lambda error: pool.fatal(error) if pool is not None else None,
            )
            self._telling.attach(ledger, log, servers, endpoints)

            def make_spec(actor_id: str, slots: int) -> ActorSpec:
                return ActorSpec(
                    actor_id=f"{self._lock.epoch}-{actor_id}",
                    config=config.model_dump(mode="json"),
                    system_prompt=self._plan.system_prompt,
                    skill_bank=self._plan.skill_bank,
                    persona=self._plan.persona,
                    provenance=provenance,
                    servers=servers,
                    endpoints=endpoints,
                    slots=slots,
                    fence_s=execution.fence_s,
                    resets_per_s=RESETS_PER_S / actors,
                    pinned=self._pinned,
                    sys_path=cluster.import_paths(),
                )

            def spawn(spec: ActorSpec) -> ActorHandle:
                return LocalHandle(spec, self._display.event) if self._request.show else self._telling.logs.watch(spec, RayHandle(spec))

            pool = RolloutPool(
                PoolSettings(
                    actors=actors,
                    slots=self._first_slots(actors, len(endpoints)),
                    fence_s=execution.fence_s,
                    grace_s=execution.grace_s,
                    stall_timeout_s=execution.stall_timeout_s,
                    endpoint_outage_s=execution.endpoint_outage_s,
                    kill_by_pid=self._request.kill_by_pid,
                ),
                queue=queue,
                ledger=ledger,
                dealer=Dealer(admission),
                journal=journal,
                environment=environment,
                endpoints=endpoints,
                make_spec=make_spec,
                spawn=spawn,
                note=self._note,
                governors=self._governors(ledger),
            )
            for endpoint in endpoints if execution.model_slots else ():
                pool.dispatch.set_ceiling(endpoint, execution.model_slots or 0)
            pool.admission.slots.update({c.server: c.slots for c in agreeing})
            if self._broker is not None:
                self._broker.attach(pool)
            self._progress.broker = self._broker
            self._signals.listen(loop, lambda number: pool.drain(f"{number.name} was received", ExitCode(128 + number)))
            self._progress.attach(pool, ledger)
            status = asyncio.create_task(self._telling.report())
            try:
                await pool.run()
            finally:
                if self._broker is not None:
                    await self._broker.aclose(pool)
            status.cancel()
            if isinstance(pool.error, InputError):
                raise pool.error
            await log.close()
            await self._clear_after(environment)
        finally:
            lag.stop()
            if status is not None:
                status.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(15.0):
                    await environment.aclose()
            await self._steering.aclose()
            journal.close()
        exit_code, reason = pool.exit_code, self._steering.caps.reason_at_end(pool.reason, ledger)
        self._telling.tell("closing")
        await self._write_shards(exit_code)
        outcome = self._end(exit_code, reason, index)
        await self._steering.farewell(outcome.status)
        return outcome

    async def _clear_before(self, environment: Environment, journal: LeaseJournal) -> None:
        found = await recovery.recover(environment, self._run_dir, journal, self._config.execution.fence_s, self._note)
        if found.actors:
            self._note(
                "info",
                f"{found.actors} actors of an earlier driver were fenced and {found.released} of their leases released"
                + (f", {found.unreleased} could not be" if found.unreleased else ""),
            )
        if self._exclusive:
            await recovery.clear_exclusive(environment, self._note)
        pinned = self._run_dir.read_environment()
        if pinned is not None:
            self._pinned = EnvironmentIdentity(**{k: pinned.get(k) for k in EnvironmentIdentity._fields})

    async def _clear_after(self, environment: Environment) -> None:
        try:
            if self._exclusive:
                await recovery.clear_exclusive(environment, self._note)
            else:
                others = self._broker.others if self._broker is not None else {}
                self._unaccounted = await recovery.unaccounted(environment, Counter(others))
        except EndpointsOutError as error:
            self._note("warning", f"leases could not be counted at the end: {error}")

    @property
    def _exclusive(self) -> bool:
        chosen = self._config.execution.exclusive_environment
        return chosen if isinstance(chosen, bool) else "demo" in self._config.environment.base_urls

    def _agreeing(self, found: Any) -> Iterator[Any]:
        """Servers of the pinned identity; what no server has been pinned to yet is pinned by the first one."""
        agreeing = 0
        said: str | None = None
        capacities = list(found)
        if not capacities:
            given = list(self._config.environment.base_urls)
            raise InputError("environment.base_url", given, "leads to no server; give URLs, or name the servers in the class's capacity()")
        for capacity in capacities:
            said = capacity.identity.differs_from(self._pinned)
            if said is not None:
                self._note("error", f"environment {capacity.server} gets no work: it is of another version ({said})")
                continue
            merged = self._pinned.merged(capacity.identity)
            if merged != self._pinned:
                self._pinned = merged
                self._run_dir.write_environment(merged._asdict())
            agreeing += 1
            yield capacity
        if not agreeing:
            raise RefusedError(f"environment: no server is of the version the run began with ({said}); give another experiment.name")

    async def _write_shards(self, exit_code: ExitCode | None) -> None:
        """Where ``execution.shards`` asks for them, and neither a signal nor the machine ended the run."""
        if self._signals.received is not None or exit_code in (ExitCode.STOPPED, ExitCode.INTERNAL):
            return
        completed = exit_code is None and not self._progress.cancelled
        chosen = self._config.execution.shards
        if shards.wanted(chosen, self._plan.job_count, completed=completed, on_ray=not self._request.show):
            self._signals.listen(asyncio.get_running_loop(), lambda _: None)  # its exit code is that of the episodes, which are over
            await shards.write_at_end(self._run_dir, self._note, lambda: self._signals.received is not None, self._request.address)

    # ---- the end ------------------------------------------------------------------------------------------------------------------

    def _end(self, exit_code: ExitCode | None, reason: str | None, index: ResumeIndex) -> RunOutcome:
        extras: JsonObject = {"unaccounted_leases": self._unaccounted} if self._unaccounted else {}
        if (spans := self._telling.flush_tracing()) is not None:
            extras["tracing"] = spans
        summary: JsonObject | None = None
        try:
            summary = summarize_run(self._run_dir, extras)
            self._run_dir.write_summary(summary)
        except RayevalError as error:
            self._note("error", f"the summary could not be written: {error}")
            if exit_code is None:
                exit_code, reason = error.exit_code, str(error)
        if exit_code is ExitCode.REFUSED and summary and summary["counts"]["not_run"] == 0:
            exit_code = reason = None  # drained by request or by a cap, when there was nothing left to be kept from running
        if exit_code is None:
            failed = int(summary["counts"]["failed"]) if summary else 0
            allowed = self._config.execution.allowed_failures(self._plan.job_count)
            exit_code = ExitCode.FAILED_EPISODES if failed > allowed else ExitCode.OK
            if exit_code is ExitCode.FAILED_EPISODES:
                reason = f"{failed} episodes failed for good, {allowed} were allowed"
            elif self._progress.cancelled:
                exit_code, reason = (
                    ExitCode.REFUSED,
                    f"{self._progress.cancelled} episodes were cancelled by request; the same command runs them",
                )
        status = self._telling.end(exit_code, reason, self._unaccounted)
        outcome = RunOutcome(exit_code, reason, self._run_dir.path, summary, status)
        self._display.end({"exit_code": int(exit_code), "reason": reason, "summary": summary, "status": status})
        return outcome

    def _end_by_error(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            self._telling.end_by_error(error)
