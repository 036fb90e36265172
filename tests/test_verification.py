import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.hashing import canonical_hash
from rayeval.verification import MAX_PROBLEMS, compare_canonical, first_difference, verify_run
from tests.helpers.runs import completed, failed, foreign, make_foreign_run, make_run, step


def problems_of(run):
    answer = verify_run(run)
    assert answer["ok"] == (not answer["problems"]) and answer["problem_count"] == len(answer["problems"])
    return answer["problems"]


def test_a_good_run_is_sound(tmp_path):
    answer = verify_run(make_run(tmp_path / "r", [failed(0), completed(0, attempt=2), failed(1)]))
    assert answer["ok"]
    assert [answer[k] for k in ("lines", "receipts", "planned", "completed", "failed", "not_run")] == [3, 3, 3, 1, 1, 1]


def test_a_run_that_wrote_nothing_is_sound(tmp_path):
    run = make_run(tmp_path / "r", [])
    run.traces.unlink()
    assert verify_run(run)["ok"]


def test_a_foreign_run_is_sound(tmp_path):
    assert problems_of(make_foreign_run(tmp_path / "r", [foreign(completed(0)), foreign(failed(1))])) == []


def test_a_torn_tail_is_told_and_no_problem(tmp_path):
    answer = verify_run(make_run(tmp_path / "r", [completed(0)], tail=b'{"torn'))
    assert (answer["ok"], answer["torn_bytes"], answer["lines"]) == (True, 6, 1)


def changed(trace, **keys):
    return {**trace, **keys}


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        ([completed(0), b"{not json\n"], "traces.jsonl:2: not JSON"),
        ([changed(completed(0), schema_version="v9")], "traces.jsonl:1: not a trace of a known schema"),
        ([b"[]\n"], "not a trace of a known schema"),
        ([completed(9)], "episode task-000009__sample-000 is not planned"),
        ([changed(completed(0), job=completed(1)["job"])], "the job of task-000000__sample-000 is not the planned one"),
        ([changed(completed(0), job={**completed(0)["job"], "seed": 1})], "is not the planned one"),
        ([changed(completed(0), provenance={"plan_fingerprint": "0" * 64})], "carries another fingerprint"),
        ([completed(0), completed(0)], "a line of task-000000__sample-000 after its completed one"),
        ([completed(0), failed(0)], "after its completed one"),
    ],
)
def test_each_kind_of_damage_is_found(tmp_path, traces, said):
    (problem,) = problems_of(make_run(tmp_path / "r", traces, receipts=False))
    assert said in problem


@pytest.mark.parametrize(
    ("key", "value", "said"), [("crc32", 1, "does not match"), ("length", 10**6, "does not match"), ("offset", "x", "not a receipt")]
)
def test_a_receipt_must_match_its_bytes(tmp_path, key, value, said):
    run = make_run(tmp_path / "r", [completed(0)])
    run.receipts.write_text(json.dumps({**json.loads(run.receipts.read_text()), key: value}) + "\n")
    (problem,) = problems_of(run)
    assert problem.startswith("receipts.jsonl:1") and said in problem


def test_a_torn_receipt_is_no_problem(tmp_path):
    run = make_run(tmp_path / "r", [completed(0), completed(1)])
    run.receipts.write_bytes(run.receipts.read_bytes()[:-5])
    assert verify_run(run)["receipts"] == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [(("plan", "model", "name"), "plan_fingerprint"), (("jobs", "jobs_sha256"), "jobs_sha256"), (("jobs", "seed"), "jobs_sha256")],
)
def test_a_manifest_changed_by_hand_is_found(tmp_path, path, said):
    run = make_run(tmp_path / "r", [])
    manifest = json.loads(run.manifest.read_text())
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = 5 if path[-1] == "seed" else "other"
    run.manifest.write_text(json.dumps(manifest))
    assert any(said in problem for problem in problems_of(run))


def test_problems_without_number_are_counted_and_not_all_told(tmp_path):
    answer = verify_run(make_run(tmp_path / "r", [b"x\n"] * (MAX_PROBLEMS + 20)))
    assert (answer["problem_count"], len(answer["problems"])) == (MAX_PROBLEMS + 20, MAX_PROBLEMS)


# --- two runs


def test_runs_are_equal_whatever_order_clocks_and_failures(tmp_path):
    a = make_run(tmp_path / "a", [completed(0), completed(1)])
    b = make_run(tmp_path / "b", [failed(1), completed(1, attempt=2, duration_ms=7.0), completed(0)])
    answer = compare_canonical(a, b)
    assert answer["equal"] and answer["compared"] == 2
    assert answer["hash_a"] == answer["hash_b"] == canonical_hash([completed(0), completed(1)])


def test_what_differs_is_named_down_to_its_first_value(tmp_path):
    other = completed(0, steps=[step(), step(2, valid=False)])
    a = make_run(tmp_path / "a", [completed(0, steps=[step(), step(2)]), completed(1)])
    b = make_run(tmp_path / "b", [other, completed(2)])
    answer = compare_canonical(a, b)
    assert not answer["equal"] and answer["hash_a"] != answer["hash_b"]
    assert (answer["only_a"], answer["only_b"]) == (["task-000001__sample-000"], ["task-000002__sample-000"])
    assert answer["different"] == [{"episode_id": "task-000000__sample-000", "first": "steps[1].environment.action_feedback.valid"}]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(values, values)
def test_a_difference_is_found_exactly_when_there_is_one(a, b):
    assert (first_difference(a, b) is None) == (json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True))
