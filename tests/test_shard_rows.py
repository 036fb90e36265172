import io
import json

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayeval.exceptions import InputError
from rayeval.shard_rows import Part, Span, encode_part, row_of, shard_schema
from rayeval.shards import plan_shards
from tests.helpers.runs import completed, failed, foreign, make_run, step

SPAN = Span("a", "traces.jsonl", 0, 0, 0, (), (), "f" * 64, None)
PRICES = {"prompt_per_million": 2.0, "completion_per_million": 10.0, "cached_prompt_per_million": None, "currency": "EUR"}


def read(encoded):
    return pq.read_table(io.BytesIO(encoded.data)).to_pylist()


def encoded(run, **sizes):
    plan = plan_shards([run], **sizes)
    return [row for part in plan.parts for row in read(encode_part(part, plan.components))]


def test_a_completed_trace_has_its_figures():
    trace = completed(3, 1, 0.5, steps=[step(tokens=100), step(2, valid=False), step(3, protocol_error="tool_call_count")], r_att=0.25)
    trace["provenance"] = {"model": {"model": "m", "checkpoint_id": "c7"}, "plan_fingerprint": "p"}
    trace["steps"][0]["model"]["latency_ms"] = 12.5
    row = row_of(trace, SPAN, True)
    assert (row["episode_id"], row["task_id"], row["sample_id"], row["split"]) == ("task-000003__sample-001", 3, 1, "val")
    assert (row["reward"], row["r_att"], row["r_success"], row["termination"]) == (0.5, 0.25, 0.0, "purchase")
    assert (row["steps"], row["actions"], row["invalid_actions"], row["protocol_errors"]) == (3, 2, 1, 1)
    assert (row["prompt_tokens"], row["reasoning_tokens"], row["duration_ms"], row["model_ms"]) == (120, 3, 1000.0, 12.5)
    assert (row["model"], row["checkpoint"], row["fingerprint"], row["final_attempt"]) == ("m", "c7", "p", True)
    assert "title_score" not in row and row["cost"] is None


def test_a_failed_trace_has_no_reward_and_says_why():
    row = row_of(failed(1, kind="reset_timeout", stage="reset"), SPAN, False)
    assert (row["status"], row["reward"], row["termination"]) == ("failed", None, None)
    assert (row["error_kind"], row["error_stage"], row["fingerprint"]) == ("reset_timeout", "reset", "f" * 64)


def test_a_priced_trace_has_its_cost():
    row = row_of(completed(steps=[step(tokens=1_000_000)]), SPAN._replace(prices=PRICES), True)
    assert (row["cost"], row["currency"]) == (pytest.approx(2.00002), "EUR")


def test_a_foreign_trace_has_no_attempt():
    row = row_of(foreign(completed()), SPAN, True)
    assert (row["attempt"], row["trace_schema"], row["reward"]) == (None, "shopsimrl-episode-v4", 1.0)


def test_the_json_column_holds_the_line_as_it_is(tmp_path):
    traces = [completed(0, 页="轻便跑鞋"), failed(1)]
    run = make_run(tmp_path / "a", traces)
    lines = run.traces.read_text().splitlines()
    assert [row["trace"] for row in encoded(run)] == lines
    assert [json.loads(row["trace"]) for row in encoded(run)] == traces


def test_a_component_without_a_column_is_told(tmp_path):
    run = make_run(tmp_path / "a", [completed(0), completed(1, r_late=0.5)])
    plan = plan_shards([run], look_at=1)
    assert encode_part(plan.parts[0], plan.components).unknown == {"r_late"}
    again = encode_part(plan.parts[0], plan.components | {"r_late"})
    assert not again.unknown and [row["r_late"] for row in read(again)] == [None, 0.5]


def test_the_same_bytes_give_the_same_file(tmp_path):
    plan = plan_shards([make_run(tmp_path / "a", [completed(t) for t in range(20)])])
    first, second = (encode_part(Part.from_bytes(plan.parts[0].to_bytes()), plan.components, row_group_bytes=2000) for _ in "ab")
    assert first.data.equals(second.data)
    assert pq.ParquetFile(io.BytesIO(first.data)).num_row_groups > 1


def test_a_file_that_shrank_is_refused(tmp_path):
    run = make_run(tmp_path / "a", [completed(0), completed(1)])
    plan = plan_shards([run])
    run.traces.write_bytes(run.traces.read_bytes()[:-200])
    with pytest.raises(InputError, match="changed while it was read"):
        encode_part(plan.parts[0], plan.components)


def test_a_file_of_other_bytes_is_refused(tmp_path):
    run = make_run(tmp_path / "a", [completed(0), completed(1)])
    plan = plan_shards([run])
    run.traces.write_bytes(run.traces.read_bytes().replace(b'"episode_id"', b'"episode-id"'))
    with pytest.raises(InputError, match="changed while it was read"):
        encode_part(plan.parts[0], plan.components)


def test_columns_are_typed():
    schema = shard_schema({"r_b", "r_a"})
    assert schema.field("seed").type == pa.int64() and schema.field("final_attempt").type == pa.bool_()
    at = schema.get_field_index("reward")
    assert schema.names[at + 1 : at + 4] == ["r_a", "r_b", "termination"] and schema.names[-1] == "trace"


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("model", "task_id", "r_x", "usage", "done")), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(("attempt", "job", "provenance", "started_at", "duration_ms", "steps", "final", "error")), odd))
def test_any_record_makes_a_row_that_fits_the_columns(fields):
    trace = orjson.loads(orjson.dumps({**completed(), **fields}))
    row = row_of(trace, SPAN, True)
    schema = shard_schema(name for name in row if name.startswith("r_"))
    for column in schema:
        if column.name != "trace":
            pa.array([row[column.name]], column.type)
