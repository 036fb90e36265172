import copy
import math
import random
import shlex

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.exceptions import InputError
from rayeval.figures import figures_of
from rayeval.hashing import fingerprint
from rayeval.moments import Moments
from rayeval.store import write_launch
from rayeval.summary import Aggregate, summarize_run
from rayeval.summary_text import next_commands, summary_lines, verdict_lines
from tests.helpers.runs import completed, failed, foreign, make_foreign_run, make_run, step

# --- figures of one trace


def test_figures_are_small_and_json():
    figures = figures_of(completed(steps=[step(i) for i in range(30)]))
    assert len(orjson.dumps(figures)) < 800


def test_a_failed_trace_has_no_reward():
    figures = figures_of(failed())
    assert (figures["completed"], figures["reward"], figures["components"]) == (False, None, {})


def test_only_r_components_are_taken():
    assert set(figures_of(completed())["components"]) == {"r_strict", "r_success", "r_price"}


def test_status_completed_without_done_is_no_completion():
    trace = completed()
    trace["final"]["done"] = False
    assert not figures_of(trace)["completed"]


def test_a_context_overflow_is_told_from_a_long_answer():
    overflow = completed(reason="generation_length", steps=[step(), step(2, policy_failure="context_overflow")])
    length = completed(reason="generation_length", steps=[step(policy_failure="generation_length")])
    assert figures_of(overflow)["termination"] == "context_overflow"
    assert figures_of(length)["termination"] == "generation_length"


def test_actions_are_steps_that_reached_the_environment():
    steps = [step(), step(2, valid=False), step(3, protocol_error="empty_response"), step(4, policy_failure="generation_length")]
    figures = figures_of(completed(steps=steps))
    assert [figures[k] for k in ("steps", "actions", "invalid_actions", "protocol_errors")] == [4, 2, 1, 1]


def test_reasoning_tokens_come_from_the_details():
    assert figures_of(completed(steps=[step(), step(2)]))["tokens"] == {
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "total_tokens": 24,
        "reasoning_tokens": 2,
    }


def test_retries_of_the_call_that_failed_are_counted():
    trace = failed(steps=[step(retries=["status_429"])], model_retries=[{"cause": "timeout", "waited_s": 1.0}] * 2)
    assert figures_of(trace)["model_retries"] == {"status_429": 1, "timeout": 2}


@pytest.mark.parametrize("reward", [None, "1", math.nan, math.inf, [1], 10**400])
def test_a_reward_that_is_no_finite_number_is_absent(reward):
    trace = completed()
    trace["final"]["reward"] = reward
    assert figures_of(trace)["reward"] is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "code", "usage", "x"]), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["steps", "final", "error", "duration_ms"]),
)
def test_odd_fields_count_as_absent(value, key):
    figures_of({**completed(), key: value})


# --- exact sums

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e200, max_value=1e200)


def moments_of(values):
    moments = Moments()
    for value in values:
        moments.add(value)
    return moments


