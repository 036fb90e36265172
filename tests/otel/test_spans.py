import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.costs import Prices
from rayeval.latencies import packed
from rayeval.otel import names
from rayeval.otel.records import RunContext, SpanRecord
from rayeval.otel.spans import episode_spans
from rayeval.scrub import PRIVATE_FIELDS, Scrub
from tests.otel.lines import CANARY, GOAL, MS, START_NS, completed, context, failed, step


def spans(line: Any, made: RunContext | None = None, environment_s: Any = None) -> list[SpanRecord]:
    return episode_spans(line, made or context(), START_NS, environment_s)


def test_an_attempt_is_a_root_with_its_turns_and_steps_in_order() -> None:
    found = spans(completed())
    assert [(s.name, s.kind) for s in found] == [
        ("invoke_agent qwen-x", "internal"),
        ("chat qwen-x", "client"),
        ("execute_tool search", "internal"),
        ("chat qwen-x", "client"),
        ("execute_tool search", "internal"),
    ]
    root = found[0]
    assert root.parent_id is None and root.link == context().span
    assert {s.parent_id for s in found[1:]} == {root.span_id}
    assert {s.trace_id for s in found} == {root.trace_id} and len({s.span_id for s in found}) == 5
    assert all(s.link is None and s.error is None for s in found[1:])


def test_the_root_says_who_played_what_and_what_came_of_it() -> None:
    root = spans(completed(), context(prices=Prices(2.0, 4.0, None, "EUR")))[0]
    assert root.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "vllm",
        "gen_ai.agent.name": "qwen-x",
        "gen_ai.agent.id": "0123456789abcdef",
        "gen_ai.agent.version": "step-900",
        "gen_ai.conversation.id": "task-000003__sample-001",
        "gen_ai.request.model": "qwen-x",
        "gen_ai.usage.input_tokens": 300,
        "gen_ai.usage.output_tokens": 20,
        "rayeval.run.id": context().run_id,
        "rayeval.run.name": "small",
        "rayeval.plan.fingerprint": "f" * 64,
        "rayeval.episode.id": "task-000003__sample-001",
        "rayeval.episode.seed": 77,
        "rayeval.episode.status": "completed",
        "rayeval.attempt": 1,
        "rayeval.split": "val",
        "rayeval.task.id": 3,
        "rayeval.sample.id": 1,
        "rayeval.steps": 2,
        "rayeval.protocol_errors": 0,
        "rayeval.cost.amount": pytest.approx((300 * 2.0 + 20 * 4.0) / 1e6),
        "rayeval.cost.currency": "EUR",
        "rayeval.environment.url": "http://shop:5700",
        "rayeval.environment.version": "shop-2",
        "rayeval.timing": "measured",
        "rayeval.reward": 0.5,
        "rayeval.termination": "purchase",
    }


def test_rewards_are_evaluation_events_at_the_end() -> None:
    root = spans(completed())[0]
    assert {e.name for e in root.events} == {"gen_ai.evaluation.result"}
    assert {e.at_ns for e in root.events} == {root.end_ns}
    told = {e.attributes[names.EVALUATION_NAME]: dict(e.attributes) for e in root.events}
    assert set(told) == {"reward", "r_strict", "r_success"}
    assert told["r_success"]["gen_ai.evaluation.score.label"] == "pass"
    assert told["reward"]["gen_ai.evaluation.score.value"] == 0.5 and "gen_ai.evaluation.score.label" not in told["reward"]


def test_a_turn_says_what_was_asked_and_what_it_cost() -> None:
    assert spans(completed())[3].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.conversation.id": "task-000003__sample-001",
        "gen_ai.request.model": "qwen-x",
        "gen_ai.request.temperature": 0.6,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 20,
        "gen_ai.request.max_tokens": 512,
        "gen_ai.request.seed": 78,
        "gen_ai.request.stop_sequences": ("\n\n",),
        "gen_ai.response.id": "chatcmpl-2",
        "gen_ai.response.model": "qwen-x-fp8",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 50,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "server.address": "gpu-1",
        "server.port": 8000,
        "rayeval.step.index": 2,
        "rayeval.timing": "duration_measured",
    }


