"""What a run tells Prometheus, through ``ray.util.metrics``: from figures that the driver has anyway, once a second.

Invariants:
* Nothing here runs in an actor, and nothing for each step: calls ride as bucket numbers with their finished trace and are added up in
  ``Calls.count``.
* A counter is given the difference to what was given before, so it is that of this invocation; its first value is a 0, for ``rate`` does
  not see a series begin.
* Every gauge is given each second (Ray drops one that is not), one whose labels are gone as 0.
* No label holds a secret (``public_url``) nor an id; beyond ``MOST_NAMES`` values of a label the rest is ``other``.
Closing rule: ``close`` sets every gauge that would be untrue of a run that is over to 0. Leaving Ray flushes; nothing else is held.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actors.metric_exporters import Exporter, Labels
from rayeval.latencies import EPISODE_EDGES_S, Spread
from rayeval.metric_names import BOUND, METRICS, RUN, Kind
from rayeval.schemas import EpisodeStatus, ErrorKind, FinishedTrace, JsonObject
from rayeval.transport import public_url

if TYPE_CHECKING:
    from actors.ledger import Ledger
    from rayeval.store import TraceLog

MOST_NAMES = 100
"""Endpoints or servers with a label value of their own. OpenTelemetry folds a metric of more than 2,000 series into one."""
LAG_WINDOW_S = 15.0
"""Ray exports every 10 s: a shorter window would hide what happened between two exports."""

_RETRY_CAUSES = ("status_429", "status_500", "status_502", "status_503", "status_504", "timeout", "connect", "disconnected")
"""Those whose series begin with the run; others appear when they are seen."""


class Names:
    """Label values of URLs: without what may be secret, and no more than ``MOST_NAMES`` of them."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def of(self, url: str) -> str:
        """The label value; ``other`` when there are too many."""
        name = self._of.get(url)
        if name is None:
            name = public_url(url) if url else ""
            known = set(self._of.values()) - {"other"}
            name = self._of[url] = name if name in known or len(known) < MOST_NAMES else "other"
        return name


class Calls:
    """Adds up what finished traces say of their calls."""

    def __init__(self) -> None:
        self.endpoints, self.servers = Names(), Names()
        self.model: defaultdict[str, Spread] = defaultdict(Spread)
        """By endpoint."""
        self.environment: defaultdict[str, Spread] = defaultdict(Spread)
        """By server."""
        self.episodes: defaultdict[str, Spread] = defaultdict(lambda: Spread(EPISODE_EDGES_S))
        """By status."""
        self.retries: Counter[tuple[str, str]] = Counter()
        """By endpoint and cause."""

    def count(self, trace: FinishedTrace) -> None:
        """Add one attempt; those lost with their actor know nothing of their calls."""
        figures = trace.figures
        if "model_s" not in figures:
            return
        endpoint, server = self.endpoints.of(figures["endpoint"] or ""), self.servers.of(trace.server or "")
        self.model[endpoint].add_packed(figures["model_s"])
        self.environment[server].add_packed(figures["environment_s"])
        for cause, n in (figures.get("model_retries") or {}).items():
            self.retries[endpoint, str(cause)] += n
        if (duration_ms := figures.get("duration_ms")) is not None:
            self.episodes[str(trace.status)].add(duration_ms / 1e3)


