"""An error's words end where they begin to quote what gives a task away."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayeval.private_fields import LEFT_OUT, PRIVATE_FIELDS, SOLUTION_FIELDS, without_solution
from rayeval.scrub import Scrub

NAMES = [*sorted(SOLUTION_FIELDS), "private_notes", "PRIVATE_GOAL", "Goal"]
CANARY = "B0CANARY99"
GOAL = {"asin": CANARY, "options": [f'say "{CANARY}", }} or \\', CANARY]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "said",
    [
        lambda name: json.dumps({"observation": "p", name: GOAL}),
        lambda name: json.dumps({"observation": "p", name: GOAL}, indent=2)[:60],
        lambda name: json.dumps(json.dumps({name: GOAL})),
        lambda name: json.dumps(json.dumps({"a": f"x\n{name}: {GOAL}"})),
        lambda name: json.dumps({name: GOAL}).replace('"', "&quot;"),
        lambda name: json.dumps({name: GOAL}).replace('"', "\\u0022"),
        lambda name: f"KeyError: {{'a': 1, {name!r}: {GOAL}}}",
        lambda name: f"task(idx=3, {name}={GOAL})",
        lambda name: f"state[{name!r}] = {GOAL}",
        lambda name: f"[({name!r}, {GOAL})]",
        lambda name: f"the {name} : {CANARY}",
        lambda name: f"{name} => {CANARY}",
    ],
    ids=range(12),
)
def test_whatever_follows_the_name_of_a_solution_is_left_out(name, said):
    text = said(name)
    assert CANARY in text or len(text) == 60
    shown = without_solution(text)
    assert CANARY not in shown and shown.endswith(LEFT_OUT) and text.startswith(shown.removesuffix(f" {LEFT_OUT}"))
    assert CANARY not in Scrub().error(text)


@pytest.mark.parametrize(
    "said",
    ["the goal of step 3 is not met", "goals: 3 of 4", "HTTP 500: reward missing", "privatekey of TLS refused", "subgoal: x", "", "goal"],
)
def test_other_words_stay(said):
    assert without_solution(said) == said


@given(st.text(max_size=30), st.sampled_from(sorted(SOLUTION_FIELDS)), st.text(max_size=30))
def test_what_stands_before_is_kept_as_far_as_it_is_no_quote_itself(before, name, after):
    shown = without_solution(f"{before} {name}={after}{CANARY}")
    assert CANARY not in shown
    if without_solution(before + " ") == before + " " and not after.startswith(">"):
        assert shown == f"{before} {name}= {LEFT_OUT}"


def test_a_lease_is_private_and_gives_no_task_away():
    assert {"lease_id", "env_idx", "api_key"} <= PRIVATE_FIELDS - SOLUTION_FIELDS
