from pathlib import Path

from actors.duplicates import DuplicateWatch
from rayeval.schemas import EpisodeStatus, FinishedTrace
from tests.actors.fields import Field, field


def trace(task: int, generation: str | None, status: str = EpisodeStatus.COMPLETED) -> FinishedTrace:
    figures = {"task_id": task, "generation": generation}
    return FinishedTrace("id", 1, status, b"", None, False, figures)


def warnings(f: Field, watch: DuplicateWatch) -> list[str]:
    for now in (100.0, 101.0, 200.0, 300.0):
        watch.look(f.pool, now)
    return [text for level, text in f.notes if level == "warning"]


async def test_repeats_that_are_the_same_are_told_of_once(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        watch = DuplicateWatch()
        for task in range(10):
            for _ in range(3):
                watch.counted(trace(task, f"{task:016x}"))
        assert warnings(f, watch) == warnings(f, watch)
        assert len(warnings(f, watch)) == 1 and warnings(f, watch)[0].startswith("100 % of 30 pairs")


async def test_repeats_that_differ_are_not(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        watch = DuplicateWatch()
        for task in range(30):
            for sample in range(3):
                watch.counted(trace(task, f"{sample % 2:016x}"))  # a third of all pairs
        assert warnings(f, watch) == []


async def test_a_few_pairs_about_the_half_are_no_finding_yet(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        watch = DuplicateWatch()
        for task in range(24):
            watch.counted(trace(task, "a" * 16))
            watch.counted(trace(task, ("a" if task < 13 else "b") * 16))
        assert warnings(f, watch) == []


async def test_one_easy_task_is_no_finding(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        watch = DuplicateWatch()
        for _ in range(8):
            watch.counted(trace(0, "a" * 16))
        assert warnings(f, watch) == []


async def test_failed_and_silent_episodes_do_not_count(tmp_path: Path) -> None:
    async with field(tmp_path) as f:
        watch = DuplicateWatch()
        for task in range(30):
            for _ in range(3):
                watch.counted(trace(task, "a" * 16, EpisodeStatus.FAILED))
                watch.counted(trace(task, None))
        assert warnings(f, watch) == []