class RunMetrics:
    """The metrics of one run. Used from the driver's loop alone."""

    def __init__(self, run: str, exporter: Exporter) -> None:
        self._run, self._exporter = run, exporter
        self._ledger: Ledger | None = None
        self._log: TraceLog | None = None
        self._calls = Calls()
        self._given: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[str, set[Labels]] = {m.name: set() for m in METRICS if m.kind is Kind.GAUGE and not m.lasting}
        self._lags: deque[tuple[float, float, float]] = deque()

    def attach(self, ledger: Ledger, log: TraceLog, servers: Iterable[str], endpoints: Iterable[str]) -> None:
        """From now on there is something to count: every series whose labels are known begins at 0."""
        self._ledger, self._log = ledger, log
        ledger.on_counted.append(self._calls.count)
        calls = self._calls
        for status in (EpisodeStatus.COMPLETED, EpisodeStatus.FAILED):
            _ = calls.episodes[status.value]
        for endpoint in map(calls.endpoints.of, endpoints):
            _ = calls.model[endpoint]
            for cause in _RETRY_CAUSES:
                calls.retries[endpoint, cause] += 0
        for server in map(calls.servers.of, servers):
            _ = calls.environment[server]
            self._count("rayeval_unaccounted_leases_total", 0, server=server)
        for kind in ErrorKind:
            self._count("rayeval_episode_failures_total", 0, kind=kind.value)
            self._count("rayeval_episode_retries_total", 0, kind=kind.value)
        self._give_counters({})

    def tell(self, status: Mapping[str, Any]) -> None:
        """Give everything once, from the status that was just told."""
        self._give_counters(status)
        self._give_gauges(status)

    def end(self, status: Mapping[str, Any], unaccounted: Mapping[str, int]) -> None:
        """The last values of a run that is over. ``unaccounted``: slots for each server that nobody can name."""
        self._give_counters(status)
        left: Counter[str] = Counter()
        for url, slots in unaccounted.items():
            left[self._calls.servers.of(url)] += slots
        for server, slots in left.items():
            self._count("rayeval_unaccounted_leases_total", slots, server=server)
        self._give_progress(status)

    def close(self) -> None:
        """Whatever ended the run: no gauge goes on saying that it lives. Idempotent."""
        for name, known in self._gauges.items():
            for labels in known:
                self._exporter.set(name, labels, 0.0)

    # ---- counters -----------------------------------------------------------------------------------------------------------------

    def _give_counters(self, status: Mapping[str, Any]) -> None:
        ledger, log = self._ledger, self._log
        if ledger is None or log is None:
            return
        count = self._count
        count("rayeval_episodes_total", ledger.done, status="completed")
        count("rayeval_episodes_total", ledger.failed, status="failed")
        for kind, n in ledger.failures.items():
            count("rayeval_episode_failures_total", n, kind=kind)
        for kind, n in ledger.retried.items():
            count("rayeval_episode_retries_total", n, kind=kind)
        count("rayeval_late_results_total", ledger.late)
        totals = ledger.totals
        for name in ("steps", "actions", "invalid_actions", "protocol_errors"):
            count(f"rayeval_{name}_total", totals[name])
        count("rayeval_tokens_total", totals["prompt_tokens"], type="input")
        count("rayeval_tokens_total", totals["completion_tokens"], type="output")
        count("rayeval_cached_tokens_total", totals["cached_tokens"])
        if cost := status.get("cost"):
            count("rayeval_cost_total", cost["amount"], currency=cost["currency"])
        count("rayeval_actors_replaced_total", status.get("actors_replaced", 0))
        count("rayeval_fsyncs_total", log.fsyncs)
        count("rayeval_fsync_seconds_total", log.fsync_s)
        count("rayeval_trace_bytes_total", log.bytes)
        for (endpoint, cause), n in self._calls.retries.items():
            count("rayeval_model_retries_total", n, endpoint=endpoint, cause=cause)
        for name, label, spreads in (
            ("rayeval_model_latency_seconds", "endpoint", self._calls.model),
            ("rayeval_environment_latency_seconds", "server", self._calls.environment),
            ("rayeval_episode_duration_seconds", "status", self._calls.episodes),
        ):
            for value, spread in spreads.items():
                for bound, n in spread.cumulative():
                    count(f"{name}_bucket", n, **{label: value, BOUND: bound})
                count(f"{name}_sum", spread.sum_s, **{label: value})
                count(f"{name}_count", spread.count, **{label: value})

    def _count(self, name: str, total: float, **labels: str) -> None:
        key = (name, self._labels(labels))
        before = self._given.get(key)
        if before is None:
            self._exporter.raised(*key, 0.0)
        if total > (before or 0.0):
            self._exporter.raised(*key, total - (before or 0.0))
        self._given[key] = max(total, before or 0.0)

    # ---- gauges -------------------------------------------------------------------------------------------------------------------

    def _give_gauges(self, status: Mapping[str, Any]) -> None:
        told: defaultdict[tuple[str, Labels], float] = defaultdict(float)

        def gauge(name: str, value: float | None, **labels: str) -> None:
            told[name, self._labels(labels)] += value or 0.0  # what shares the label ``other`` adds up

        calls = self._calls
        gauge("rayeval_run_active", status["state"] not in ("closing", "ended"))
        gauge("rayeval_episodes_in_flight", status["in_flight"])
        gauge("rayeval_episodes_queued", status["queued"])
        for stage, n in status.get("stages", {}).items():
            gauge("rayeval_stage_episodes", n, stage=stage)
        actors: list[JsonObject] = status["actors"]
        gauge("rayeval_slots", sum(actor["slots"] for actor in actors))
        for actor in actors:
            gauge("rayeval_actors", 1, state=actor["state"])
        for row in status["environment"]:
            server = calls.servers.of(row["server"])
            gauge("rayeval_environment_slots", row.get("slots"), server=server)
            gauge("rayeval_environment_admission", row["admission"], server=server)
            gauge("rayeval_environment_unreachable_seconds", row.get("out_s"), server=server)
            gauge("rayeval_leases_held", row["held"], server=server)
            gauge("rayeval_resets_pending", row["resetting"], server=server)
        for row in status["model"]:
            endpoint = calls.endpoints.of(row["endpoint"])
            gauge("rayeval_model_episodes", row["episodes"], endpoint=endpoint)
            gauge("rayeval_model_unreachable_seconds", row.get("out_s"), endpoint=endpoint)
        driver_s, actor_s = self._worst_lags(status["driver_lag_s"], max((actor["lag_s"] for actor in actors), default=0.0))
        gauge("rayeval_driver_loop_lag_seconds", driver_s)
        gauge("rayeval_actor_loop_lag_seconds", actor_s)
        for name, known in self._gauges.items():
            for labels in known:
                told.setdefault((name, labels), 0)
        for (name, labels), value in told.items():
            self._gauges[name].add(labels)
            self._exporter.set(name, labels, float(value))
        self._give_progress(status)

    def _give_progress(self, status: Mapping[str, Any]) -> None:
        """What stays true at the end."""
        labels = self._labels({})
        self._exporter.set("rayeval_episodes_planned", labels, float(status["planned"]))
        self._exporter.set("rayeval_episodes_unfinished", labels, float(status["not_run"]))
        if self._ledger is not None:
            self._exporter.set("rayeval_reward_accumulated", labels, float(self._ledger.reward_sum))
            self._exporter.set("rayeval_reward_episodes", labels, float(self._ledger.reward_n))

    def _worst_lags(self, driver_s: float, actor_s: float) -> tuple[float, float]:
        now = time.monotonic()
        self._lags.append((now, driver_s, actor_s))
        while now - self._lags[0][0] > LAG_WINDOW_S:
            self._lags.popleft()
        return max(lag[1] for lag in self._lags), max(lag[2] for lag in self._lags)

    def _labels(self, own: Mapping[str, str]) -> Labels:
        return ((RUN, self._run), *own.items())
