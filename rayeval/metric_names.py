"""Every metric of a run: its name, kind, labels and meaning. One list, read by what emits them and by the tests of documents and dashboard.

Names are in base units (seconds, bytes); a counter ends in ``_total``. Each metric has the label ``run`` and those named here, never an
id of an episode or a task. Ray's exporter puts ``ray_`` before every name and ``_total`` behind a counter that lacks it, and adds
labels of its own (``SessionName``, ``WorkerId``, ``NodeAddress`` ...): ``series`` gives the names as Prometheus sees them.

A histogram is three counters here, ``NAME_bucket`` with the label ``le``, ``NAME_sum`` and ``NAME_count``: Ray's own takes one call for
each value, keeps only the middle of its bucket, and its agent repeats that call, which at thousands of steps a second costs more than the
engine may. ``histogram_quantile`` takes any series with ``le``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

RUN = "run"
BOUND = "le"


class Kind(StrEnum):
    """How a metric moves."""

    COUNTER = "counter"
    """Grows; the part of this invocation alone."""
    GAUGE = "gauge"
    """Any value."""
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric as it is given to Ray."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    """Beside ``run``."""
    lasting: bool = False
    """A gauge whose last value is still true when the run has ended; the others go to 0."""


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    Metric("rayeval_run_active", _G, "1 while episodes are run, 0 when they are over."),
    # episodes
    Metric("rayeval_episodes_total", _C, "Episodes that ended for good and are durable, by status: completed or failed.", ("status",)),
    Metric("rayeval_episodes_planned", _G, "Episodes of the plan.", lasting=True),
    Metric("rayeval_episodes_unfinished", _G, "Episodes of the plan that have not ended for good.", lasting=True),
    Metric("rayeval_episodes_in_flight", _G, "Episodes that are running."),
    Metric("rayeval_episodes_queued", _G, "Episodes that wait, in the driver or in an actor."),
    Metric("rayeval_stage_episodes", _G, "Episodes in the actors, by what they are at.", ("stage",)),
    Metric("rayeval_slots", _G, "Episodes that the actors can run at once."),
    Metric("rayeval_episode_failures_total", _C, "Episodes failed for good, by kind of failure.", ("kind",)),
    Metric("rayeval_episode_retries_total", _C, "Attempts that failed or were lost and are made again, by kind of failure.", ("kind",)),
    Metric("rayeval_late_results_total", _C, "Finished attempts dropped because their actor had been declared dead."),
    Metric("rayeval_episode_duration_seconds", _H, "Time from the start of an attempt to its end, by status.", ("status",)),
    Metric("rayeval_reward_accumulated", _G, "Sum of the rewards of completed episodes.", lasting=True),
    Metric("rayeval_reward_episodes", _G, "Completed episodes with a reward.", lasting=True),
    # turns
    Metric("rayeval_steps_total", _C, "Model turns."),
    Metric("rayeval_actions_total", _C, "Actions sent to the environment."),
    Metric("rayeval_invalid_actions_total", _C, "Actions that the environment called invalid."),
    Metric("rayeval_protocol_errors_total", _C, "Model answers that break the tool protocol."),
    # model
    Metric("rayeval_model_latency_seconds", _H, "A model turn, retries and back-off included.", ("endpoint",)),
    Metric("rayeval_model_retries_total", _C, "Model calls thrown away and made again, by cause.", ("endpoint", "cause")),
    Metric("rayeval_model_episodes", _G, "Episodes given to a model endpoint.", ("endpoint",)),
    Metric("rayeval_model_unreachable_seconds", _G, "For how long an endpoint has not answered some actor; 0: it answers.", ("endpoint",)),
    Metric("rayeval_tokens_total", _C, "Tokens as the model servers count them: input or output.", ("type",)),
    Metric("rayeval_cached_tokens_total", _C, "Input tokens that the server had in its cache; a part of the input."),
    Metric("rayeval_cost_total", _C, "Cost by execution.prices, in units of its currency.", ("currency",)),
    # environment
    Metric("rayeval_environment_latency_seconds", _H, "An answered step or termination of the environment.", ("server",)),
    Metric("rayeval_environment_slots", _G, "Slots that a server said it has.", ("server",)),
    Metric("rayeval_environment_admission", _G, "Slots of a server that are open to this run.", ("server",)),
    Metric("rayeval_environment_unreachable_seconds", _G, "For how long a server has not answered some actor; 0: it answers.", ("server",)),
    Metric("rayeval_leases_held", _G, "Slots of a server that this run holds.", ("server",)),
    Metric("rayeval_resets_pending", _G, "Resets that a server has not answered yet.", ("server",)),
    Metric("rayeval_unaccounted_leases_total", _C, "Slots that were taken at the end of the run and that nobody can name.", ("server",)),
    # the engine itself
    Metric("rayeval_actors", _G, "Actors by state: starting, working, slow, dead (not fenced yet).", ("state",)),
    Metric("rayeval_actors_replaced_total", _C, "Actors started in the place of one that died."),
    Metric("rayeval_driver_loop_lag_seconds", _G, "Latest timer of the driver's loop in the last 15 s."),
    Metric("rayeval_actor_loop_lag_seconds", _G, "Latest timer of any actor's loop in the last 15 s."),
    Metric("rayeval_fsyncs_total", _C, "fsyncs of the trace log."),
    Metric("rayeval_fsync_seconds_total", _C, "Time in fsyncs of the trace log."),
    Metric("rayeval_trace_bytes_total", _C, "Bytes of durable traces."),
)


def given() -> Iterator[Metric]:
    """The counters and gauges that are given to Ray: histograms in their three parts."""
    for metric in METRICS:
        if metric.kind is not Kind.HISTOGRAM:
            yield metric
            continue
        for part, labels in (("bucket", (*metric.labels, BOUND)), ("sum", metric.labels), ("count", metric.labels)):
            yield Metric(f"{metric.name}_{part}", Kind.COUNTER, metric.meaning, labels)


def exported(metric: Metric) -> str:
    """The name of a counter or gauge as Prometheus sees it."""
    name = f"ray_{metric.name}"
    return name if metric.kind is Kind.GAUGE or name.endswith("_total") else f"{name}_total"


def series() -> dict[str, frozenset[str]]:
    """Names as Prometheus sees them -> the labels that are ours."""
    return {exported(metric): frozenset({RUN, *metric.labels}) for metric in given()}
