from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.duplicates import Generations, alike_sentence, generation_of, should_differ, too_alike

SAY = {"content": "hello", "reasoning": "well", "tool_calls": [{"name": "click", "raw_arguments": '{"a": 1}', "call_id": "x"}]}
episodes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3).map(lambda n: f"{n:016x}")), max_size=40)


def tally(rows, **bounds):
    made = Generations(**bounds)
    for task, generation in rows:
        made.add(task, generation)
    return made


def test_ids_and_usage_do_not_count_and_all_that_was_said_does():
    same = {**SAY, "response_id": "r", "tool_calls": [{**SAY["tool_calls"][0], "call_id": "y"}]}
    assert generation_of([SAY]) == generation_of([same])
    for change in ({"content": "hallo"}, {"reasoning": None}, {"tool_calls": []}):
        assert generation_of([SAY]) != generation_of([{**SAY, **change}])
    assert generation_of([SAY]) != generation_of([SAY, SAY])


def test_what_was_said_where_counts():
    assert generation_of([{"content": "a", "reasoning": "b"}]) != generation_of([{"content": "b", "reasoning": "a"}])
    assert generation_of([{"content": "ab"}, {"content": ""}]) != generation_of([{"content": "a"}, {"content": "b"}])


@pytest.mark.parametrize(
    "model", [{}, {"content": "\ud800"}, {"tool_calls": 5}, {"tool_calls": [None, {"name": 3, "arguments": {"a": 1}}]}]
)
def test_odd_records_have_a_hash_too(model):
    assert len(generation_of([model]) or "") == 16


def test_nothing_said_is_nothing_to_compare():
    assert generation_of([]) is None


@given(episodes)
def test_pairs_are_counted_as_by_hand(rows):
    pairs = [a[1] == b[1] for a, b in combinations(rows, 2) if a[0] == b[0]]
    found = tally(rows).to_json()
    assert (found["pairs"], found["identical"]) == (len(pairs), sum(pairs))
    assert found["share"] == (sum(pairs) / len(pairs) if pairs else None)


@given(episodes, episodes)
def test_parts_merge_to_the_whole_in_any_order(a, b):
    left, right = tally(a), tally(b)
    left.merge(tally(b))
    right.merge(tally(a))
    assert left.to_json() == right.to_json() == tally([*a, *b]).to_json()


def test_a_bounded_tally_keeps_no_more():
    rows = [(task, f"{n:016x}") for task in range(10) for n in range(10)]
    found = tally(rows, max_tasks=3, max_per_task=4).to_json()
    assert (found["tasks_compared"], found["episodes_compared"], found["pairs"]) == (3, 12, 18)


def test_half_of_twenty_pairs_is_a_finding_and_less_is_none():
    assert too_alike({"pairs": 20, "identical": 10})
    assert not too_alike({"pairs": 20, "identical": 9})
    assert not too_alike({"pairs": 19, "identical": 19})
    assert "75 % of 40 pairs" in alike_sentence({"pairs": 40, "identical": 30, "share": 0.75})


@pytest.mark.parametrize(
    ("model", "repeats", "differ"),
    [
        ({"temperature": 0.6}, 2, True),
        ({"temperature": 0.6, "send_seed": True}, 2, True),
        ({"temperature": 0}, 2, False),
        ({"temperature": 0.6, "send_seed": False}, 2, False),
        ({"temperature": 0.6}, 1, False),
        ({}, 2, False),
        (None, 2, False),
    ],
)
def test_only_seeded_samples_should_differ(model, repeats, differ):
    assert should_differ(SimpleNamespace(semantic={"model": model}, repeats=repeats)) is differ