@given(st.lists(finite, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_order(values, rng):
    shuffled = values[:]
    rng.shuffle(shuffled)
    assert moments_of(values) == moments_of(shuffled)
    assert moments_of(values).mean() == pytest.approx(math.fsum(values) / len(values), rel=1e-12, abs=1e-300)


def test_the_mean_is_rounded_once():
    assert moments_of([0.1] * 10).mean() == 0.1
    assert moments_of([1e16, 1.0, -1e16]).mean() == pytest.approx(1 / 3, rel=1e-15)
    assert moments_of([5e-324, 5e-324]).mean() == 5e-324


def test_sem_divides_by_n_minus_one():
    values = [0.0, 0.5, 1.0, 1.0]
    sd = math.sqrt(sum((v - 0.625) ** 2 for v in values) / 3)
    assert moments_of(values).sem() == pytest.approx(sd / 2, rel=1e-15)


def test_sem_needs_two_values():
    assert moments_of([1.0]).sem() is None
    assert moments_of([0.1] * 5).sem() == 0.0


# --- merging

kinds = st.sampled_from(["model_unavailable", "lost", "reset_timeout"])
rewards = st.sampled_from([0.0, 0.1, 1 / 3, 0.7, 1.0])
one_figures = st.one_of(
    st.builds(
        lambda reward, n, bad, wait: figures_of(
            completed(
                reward=reward, steps=[step(i, valid=not bad, retries=["timeout"] * wait) for i in range(n)], duration_ms=reward * 17.3
            )
        ),
        rewards,
        st.integers(0, 3),
        st.booleans(),
        st.integers(0, 2),
    ),
    st.builds(lambda kind: figures_of(failed(kind=kind)), kinds),
)
many_figures = st.lists(one_figures, max_size=8)


def aggregate_of(figures):
    aggregate = Aggregate()
    for one in figures:
        aggregate.add(one)
        aggregate.add_line(one)
    return aggregate


def merged(*parts):
    total = Aggregate()
    for part in parts:
        total.merge(part)
    return total


def summary_of(aggregate, n):
    return aggregate.to_summary(n, 0)


@settings(max_examples=50)
@given(many_figures, many_figures, many_figures)
def test_merging_equals_the_whole_in_any_order_and_grouping(a, b, c):
    n = len(a) + len(b) + len(c)
    x, y, z = aggregate_of(a), aggregate_of(b), aggregate_of(c)
    whole = summary_of(aggregate_of(a + b + c), n)
    assert summary_of(merged(x, y, z), n) == whole
    assert summary_of(merged(z, x, y), n) == whole
    assert summary_of(merged(x, merged(y, z)), n) == whole
    assert summary_of(merged(merged(x, y), z), n) == whole


def test_merging_leaves_the_other_side_alone():
    part = aggregate_of([figures_of(completed())])
    before = copy.deepcopy(part)
    merged(part, part).merge(part)
    assert part == before


# --- a summary

EPISODES = [
    completed(0, reward=1.0, steps=[step(), step(2, valid=False)]),
    completed(1, reward=0.5, reason="action_limit", steps=[step(protocol_error="empty_response"), step(2, resampled=True)]),
    completed(2, reward=0.0, reason="generation_length", steps=[step(policy_failure="generation_length")]),
    failed(3),
]


def test_the_groups_hold_what_they_say(tmp_path):
    summary = summarize_run(make_run(tmp_path / "r", EPISODES, tasks=range(5)))
    assert summary["schema"] == "rayeval-summary-v1"
    assert summary["run"] == "r"
    assert summary["counts"] == {
        "requested": 5,
        "trace_files": 4,
        "completed": 3,
        "failed": 1,
        "not_run": 1,
        "scored": 3,
        "coverage": 0.6,
        "coverage_of_attempted": 0.75,
    }
    assert summary["primary"] == {
        "reward_mean": 0.5,
        "reward_sem": pytest.approx(0.5 / math.sqrt(3)),
        "success_rate": pytest.approx(1 / 3),
    }
    assert summary["bounds"] == {"reward_mean_low": pytest.approx(1.5 / 5), "reward_mean_high": pytest.approx(3.5 / 5), "excluded": 2}
    assert summary["reward_components"] == {"r_price": 1.0, "r_strict": 0.5, "r_success": pytest.approx(1 / 3)}
    assert summary["behavior"] == {
        "steps_mean": pytest.approx(5 / 3),
        "model_steps": 5,
        "protocol_errors": 1,
        "protocol_error_rate": 0.2,
        "policy_failures": 1,
        "policy_failure_rate": 0.2,
        "invalid_actions": 1,
        "total_actions": 3,
        "invalid_action_rate": pytest.approx(1 / 3),
        "termination_reasons": {"action_limit": 1, "generation_length": 1, "purchase": 1},
    }
    assert summary["cost"]["duration_ms_mean"] == 1000.0
    assert summary["cost"]["tokens"]["total_tokens"] == 60
    assert summary["errors"] == {"ModelCallError": 1}
    assert summary["failed_by_kind"] == {"model_unavailable": 1}
    assert summary["resampled"] == {"steps": 1, "episodes": 1}


def test_a_run_without_episodes_has_null_figures(tmp_path):
    summary = summarize_run(make_run(tmp_path / "r", []))
    assert summary["counts"]["not_run"] == 3
    assert summary["counts"]["coverage"] == 0.0
    assert summary["counts"]["coverage_of_attempted"] is None
    assert summary["primary"] == {"reward_mean": None, "reward_sem": None, "success_rate": None}
    assert summary["behavior"]["protocol_error_rate"] is None
    assert summary["behavior"]["invalid_action_rate"] is None
    assert summary["cost"]["duration_ms_mean"] is None
    assert (summary["bounds"]["reward_mean_low"], summary["bounds"]["reward_mean_high"]) == (0.0, 1.0)


def test_thrown_away_attempts_count_as_attempts_and_not_as_episodes(tmp_path):
    lost = failed(0, kind="lost", stage="lost", name="ActorDiedError")
    second = failed(0, attempt=2, steps=[step(retries=["status_429"], protocol_error="empty_response")])
    traces = [lost, second, completed(0, attempt=3, steps=[step(retries=["timeout"])])]
    summary = summarize_run(make_run(tmp_path / "r", traces, tasks=[0]))
    assert (summary["counts"]["completed"], summary["counts"]["failed"], summary["errors"]) == (1, 0, {})
    assert summary["behavior"]["protocol_errors"] == 0
    attempts = summary["attempts"]
    assert (attempts["lines"], attempts["failed_lines"], attempts["lost"], attempts["protocol_errors"]) == (3, 2, 1, 1)
    assert attempts["by_kind"] == {"lost": 1, "model_unavailable": 1}
    assert attempts["model_retries"] == {"status_429": 1, "timeout": 1}


def test_a_failed_release_leaves_the_episode_completed(tmp_path):
    trace = completed(0, error={"stage": "cleanup", "type": "EnvironmentCallError", "message": "no answer"})
    summary = summarize_run(make_run(tmp_path / "r", [trace], tasks=[0]))
    assert summary["counts"]["completed"] == 1
    assert summary["errors"] == {}
    assert summary["attempts"]["cleanup_failed"] == 1


def test_lines_that_cannot_be_read_are_skipped_and_counted(tmp_path):
    run = make_run(tmp_path / "r", [completed(0), b"{not json\n", b'{"schema_version": "other"}\n'], tail=b'{"torn')
    assert summarize_run(run)["skipped"] == 2


def test_episodes_of_another_plan_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not plan"):
        summarize_run(make_run(tmp_path / "r", [completed(9)]))


def test_nothing_of_an_episode_counts_after_its_completed_line(tmp_path):
    run = make_run(tmp_path / "r", [completed(0, reward=1.0), completed(0, reward=0.0), failed(0)], tasks=[0])
    assert summarize_run(run)["primary"]["reward_mean"] == 1.0


def test_the_last_line_of_a_foreign_episode_counts(tmp_path):
    lines = [completed(0, reward=1.0), completed(1, reward=1.0), completed(0, reward=0.5), failed(2), completed(2, reward=0.0)]
    summary = summarize_run(make_foreign_run(tmp_path / "r", [foreign(t) for t in lines]))
    assert summary["counts"]["completed"] == 3
    assert summary["primary"]["reward_mean"] == 0.5
    assert summary["attempts"]["lines"] == 5


def test_a_foreign_episode_that_fails_after_it_was_completed_has_failed(tmp_path):
    lines = [completed(0), completed(1), failed(0)]
    summary = summarize_run(make_foreign_run(tmp_path / "r", [foreign(t) for t in lines], tasks=(0, 1)))
    assert (summary["counts"]["completed"], summary["counts"]["failed"]) == (1, 1)
    assert summary["attempts"]["by_kind"] == {"unclassified": 1}


def test_traces_without_a_duration_do_not_enter_its_mean(tmp_path):
    short = completed(0)
    del short["duration_ms"]
    summary = summarize_run(make_foreign_run(tmp_path / "r", [foreign(short), foreign(completed(1))], tasks=(0, 1)))
    assert summary["cost"]["duration_ms_mean"] == 1000.0


def test_the_figures_do_not_depend_on_line_order(tmp_path):
    traces = [completed(i, reward=random.Random(i).random()) for i in range(40)]
    forward = summarize_run(make_run(tmp_path / "a", traces, tasks=range(40)))
    backward = summarize_run(make_run(tmp_path / "b", traces[::-1], tasks=range(40), receipts=False))
    assert {k: v for k, v in forward.items() if k not in ("run", "fingerprint")} == {
        k: v for k, v in backward.items() if k not in ("run", "fingerprint")
    }


def test_extras_are_put_beside_the_groups_and_never_over_them(tmp_path):
    run = make_run(tmp_path / "r", [completed(0)])
    assert summarize_run(run, {"unaccounted_leases": {"s": 2}})["unaccounted_leases"] == {"s": 2}
    with pytest.raises(ValueError, match="counts"):
        summarize_run(run, {"counts": {}})


# --- words


def test_the_verdict_has_two_lines_and_one_for_each_kind_of_failure(tmp_path):
    first, second, sample = verdict_lines(summarize_run(make_run(tmp_path / "r", EPISODES, tasks=range(5))))
    assert first == "3 of 5 episodes completed (60.0 %), reward 0.5000 ± 0.2887 (SEM), success 33.3 %"
    assert second == "1 failed (model_unavailable 1), 1 not run; reward between 0.3000 and 0.7000 with these at 0 and at 1"
    assert sample.startswith("  model_unavailable, task-0000") and sample.endswith(": gone")


def test_a_sample_quotes_no_solution(tmp_path):
    run = make_run(tmp_path / "r", [failed(0, message="no page in {'goal': 'CANARY'}")], tasks=range(1))
    assert summarize_run(run)["failure_samples"]["model_unavailable"]["message"] == "no page in {'goal': [left out]"


def test_a_sample_is_one_line_of_the_first_episode_that_failed_for_good(tmp_path):
    lost = [failed(0, message="first\ntry"), completed(0, attempt=2)]
    run = make_run(
        tmp_path / "r", [*lost, failed(2, message="second\n\x1b[31m " + "x" * 999), failed(1, message="a\nb"), failed(3)], tasks=range(4)
    )
    samples = summarize_run(run)["failure_samples"]
    assert samples == {"model_unavailable": {"episode_id": "task-000001__sample-000", "message": "a b"}}
    assert len(verdict_lines(summarize_run(run))) == 3


def test_a_clean_run_says_so(tmp_path):
    run = make_run(tmp_path / "r", [completed(0)], tasks=[0])
    assert verdict_lines(summarize_run(run)) == [
        "1 of 1 episodes completed (100.0 %), reward 1.0000, success 100.0 %",
        "no failures",
    ]


def test_every_summary_can_be_put_into_words(tmp_path):
    empty = summary_lines(summarize_run(make_run(tmp_path / "a", [])))
    full = "\n".join(summary_lines(summarize_run(make_run(tmp_path / "b", EPISODES, tasks=range(5)), {"unaccounted_leases": {"s": 2}})))
    assert any("n/a" in line for line in empty)
    for words in ("r_strict", "purchase 1", "ModelCallError 1", "2 held by nobody", "1 steps in 1 episodes"):
        assert words in full


def test_a_retry_is_offered_only_after_failures_and_means_the_same_plan(tmp_path):
    config = tmp_path / "my config.yaml"
    assert not any("--retry-failed" in c for c in next_commands(tmp_path, config, 0))
    last = next_commands(tmp_path, config, 2, ["--set", "model.name=a b", "--limit", "3"])[-1]
    assert last.endswith(" --set 'model.name=a b' --limit 3 --retry-failed")
    assert f"'{config}'" in last
    same = next_commands(tmp_path, config, 2, ["--limit", "3"], not_run=5)[-1]
    assert same == shlex.join(["rayeval", "run", str(config), "--limit", "3"])
    job = next_commands(tmp_path, config, 2, ["--output-dir", "/mnt/runs"], not_run=5, verb="submit")[-1]
    assert job == shlex.join(["rayeval", "submit", str(config), "--output-dir", "/mnt/runs"])


# --- cost and duplicates


def launched(run_dir, **prices):
    settings = {"execution": {"prices": {"prompt_per_million": 1e6, "completion_per_million": 2e6, **prices}}}
    write_launch(run_dir, config_text="", resolved=settings, origins={}, argv=[])
    return run_dir


def sampled(path, traces, **model):
    """A run of two tasks, two repeats each, at temperature 0.6."""
    run_dir = make_run(path, traces, tasks=(0, 1), repeats=2)
    manifest = run_dir.read_manifest()
    manifest["plan"]["model"].update({"temperature": 0.6, "send_seed": True, **model})
    manifest["plan_fingerprint"] = fingerprint(manifest["plan"])
    run_dir.manifest.unlink()
    run_dir.write_manifest(manifest)
    return run_dir


def said(*texts):
    steps = [step(i) for i in range(len(texts))]
    for one, text in zip(steps, texts, strict=True):
        one["model"]["content"] = text
    return steps


def test_without_prices_there_is_no_cost(tmp_path):
    summary = summarize_run(make_run(tmp_path / "r", [completed(0)]))
    assert {summary["cost"][name] for name in ("amount", "currency", "per_episode")} == {None}
    assert not any("cost" in line for line in verdict_lines(summary))


def test_the_cost_is_that_of_every_attempt(tmp_path):
    run_dir = launched(make_run(tmp_path / "r", [failed(0, steps=[step()]), completed(0, attempt=2), completed(1)]), currency="EUR")
    summary = summarize_run(run_dir)
    assert (summary["cost"]["amount"], summary["cost"]["per_episode"], summary["cost"]["currency"]) == (42.0, 21.0, "EUR")
    assert "cost 42.00 EUR over all attempts, 21.00 EUR a completed episode" in verdict_lines(summary)


def test_a_cost_without_a_completed_episode_is_told_too(tmp_path):
    summary = summarize_run(launched(make_run(tmp_path / "r", [failed(0, steps=[step()])])))
    assert verdict_lines(summary)[-1] == "cost 14.00 USD over all attempts"


def test_cached_tokens_are_counted_where_the_server_says_so():
    steps = [step()]
    steps[0]["model"]["usage"]["prompt_tokens_details"] = {"cached_tokens": 7}
    assert figures_of(completed(steps=steps))["cached_tokens"] == 7
    assert figures_of(completed())["cached_tokens"] == 0


def test_repeats_are_compared_where_they_should_differ(tmp_path):
    traces = [
        completed(0, 0, steps=said("a", "b")),
        completed(0, 1, steps=said("a", "b")),
        completed(1, 0),
        completed(1, 1, steps=said("c")),
    ]
    found = summarize_run(sampled(tmp_path / "r", traces))["duplicates"]
    assert found == {"tasks_compared": 2, "episodes_compared": 4, "pairs": 2, "identical": 1, "share": 0.5}
    assert summarize_run(sampled(tmp_path / "greedy", traces, temperature=0.0))["duplicates"] is None
    assert summarize_run(sampled(tmp_path / "unseeded", traces, send_seed=False))["duplicates"] is None


def test_an_episode_is_compared_by_its_verdict_alone(tmp_path):
    traces = [failed(0, 0, steps=said("a")), completed(0, 0, steps=said("a"), attempt=2), failed(0, 1, steps=said("a"))]
    assert summarize_run(sampled(tmp_path / "r", traces))["duplicates"]["pairs"] == 0


def test_repeats_that_are_the_same_are_a_warning(tmp_path):
    summary = summarize_run(sampled(tmp_path / "r", [completed(0), completed(0, 1)]))
    assert not any("warning" in line for line in verdict_lines(summary))  # one pair shows nothing
    summary["duplicates"] |= {"pairs": 40, "identical": 38, "share": 0.95}
    assert verdict_lines(summary)[-1].startswith("warning: 95 % of 40 pairs of episodes")
    assert any("38 of 40 pairs" in line for line in summary_lines(summary))


def test_quarantined_episodes_are_named(tmp_path):
    killers = [failed(3, kind="quarantined"), failed(1, kind="quarantined")]
    summary = summarize_run(make_run(tmp_path / "r", [completed(0), *killers], tasks=range(4)))
    assert summary["quarantined"] == [killers[1]["episode_id"], killers[0]["episode_id"]]
    assert any("quarantined" in line and killers[0]["episode_id"] in line for line in summary_lines(summary))
