import pickle

from actors.messages import ActorView, EpisodeView
from actors.whereabouts import OLDEST, Whereabouts
from rayeval.stages import STAGES


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_counts_add_up_to_what_runs_and_what_waits() -> None:
    where = Whereabouts(Clock())
    marks = [where.begin(f"e{i}") for i in range(4)]
    marks[0].stage, marks[1].stage, marks[2].stage = "model_step_2", "environment_step_2", "release"
    view = where.view(queued=5)
    assert view is not None
    assert view.stages == dict.fromkeys(STAGES, 1) | {"queued": 5, "resetting": 0}
    assert sum(view.stages.values()) == 4 + 5


def test_the_oldest_come_first_with_their_age_and_their_time_in_the_stage() -> None:
    clock = Clock()
    where = Whereabouts(clock)
    first = where.begin("first")
    clock.now += 10
    where.begin("second")
    where.view(0)
    first.stage = f"model_step_{1}"
    clock.now += 2
    where.view(0)
    clock.now += 30
    view = where.view(0)
    assert view is not None
    assert view.oldest == (EpisodeView("first", 42.0, "model", 30.0, 1), EpisodeView("second", 32.0, "pacing", 32.0, 0))


def test_each_turn_begins_a_stage_anew_also_when_its_text_is_equal() -> None:
    clock = Clock()
    where = Whereabouts(clock)
    mark = where.begin("again")
    for n in ("1", "1"):
        clock.now += 5
        mark.stage = "model_step_" + n
        view = where.view(0)
        assert view is not None and view.oldest[0].stage_s == 0.0


def test_it_tells_once_a_second_and_few_bytes_however_many_there_are() -> None:
    clock = Clock()
    where = Whereabouts(clock)
    for i in range(3000):
        where.begin(f"task-{i:06d}__sample-000")
    view = where.view(0)
    assert view is not None and len(view.oldest) == OLDEST
    assert len(pickle.dumps(view)) < 2000
    assert where.view(0) is None
    clock.now += 1.0
    assert isinstance(where.view(0), ActorView)


def test_what_is_over_is_forgotten() -> None:
    where = Whereabouts(Clock())
    where.begin("e")
    where.end("e")
    where.end("never there")
    view = where.view(0)
    assert view is not None and not view.oldest and not any(view.stages.values())
