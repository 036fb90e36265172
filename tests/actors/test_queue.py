from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.queue import LOST_LIMIT, RETRY_CAP_S, JobQueue, JobState
from rayeval.plan import Plan
from tests.actors.plans import index, small_plan


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return small_plan(tmp_path_factory.mktemp("queue"), tasks=6, repeats=2)


def queue_of(plan: Plan, clock: Clock | None = None, **options: Any) -> JobQueue:
    known = options.pop("index", index())
    return JobQueue(plan, known, **{"attempts": 3, "longest_first": False, "clock": clock or Clock(), **options})


def ids(plan: Plan, *places: int) -> set[str]:
    return {plan.job_at(place).episode_id for place in places}


def test_jobs_come_in_the_order_of_the_plan(plan: Plan) -> None:
    queue = queue_of(plan)
    tickets = queue.take(100)
    assert [t.job for t in tickets] == list(plan.jobs())
    assert {t.attempt for t in tickets} == {1}
    assert queue.waiting == 0 and queue.out == plan.job_count and not queue.over


def test_longest_tasks_come_first_and_unknown_ones_count_as_typical(plan: Plan) -> None:
    queue = queue_of(plan, longest_first=True, index=index(lengths={0: 10.0, 5: 90.0}))
    order = [t.job.task_id for t in queue.take(100)]
    assert order[:2] == [5, 5] and order[-2:] == [0, 0]
    assert order[2:-2] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_what_was_completed_before_is_not_run(plan: Plan) -> None:
    done = ids(plan, 0, 3)
    queue = queue_of(plan, index=index(completed=done | {"task-999999__sample-000"}))
    assert queue.counts[JobState.REUSED] == 2
    assert not done & {t.job.episode_id for t in queue.take(100)}


def test_attempt_numbers_go_on_after_a_resume(plan: Plan) -> None:
    (episode_id,) = ids(plan, 2)
    queue = queue_of(plan, index=index(failed={episode_id: 4}, attempts={episode_id: 4}))
    assert queue.failed_before == 1
    attempts = {t.job.episode_id: t.attempt for t in queue.take(100)}
    assert attempts.pop(episode_id) == 5
    assert set(attempts.values()) == {1}


def test_attempts_bound_one_invocation_whatever_earlier_ones_used(plan: Plan) -> None:
    clock = Clock()
    (episode_id,) = ids(plan, 0)
    queue = queue_of(plan, clock, attempts=2, index=index(failed={episode_id: 9}, attempts={episode_id: 9}))
    (first,) = queue.take(1)
    assert queue.fail(first, retryable=True)
    clock.now = 60.0
    (second,) = queue.take(1)
    assert (second.place, second.attempt) == (0, 11)
    assert not queue.fail(second, retryable=True)
    assert queue.counts[JobState.FAILED] == 1


def test_only_failed_leaves_the_rest_out(plan: Plan) -> None:
    failed = ids(plan, 1, 4)
    queue = queue_of(plan, only_failed=True, index=index(failed=dict.fromkeys(failed, 1), attempts=dict.fromkeys(failed, 1)))
    assert {t.job.episode_id for t in queue.take(100)} == failed
    assert queue.counts[JobState.LEFT_OUT] == plan.job_count - 2


def test_quarantined_jobs_stay_out(plan: Plan) -> None:
    (bad,) = ids(plan, 5)
    queue = queue_of(plan, quarantined=[bad])
    assert queue.quarantined == 1
    assert bad not in {t.job.episode_id for t in queue.take(100)}


def test_a_final_failure_is_not_tried_again(plan: Plan) -> None:
    queue = queue_of(plan)
    (ticket,) = queue.take(1)
    assert not queue.fail(ticket, retryable=False)
    assert queue.counts[JobState.FAILED] == 1


def test_a_retry_waits_for_its_delay_and_then_comes_first(plan: Plan) -> None:
    clock = Clock()
    queue = queue_of(plan, clock)
    (ticket,) = queue.take(1)
    queue.fail(ticket, retryable=True)
    assert ticket.place not in [t.place for t in queue.take(2)]
    fresh = queue.ready()
    clock.now = 0.99
    assert queue.ready() == fresh
    clock.now = 1.5
    assert queue.ready() == fresh + 1
    (again,) = queue.take(1)
    assert (again.place, again.attempt) == (ticket.place, 2)


def test_delays_are_capped(plan: Plan) -> None:
    clock = Clock()
    queue = queue_of(plan, clock, attempts=100)
    (ticket,) = queue.take(1)
    for _ in range(20):
        queue.fail(ticket, retryable=True)
        clock.now += RETRY_CAP_S
        (ticket,) = queue.take(1)