def test_a_step_names_its_tool() -> None:
    assert spans(completed())[2].attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Search the shop.",
        "gen_ai.tool.call.id": "call_1",
        "rayeval.step.index": 1,
        "rayeval.action.valid": True,
        "rayeval.timing": "derived",
    }


def test_the_seed_is_left_out_where_none_was_sent() -> None:
    line = completed()
    line["provenance"]["model"]["sampling"]["send_seed"] = False
    assert names.REQUEST_SEED not in spans(line)[1].attributes


def test_a_protocol_error_is_a_turn_without_a_step_and_no_error() -> None:
    wrong = step(1, action=None, environment=None, protocol_error={"code": "mixed_content", "message": "m"})
    root, chat, *rest = spans(completed(steps=[wrong, step(2, done=True)]))
    assert chat.attributes[names.PROTOCOL_ERROR] == "mixed_content" and chat.error is None
    assert [s.name for s in rest] == ["chat qwen-x", "execute_tool search"]
    assert root.attributes[names.PROTOCOL_ERRORS] == 1


def test_a_policy_failure_is_told_apart_from_what_the_environment_calls_it() -> None:
    line = completed(steps=[step(1), step(2, action=None, environment=None, policy_failure={"code": "context_overflow", "message": "m"})])
    line["final"]["termination_reason"] = "generation_length"
    root, *_, chat = spans(line)
    assert root.attributes[names.TERMINATION] == chat.attributes[names.POLICY_FAILURE] == "context_overflow"


def test_turns_last_as_long_as_measured_and_steps_share_what_no_clock_covers() -> None:
    root, one, search, two, last = spans(completed())
    assert (root.start_ns, root.end_ns) == (START_NS, START_NS + 1000 * MS)
    # 1000 ms less two turns of 100, over reset, two steps and release
    assert (one.start_ns - START_NS, one.end_ns - one.start_ns) == (200 * MS, 100 * MS)
    assert (search.start_ns, search.end_ns - search.start_ns) == (one.end_ns, 200 * MS)
    assert two.start_ns == search.end_ns and last.end_ns == root.end_ns - 200 * MS


def test_steps_share_their_measured_sum_by_their_buckets() -> None:
    root, one, search, _, last = spans(completed(), environment_s=packed([0.3, 0.06]))
    first, second = search.end_ns - search.start_ns, last.end_ns - last.start_ns
    assert first + second == pytest.approx(360 * MS, abs=2)
    assert first == pytest.approx(4 * second, abs=10)  # the buckets to 0.32 s and to 0.08 s
    assert one.start_ns - root.start_ns == pytest.approx(220 * MS, abs=2)  # half of what is left


def test_a_failed_attempt_has_status_kind_and_words() -> None:
    root, *_, gone = spans(failed(attempt=2))
    assert root.error == "gpu-1 is gone"
    assert root.attributes[names.ERROR_TYPE] == "model_unavailable"
    assert root.attributes[names.ERROR_STAGE] == "model_step_3" and root.attributes[names.ERROR_RETRYABLE] is True
    assert root.attributes[names.EPISODE_STATUS] == "failed" and root.attributes[names.ATTEMPT] == 2
    assert not {names.REWARD, names.TERMINATION} & set(root.attributes)
    (event,) = root.events
    assert event.name == "exception" and event.attributes == {"exception.type": "ModelCallError", "exception.message": "gpu-1 is gone"}
    assert gone.name == "chat qwen-x" and gone.error == "gpu-1 is gone"
    assert gone.attributes[names.ERROR_TYPE] == "model_unavailable" and gone.attributes[names.STEP_INDEX] == 3
    assert gone.attributes[names.RETRIES] == 2 and gone.attributes[names.RETRY_CAUSES] == ("status_503", "timeout")
    assert gone.end_ns - gone.start_ns == 800 * MS  # it waited: what no clock covers is its own


