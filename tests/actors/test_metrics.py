"""What a run tells Prometheus, by a kept exporter; and that Ray's own takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.engine import RunRequest, run
from actors.metric_exporters import KeptExporter, RayExporter, _ascii
from actors.metrics import LAG_WINDOW_S, MOST_NAMES, Calls, Names, RunMetrics
from actors.queue import Ticket
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.latencies import packed
from rayeval.metric_names import METRICS, Kind, given
from rayeval.plan import make_plan
from rayeval.schemas import ExitCode, FinishedTrace, JsonObject
from tests.actors.plans import SHOP, trace_of, write_config
from tests.actors.test_ledger import Desk

MODEL = "http://model.invalid/v1"


def status_of(**known: Any) -> JsonObject:
    """A status as ``Progress`` tells it."""
    quiet: JsonObject = {
        "state": "running", "planned": 8, "not_run": 8, "in_flight": 0, "queued": 8, "driver_lag_s": 0.0, "actors": [],
        "environment": [], "model": [], "stages": {"model": 0}, "cost": None, "actors_replaced": 0,
    }  # fmt: skip
    return quiet | known


BUSY: JsonObject = {
    "in_flight": 3,
    "queued": 4,
    "stages": {"model": 2, "environment": 1},
    "actors": [{"state": "working", "slots": 5, "lag_s": 0.3}, {"state": "slow", "slots": 4, "lag_s": 0.1}],
    "environment": [{"server": SHOP, "slots": 64, "admission": 60, "held": 3, "resetting": 1, "out_s": None}],
    "model": [{"endpoint": MODEL, "episodes": 3, "out_s": 12.5}],
}


def with_calls(trace: FinishedTrace, **more: Any) -> FinishedTrace:
    """As an actor hands it over: with what its calls took."""
    calls = {"endpoint": MODEL, "model_s": packed([0.5, 3.0]), "environment_s": packed([0.015]), "duration_ms": 4000.0}
    return trace._replace(figures={**trace.figures, **calls, **more})


class Told(Desk):
    """A ledger over a real log, and metrics attached to both."""

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.kept = KeptExporter()
        self.metrics = RunMetrics("r", self.kept)
        self.metrics.attach(self.ledger, self.log, (SHOP,), (MODEL,))

    async def finish(self, *results: tuple[Ticket, FinishedTrace]) -> None:
        """Commit, and wait until it is counted."""
        self.ledger.commit(results)
        await self.ledger.settled()

    async def aclose(self) -> None:
        await self.log.close()
        self.lock.release()


@pytest.fixture
async def told(tmp_path: Path) -> Any:
    made = Told(tmp_path, attempts=2)
    yield made
    await made.aclose()


async def test_every_series_whose_labels_are_known_begins_at_0(told: Told) -> None:
    begun = {name for name, _ in told.kept.values}
    later = {"rayeval_cost_total"}  # its currency is told with the first status
    assert begun == {m.name for m in given() if m.kind is Kind.COUNTER} - later
    assert set(told.kept.values.values()) == {0.0}
    assert told.kept.value("rayeval_episode_failures_total", kind="lost") == 0.0
    assert told.kept.value("rayeval_model_retries_total", endpoint=MODEL, cause="status_429") == 0.0


async def test_counters_are_those_of_durable_traces(told: Told) -> None:
    first, second, third = told.queue.take(3)
    tokens = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "reasoning_tokens": 0}
    work = {"steps": 2, "actions": 1, "invalid_actions": 1, "protocol_errors": 1, "tokens": tokens, "cached_tokens": 40}
    await told.finish(
        (first, with_calls(trace_of(first, reward=0.25), **work, model_retries={"status_429": 3})),
        (second, with_calls(trace_of(second, completed=False))),
        (third, with_calls(trace_of(third, completed=False, retryable=False))),
    )
    for _ in range(3):  # telling again counts nothing again
        told.metrics.tell(status_of(cost={"amount": 0.5, "currency": "EUR"}, actors_replaced=1))
    value = told.kept.value
    assert value("rayeval_episodes_total", status="completed") == 1
    assert value("rayeval_episodes_total", status="failed") == 1
    assert value("rayeval_episode_failures_total", kind="environment_error") == 1
    assert value("rayeval_episode_retries_total", kind="environment_error") == 1
    assert [value(f"rayeval_{n}_total") for n in ("steps", "actions", "invalid_actions", "protocol_errors")] == [2, 1, 1, 1]
    assert (value("rayeval_tokens_total", type="input"), value("rayeval_tokens_total", type="output")) == (100, 20)
    assert value("rayeval_cached_tokens_total") == 40
    assert value("rayeval_cost_total", currency="EUR") == 0.5
    assert value("rayeval_actors_replaced_total") == 1
    assert value("rayeval_model_retries_total", endpoint=MODEL, cause="status_429") == 3
    assert value("rayeval_reward_accumulated") == 0.25 and value("rayeval_reward_episodes") == 1
    assert value("rayeval_trace_bytes_total") == told.run_dir.traces.stat().st_size
    assert value("rayeval_fsyncs_total") == told.log.fsyncs and value("rayeval_fsync_seconds_total") == pytest.approx(told.log.fsync_s)


async def test_a_counter_that_grows_is_given_the_difference(told: Told) -> None:
    for done in (1, 2, 3):
        (ticket,) = told.queue.take(1)
        await told.finish((ticket, with_calls(trace_of(ticket), steps=5)))
        told.metrics.tell(status_of())
        assert told.kept.value("rayeval_episodes_total", status="completed") == done
        assert told.kept.value("rayeval_steps_total") == 5 * done
        assert told.kept.value("rayeval_model_latency_seconds_sum", endpoint=MODEL) == 3.5 * done


async def test_histograms_are_cumulative_by_endpoint_and_server(told: Told) -> None:
    tickets = told.queue.take(2)
    await told.finish(*((t, with_calls(trace_of(t))) for t in tickets))
    told.metrics.tell(status_of())
    value, name = told.kept.value, "rayeval_model_latency_seconds"
    bounds = {le: value(f"{name}_bucket", endpoint=MODEL, le=le) for le in ("0.32", "0.64", "2.56", "5.12", "+Inf")}
    assert bounds == {"0.32": 0, "0.64": 2, "2.56": 2, "5.12": 4, "+Inf": 4}
    assert (value(f"{name}_sum", endpoint=MODEL), value(f"{name}_count", endpoint=MODEL)) == (7.0, 4)
    assert value("rayeval_environment_latency_seconds_bucket", server=SHOP, le="0.02") == 2
    assert value("rayeval_episode_duration_seconds_bucket", status="completed", le="3.2") == 0
    assert value("rayeval_episode_duration_seconds_bucket", status="completed", le="6.4") == 2


async def test_gauges_follow_the_status_and_a_label_that_is_gone_is_0(told: Told) -> None:
    told.metrics.tell(status_of(**BUSY))
    value = told.kept.value
    assert value("rayeval_run_active") == 1
    assert (value("rayeval_episodes_in_flight"), value("rayeval_episodes_queued"), value("rayeval_slots")) == (3, 4, 9)
    assert value("rayeval_actors", state="working") == value("rayeval_actors", state="slow") == 1
    assert value("rayeval_stage_episodes", stage="environment") == 1
    assert (value("rayeval_environment_slots", server=SHOP), value("rayeval_environment_admission", server=SHOP)) == (64, 60)
    assert (value("rayeval_leases_held", server=SHOP), value("rayeval_resets_pending", server=SHOP)) == (3, 1)
    assert value("rayeval_environment_unreachable_seconds", server=SHOP) == 0
    assert value("rayeval_model_unreachable_seconds", endpoint=MODEL) == 12.5
    told.metrics.tell(status_of(state="closing"))
    assert value("rayeval_actors", state="slow") == 0 and value("rayeval_model_episodes", endpoint=MODEL) == 0
    assert value("rayeval_run_active") == 0, "episodes are over while shards are written"


async def test_an_ended_run_does_not_go_on_lying(told: Told) -> None:
    (ticket,) = told.queue.take(1)
    told.metrics.tell(status_of(**BUSY, driver_lag_s=4.0))
    await told.finish((ticket, with_calls(trace_of(ticket))))
    told.metrics.end(status_of(state="ended", not_run=7), {SHOP: 2})
    told.metrics.close()
    told.metrics.close()
    lasting = {m.name for m in METRICS if m.lasting}
    gauges = {m.name for m in METRICS if m.kind is Kind.GAUGE}
    left = {name: v for (name, _), v in told.kept.values.items() if name in gauges and v}
    assert left == {"rayeval_episodes_planned": 8, "rayeval_episodes_unfinished": 7, "rayeval_reward_accumulated": 0.5,
                    "rayeval_reward_episodes": 1}  # fmt: skip
    assert set(left) == lasting
    assert told.kept.value("rayeval_episodes_total", status="completed") == 1, "what ended after the last status counts"
    assert told.kept.value("rayeval_unaccounted_leases_total", server=SHOP) == 2


async def test_a_late_loop_is_seen_by_whoever_looks_every_10_s(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("actors.metrics.time.monotonic", lambda: now[0])
    told.metrics.tell(status_of(driver_lag_s=3.0))
    now[0] += LAG_WINDOW_S - 1
    told.metrics.tell(status_of(driver_lag_s=0.1))
    assert told.kept.value("rayeval_driver_loop_lag_seconds") == 3.0
    now[0] += 2
    told.metrics.tell(status_of(driver_lag_s=0.2))
    assert told.kept.value("rayeval_driver_loop_lag_seconds") == 0.2


def test_before_the_first_trace_nothing_is_counted_and_nothing_raised() -> None:
    kept = KeptExporter()
    metrics = RunMetrics("r", kept)
    metrics.tell(status_of(state="starting"))
    metrics.end(status_of(state="ended"), {})
    metrics.close()
    assert kept.value("rayeval_episodes_planned") == 8 and kept.value("rayeval_episodes_total", status="failed") is None


def test_labels_hold_no_secret_and_are_bounded() -> None:
    names = Names()
    assert names.of("http://user:secret@host:1/v1?key=secret#secret") == "http://host:1/v1"
    for k in range(3 * MOST_NAMES):
        names.of(f"http://host-{k}/v1")
    values = {names.of(f"http://host-{k}/v1") for k in range(3 * MOST_NAMES)}
    assert len(values) <= MOST_NAMES and "other" in values
    assert names.of("http://host-0/v1") == "http://host-0/v1"


def test_calls_beyond_the_bound_add_up_in_other(tmp_path: Path) -> None:
    calls = Calls()
    ticket = Desk(tmp_path).take()
    for k in range(MOST_NAMES + 5):
        calls.count(with_calls(trace_of(ticket), endpoint=f"http://host-{k}/v1"))
    assert calls.model["other"].count == 2 * 5
    calls.count(trace_of(ticket))  # a line of the driver's own knows of no calls
    assert sum(spread.count for spread in calls.model.values()) == 2 * (MOST_NAMES + 5)


def test_an_exporter_that_fails_says_so_once_and_ends_nothing() -> None:
    notes: list[tuple[str, str]] = []
    exporter = RayExporter(lambda level, text: notes.append((level, text)))
    for _ in range(3):
        exporter.raised("rayeval_no_such_total", (("run", "r"),), 1.0)
        exporter.set("rayeval_no_such", (("run", "r"),), 1.0)
    assert [level for level, _ in notes] == ["warning"] and "rayeval_no_such_total" in notes[0][1]


@pytest.mark.ray
def test_a_run_of_any_name_is_told(ray_session: None) -> None:
    notes: list[str] = []
    exporter = RayExporter(lambda level, text: notes.append(text))
    labels = (("run", "\u65e5\u672c 100%"), ("server", "http://sh\u00f6p:1"))
    exporter.set("rayeval_leases_held", labels, 1.0)
    exporter.raised("rayeval_unaccounted_leases_total", labels, 0.0)
    assert notes == []
    assert _ascii(labels) == {"run": "%E6%97%A5%E6%9C%AC 100%", "server": "http://sh%C3%B6p:1"}
    assert _ascii((("run", "eval 100%/[a]"),)) == {"run": "eval 100%/[a]"}


@pytest.mark.ray
def test_a_run_on_ray_gives_its_instruments_what_its_summary_says(tmp_path: Path, ray_session: None) -> None:
    kept = KeptExporter()

    class Both(RayExporter):
        def raised(self, name: str, labels: Any, by: float) -> None:
            super().raised(name, labels, by)
            kept.raised(name, labels, by)

        def set(self, name: str, labels: Any, value: float) -> None:
            super().set(name, labels, value)
            kept.set(name, labels, value)

    loaded = load_config(write_config(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.telling.RayExporter", Both)
        outcome = run(RunRequest(loaded, make_plan(loaded), tmp_path / "run"), NoDisplay())
    assert outcome.exit_code == ExitCode.OK and outcome.summary is not None
    attempts = outcome.summary["attempts"]
    assert kept.value("rayeval_episodes_total", status="completed") == 8
    assert kept.value("rayeval_steps_total") == attempts["model_steps"] > 0
    assert kept.value("rayeval_environment_latency_seconds_count", server=SHOP) == attempts["total_actions"]
    assert kept.value("rayeval_model_latency_seconds_count", endpoint=MODEL) == attempts["model_steps"]
    assert kept.value("rayeval_episodes_unfinished") == 0 and kept.value("rayeval_run_active") in (0, None)
    assert {dict(labels)["run"] for _, labels in kept.values} == {"run"}