def test_a_given_back_job_keeps_its_attempt_number(plan: Plan) -> None:
    queue = queue_of(plan)
    (ticket,) = queue.take(1)
    queue.give_back(ticket)
    (again,) = queue.take(1)
    assert again == ticket
    assert queue.retries_given == 0


def test_a_job_lost_with_its_actor_runs_again_at_once_outside_attempts(plan: Plan) -> None:
    queue = queue_of(plan, attempts=1)
    (ticket,) = queue.take(1)
    assert queue.lose(ticket, with_actor=True)
    (again,) = queue.take(1)
    assert (again.job, again.attempt) == (ticket.job, 2)


def test_a_job_lost_twice_with_its_actors_waits_for_one_of_its_own(plan: Plan) -> None:
    queue = queue_of(plan)
    (ticket,) = queue.take(1)
    queue.lose(ticket, with_actor=True)
    (ticket,) = queue.take(1)
    assert queue.lose(ticket, with_actor=True)
    assert queue.suspects == 1
    assert ticket.place not in [t.place for t in queue.take(100)]
    alone = queue.take_suspect()
    assert alone is not None and (alone.place, alone.attempt) == (ticket.place, 3)
    queue.give_back(alone)
    assert queue.suspects == 1, "a suspect that was given back stays one"
    alone = queue.take_suspect()
    assert alone is not None
    queue.quarantine(alone)
    assert queue.counts[JobState.FAILED] == 1 and queue.quarantined == 1


def test_losses_with_a_server_end_at_the_limit(plan: Plan) -> None:
    clock = Clock()
    queue = queue_of(plan, clock)
    (ticket,) = queue.take(1)
    for _ in range(LOST_LIMIT - 1):
        assert queue.lose(ticket, with_actor=False)
        clock.now += RETRY_CAP_S
        (ticket,) = queue.take(1)
    assert not queue.lose(ticket, with_actor=False)
    assert queue.counts[JobState.FAILED] == 1


def test_a_job_left_out_while_it_waits_is_never_handed_out(plan: Plan) -> None:
    queue = queue_of(plan)
    (episode_id,) = ids(plan, 3)
    assert queue.leave_out(episode_id)
    assert not queue.leave_out(episode_id)
    assert queue.cancelled == 1
    assert episode_id not in {t.job.episode_id for t in queue.take(100)}


def test_a_ticket_ends_once(plan: Plan) -> None:
    queue = queue_of(plan)
    (ticket,) = queue.take(1)
    queue.complete(ticket)
    with pytest.raises(AssertionError, match="COMPLETED"):
        queue.complete(ticket)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["take", "complete", "fail", "final", "lose", "server", "back", "out", "tick"]), st.integers(0, 30)))
)
def test_every_job_is_in_one_state_and_ends_once(plan: Plan, moves: list[tuple[str, int]]) -> None:
    clock = Clock()
    queue = queue_of(plan, clock, index=index(completed=ids(plan, 0)), quarantined=ids(plan, 1))
    out: list[Any] = []
    ended: set[int] = set()
    for move, n in moves:
        if move == "take":
            got = queue.take(n % 4)
            suspect = queue.take_suspect() if n % 2 else None
            got += [suspect] if suspect else []
            assert not ended & {t.place for t in got}
            assert len({t.place for t in got} | {t.place for t in out}) == len(got) + len(out)
            out += got
        elif move == "tick":
            clock.now += n
        elif move == "out":
            place = n % plan.job_count
            if queue.leave_out(plan.job_at(place).episode_id):
                ended.add(place)
        elif out:
            ticket = out.pop(n % len(out))
            again = {
                "complete": lambda t: queue.complete(t) or False,
                "fail": lambda t: queue.fail(t, True),
                "final": lambda t: queue.fail(t, False),
                "lose": lambda t: queue.lose(t, with_actor=True),
                "server": lambda t: queue.lose(t, with_actor=False),
                "back": lambda t: queue.give_back(t) or True,
            }[move](ticket)
            if not again:
                ended.add(ticket.place)
        assert queue.out == len(out)
        assert sum(queue.counts.values()) == plan.job_count
        assert all(n >= 0 for n in queue.counts.values())
    for ticket in out:
        queue.complete(ticket)
    for _ in range(plan.job_count * 2):
        clock.now += RETRY_CAP_S
        rest = queue.take(100)
        while suspect := queue.take_suspect():
            rest.append(suspect)
        for ticket in rest:
            queue.complete(ticket)
    assert queue.over
    assert queue.ready() == 0