def test_a_step_without_an_answer_is_the_one_in_error() -> None:
    line = failed("environment_step_2", "lease_lost")
    line["steps"][1]["environment"] = None
    *before, lost = spans(line)
    assert lost.name == "execute_tool search" and lost.attributes[names.ERROR_TYPE] == "lease_lost" and lost.error
    assert all(s.error is None for s in before[1:])
    assert lost.end_ns - lost.start_ns == 200 * MS  # 409 comes at once


def test_a_line_of_the_driver_is_a_root_alone() -> None:
    error = {"stage": "lost", "kind": "lost", "type": "ActorLost", "message": "its actor died", "retryable": True}
    line = completed(
        status="failed", error=error, steps=[], final=None, conversation=[], duration_ms=0.0, provenance={"plan_fingerprint": "f"}
    )
    (root,) = spans(line)
    assert root.error == "its actor died" and root.attributes[names.ERROR_TYPE] == "lost" and root.start_ns == root.end_ns
    assert root.attributes[names.REQUEST_MODEL] == "qwen-x" and root.attributes[names.TIMING] == "derived"


def test_a_failed_release_changes_no_verdict() -> None:
    root = spans(completed(error={"stage": "cleanup", "kind": "environment_unavailable", "type": "E", "message": "m"}))[0]
    assert root.error is None and root.attributes[names.CLEANUP_FAILED] is True and names.ERROR_TYPE not in root.attributes


def test_ids_follow_from_run_episode_and_attempt_and_from_nothing_else() -> None:
    first = [s.span_id for s in spans(completed())]
    assert [s.span_id for s in spans(completed(), context(invocation=2, content=True))] == first
    others = [
        spans(completed(attempt=2)),
        spans(completed(episode_id="task-000003__sample-002")),
        spans(completed(), context(fingerprint="e" * 64)),
        spans(completed(), context(created_at="2026-01-02T00:00:00+00:00")),
    ]
    traces = [spans(completed())[0].trace_id, *(s[0].trace_id for s in others)]
    assert len(set(traces)) == 5 and not set(first) & {s.span_id for o in others for s in o}


def test_every_invocation_is_a_trace_of_its_own_and_one_run() -> None:
    one, two = context(), context(invocation=2)
    assert one.span[0] != two.span[0] and one.span[1] != two.span[1] and one.run_id == two.run_id


def texts(found: list[SpanRecord]) -> str:
    return repr([(s.name, dict(s.attributes), s.error, [(e.name, dict(e.attributes)) for e in s.events]) for s in found])


CONTENT_NAMES = {
    names.SYSTEM_INSTRUCTIONS,
    names.INPUT_MESSAGES,
    names.OUTPUT_MESSAGES,
    names.TOOL_DEFINITIONS,
    names.TOOL_ARGUMENTS,
    names.TOOL_RESULT,
}


def test_without_the_opt_in_nothing_of_the_content_is_there() -> None:
    found = spans(completed())
    assert not CONTENT_NAMES & {name for s in found for name in s.attributes}
    for word in ("Be a shopper", "Buy tea", "Tea it is", "page 1", "tea 1", CANARY):
        assert word not in texts(found)


def test_with_it_the_content_is_there_and_the_private_fields_are_not() -> None:
    found = spans(completed(), context(content=True))
    assert {name for s in found for name in s.attributes} >= CONTENT_NAMES
    for word in ("Be a shopper", "Buy tea", "Tea it is", "page 1", "tea 1"):
        assert word in texts(found)
    assert CANARY not in texts(found)


