import pytest

from rayeval.control import SETTINGS, VERBS, ControlRequest, done_reply, parse_setting, read_reply, refusal, request_of
from rayeval.exceptions import InputError, RefusedError


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("concurrency=32", ("concurrency", 32)),
        ("max_cost = 2.5", ("max_cost", 2.5)),
        ("max_wall_s=null", ("max_wall_s", None)),
        ("grace_s=1e2", ("grace_s", 100.0)),
        ("concurrency=many", ("concurrency", "many")),
    ],
)
def test_a_setting_is_read(text, pair):
    assert parse_setting(text) == pair


@pytest.mark.parametrize("text", ["concurrency", "=3", ""])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(InputError, match="KEY=VALUE"):
        parse_setting(text)


@pytest.mark.parametrize(
    "values",
    [
        {"concurrency": 0},
        {"concurrency": 2.0},
        {"concurrency": True},
        {"concurrency": None},
        {"concurrency": 10_000_000},
        {"grace_s": -1},
        {"grace_s": float("nan")},
        {"max_cost": 0},
        {"max_cost": "3"},
        {"max_tokens_total": 1.5},
        {"max_wall_s": float("inf")},
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(values):
    with pytest.raises(InputError, match=next(iter(values))):
        ControlRequest("set", values).checked()


def test_an_unknown_setting_or_verb_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="concurrency, grace_s, max_cost"):
        ControlRequest("set", {"attempts": 3}).checked()
    with pytest.raises(InputError, match=", ".join(VERBS)):
        ControlRequest("stop").checked()
    with pytest.raises(InputError):
        ControlRequest("set").checked()


def test_a_setting_may_be_named_as_in_the_configuration():
    assert ControlRequest("set", {"execution.concurrency": 3}).checked().arguments == {"concurrency": 3}
    assert set(SETTINGS) == {"concurrency", "grace_s", "max_cost", "max_tokens_total", "max_wall_s"}


def test_a_cancellation_says_what():
    assert ControlRequest("cancel", {"task": "3,5-7"}).checked().arguments == {"task": "3,5-7", "episodes": []}
    for wrong in ({}, {"task": "x"}, {"episodes": "id"}, {"episodes": [3]}):
        with pytest.raises(InputError):
            ControlRequest("cancel", wrong).checked()


def test_arguments_that_a_verb_does_not_take_are_dropped():
    assert ControlRequest("pause", {"grace_s": 3}).checked().arguments == {}


def test_a_request_survives_the_way():
    sent = ControlRequest("drain", {"grace_s": 2.0}).checked().signed()
    assert request_of(sent.to_json()) == sent
    assert sent.user and sent.host and sent.sent_at


@pytest.mark.parametrize(
    "value", [None, [], {}, {"schema": "rayeval-control-v1", "id": "../x", "arguments": {}}, {"schema": "rayeval-control-v1", "id": "a"}]
)
def test_what_is_no_request_is_refused(value):
    with pytest.raises(InputError):
        request_of(value)


def test_replies_come_back_as_what_they_were():
    request = ControlRequest("pause")
    assert read_reply(done_reply(request, "paused", {}))["done"] == "paused"
    with pytest.raises(InputError, match="no such task"):
        read_reply(refusal(request, InputError("--task", "3", "no such task")))
    with pytest.raises(RefusedError, match="is draining"):
        read_reply(refusal(request, RefusedError("the run is draining")))
    with pytest.raises(RefusedError):
        read_reply({})
