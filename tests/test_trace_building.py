from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from rayeval.exceptions import EnvironmentCallError, ModelCallError
from rayeval.hashing import fingerprint
from rayeval.schemas import EpisodeJob, ErrorKind, ModelOutput, ModelRetry, ProtocolError, Skill, Trace, TraceError
from rayeval.trace_building import TraceBuilder, error_record

DOCS = (Path(__file__).parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")
DOCUMENTED = {word for quoted in re.findall(r"`([^`\n]+)`", DOCS) for word in re.findall(r"[a-z_0-9]+", quoted)}
JOB = EpisodeJob(12, 1, 7, "val")
OUTPUT = ModelOutput(
    None, None, (), "length", {}, None, 1.0, ProtocolError("a", "b"), ProtocolError("c", "d"), {"x": 1}, (ModelRetry("timeout", 1.23456),)
)


def builder() -> TraceBuilder:
    return TraceBuilder(JOB, 1, {"plan_fingerprint": "f"}, "http://shop")


def line_of(trace: TraceBuilder) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(trace.finish().line)
    return parsed


def test_every_field_of_a_trace_is_documented() -> None:
    trace = builder()
    step = trace.add_step(1, "page", [], OUTPUT)
    fields = {*Trace.__annotations__, *TraceError.__annotations__, *JOB._asdict(), *step, *step["model"]}
    fields |= {"sent_action", "protocol_error", "protocol_feedback", "policy_failure", "cause", "waited_s", "content_sha256"}
    assert fields - DOCUMENTED == set()
    assert set(re.findall(r"`([a-z_]+_step_N)`", DOCS)) == {"model_step_N", "environment_step_N", "policy_termination_step_N"}


def test_messages_are_kept_as_the_bytes_that_were_sent() -> None:
    trace = builder()
    trace.add_message({"role": "user", "content": "中\ud800"})
    sent = b",".join(trace.messages)
    assert sent in trace.finish().line
    assert orjson.loads(sent)["content"] == "中\ufffd"


def test_only_the_first_failure_counts() -> None:
    trace = builder()
    trace.fail("reset", EnvironmentCallError("first", ErrorKind.LEASE_LOST, True))
    trace.fail("model_step_1", ValueError("second"))
    finished = trace.finish()
    error = orjson.loads(finished.line)["error"]
    assert (error["message"], finished.error_kind, finished.retryable) == ("first", "lease_lost", True)


def test_skills_are_recorded_with_the_hash_of_their_content() -> None:
    trace = builder()
    trace.add_skills([Skill("s", "look", "2", {"k": 1})])
    row = {"skill_id": "s", "content": "look", "version": "2", "metadata": {"k": 1}, "content_sha256": fingerprint("look")}
    assert line_of(trace)["selected_skills"] == [row]


def test_a_step_after_a_time_out_is_marked() -> None:
    step = builder().add_step(1, "page", [], OUTPUT)
    assert step["resampled"] == "timeout"
    assert step["model"]["retries"] == [{"cause": "timeout", "waited_s": 1.235}]


def test_a_finished_trace_crosses_process_borders() -> None:
    finished = builder().finish()
    assert pickle.loads(pickle.dumps(finished)) == finished


@pytest.mark.parametrize(
    ("error", "keys"),
    [
        (EnvironmentCallError("m", ErrorKind.RESET_TIMEOUT, True), ["stage", "type", "message", "kind", "retryable"]),
        (
            ModelCallError("m", ErrorKind.MODEL_UNAVAILABLE, True, (ModelRetry("connect", 0.5),)),
            ["stage", "type", "message", "kind", "retryable", "model_retries"],
        ),
        (KeyError("m"), ["stage", "type", "message", "kind", "retryable", "traceback"]),
    ],
)
def test_error_records(error: Exception, keys: list[str]) -> None:
    assert list(error_record("reset", error)) == keys


def test_long_messages_and_tracebacks_are_cut() -> None:
    record = error_record("reset", ValueError("x" * 100_000))
    assert len(record["message"]) == 4_000
    assert len(record["traceback"]) == 16_000


@pytest.mark.parametrize("latency", [None, "soon", float("nan"), float("inf"), -1.0])
def test_a_latency_that_is_none_is_left_out_of_the_timings(latency: Any) -> None:
    trace = builder()
    trace.add_step(1, "page", [], replace(OUTPUT, latency_ms=latency))
    trace.add_step(2, "page", [], replace(OUTPUT, latency_ms=30.0))
    figures = trace.finish().figures
    assert figures["model_s"] == (0.03, [2]) and figures["environment_s"] == (0, [])
    assert figures["endpoint"] is None, "a provenance without a model"