def test_a_known_key_and_a_key_in_an_error_leave_through_no_door() -> None:
    key = "correct-horse-battery"
    line = failed(conversation=[{"role": "system", "content": key}, {"role": "user", "content": f"x {key}"}])
    line["error"]["message"] = f"401 for Bearer abcdefghijklmnop123 {key} https://user:{key}@host/ sk-abcDEF1234567890abcd"
    line["steps"][0]["model"]["response_id"] = key
    line["steps"][0]["model"]["tool_calls"][0] |= {"name": key, "arguments": {"query": key}}
    line["provenance"]["model"]["base_url"] = f"http://{key}:8000/v1"
    found = texts(spans(line, context(content=True, scrub=Scrub([key]))))
    for secret in (key, "abcdefghijklmnop123", "user:", "sk-abc"):
        assert secret not in found
    assert "401 for Bearer" in found


def test_an_error_of_any_environment_leaves_without_the_solution_it_quotes() -> None:
    line = failed()
    line["error"]["message"] = f"KeyError: 'x' in {{'page': 'p', 'goal': {{'asin': '{CANARY}'}}}}"
    found = texts(spans(line, context(content=True)))
    assert "KeyError: 'x'" in found and CANARY not in found


def test_no_bearer_token_leaves_by_an_error_however_short() -> None:
    line = failed()
    line["error"]["message"] = "401 for Authorization: Bearer abcd1234, bearer=xyz"
    found = texts(spans(line))
    assert "401 for" in found and "abcd1234" not in found and "xyz" not in found


def test_a_number_that_otlp_cannot_carry_is_absent() -> None:
    line = completed()
    line["job"]["task_id"] = 2**63
    line["steps"][0]["model"]["usage"]["prompt_tokens"] = line["steps"][1]["model"]["usage"]["prompt_tokens"] = 2**63 - 1
    root, chat, *_ = spans(line)
    assert not {names.TASK_ID, names.USAGE_INPUT} & set(root.attributes) and chat.attributes[names.USAGE_INPUT] == 2**63 - 1


# ---- whatever stands in a line ------------------------------------------------------------------------------------------------------

ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CANARIES = st.sampled_from(sorted(PRIVATE_FIELDS)).map(lambda name: {name: CANARY, "nested": [{name: {"deep": CANARY}}]})


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A line with some values replaced by anything, and private fields anywhere."""
    line = draw(st.sampled_from([completed(), failed(), failed("environment_step_2", "lease_lost"), completed(turns=0)]))
    line = orjson.loads(orjson.dumps(line))
    places = [(holder, key) for holder, key in _places(line)]
    for _ in range(draw(st.integers(0, 6))):
        holder, key = draw(st.sampled_from(places))
        holder[key] = draw(ODD | CANARIES)
    for holder, _ in places:
        if isinstance(holder, dict) and draw(st.integers(0, 9)) == 0:
            holder.update(draw(CANARIES))
    return line


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(child)


@settings(max_examples=200, deadline=None)
@given(damaged() | ODD, st.booleans(), st.none() | ODD | st.just(packed([0.1, 2.0])))
def test_no_line_makes_it_raise_or_lets_a_private_field_out(line: Any, content: bool, environment_s: Any) -> None:
    found = episode_spans(line, context(content=content), START_NS, environment_s)
    assert CANARY not in texts(found)
    for record in found:
        assert 0 <= record.start_ns <= record.end_ns < 2**63
        assert 0 < record.trace_id < 2**128 and 0 < record.span_id < 2**64
        assert found[0].start_ns <= record.start_ns and record.end_ns <= found[0].end_ns
        for value in record.attributes.values():
            assert isinstance(value, str | bool | int | float | tuple)
            assert not isinstance(value, int) or -(2**63) <= value < 2**63
            assert not isinstance(value, float) or math.isfinite(value)
    assert len({r.span_id for r in found}) == len(found)


def test_the_canaries_stand_in_the_lines() -> None:
    assert orjson.dumps(completed()).count(CANARY.encode()) >= 6 and set(GOAL) <= set(completed()["final"])
