from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayeval.store import RunDirectory, iter_receipts, load_resume_index, repair_torn_tail
from rayeval.store.reading import CHUNK_BYTES
from tests.store.lines import V4, episode, line, write_run


def test_missing_traces_are_an_empty_index(tmp_path):
    index = load_resume_index(RunDirectory(tmp_path))
    assert (index.completed, index.failed, index.lines, index.bytes) == (set(), {}, 0, 0)
    assert repair_torn_tail(RunDirectory(tmp_path)) == 0


@pytest.mark.parametrize("receipts", [True, False])
def test_index_knows_completed_failed_attempts_and_kinds(tmp_path, receipts):
    a, b, c, d = (episode(i) for i in range(4))
    lines = [
        line(a, "failed", 1),
        line(b),
        line(a, "completed", 2),
        line(c, "failed", 1, kind="lost", quarantined=False),
        line(c, "failed", 2, kind="environment_error"),
        line(d, "failed", 1, kind="lost", quarantined=True),
    ]
    index = load_resume_index(write_run(tmp_path, lines, receipts=receipts))
    assert index.completed == {a, b}
    assert index.failed == {c: 2, d: 1}
    assert index.failed_kind == {c: "environment_error", d: "lost"}
    assert index.quarantined == {d}
    assert index.attempts == {a: 2, c: 2, d: 1}
    assert [index.next_attempt(e) for e in (a, c, d, episode(9))] == [3, 3, 2, 1]
    assert index.lengths == {0: len(lines[2]), 1: len(lines[1])}
    assert (index.lines, index.bad_lines, index.bytes) == (6, 0, sum(map(len, lines)))
    assert index.trusted_lines == (6 if receipts else 0)


def test_lengths_are_means_over_a_tasks_samples(tmp_path):
    lines = [line(episode(7, s), size=300 * s) for s in range(3)]
    index = load_resume_index(write_run(tmp_path, lines))
    assert index.lengths == {7: sum(map(len, lines)) / 3}


def test_no_line_after_a_completed_one_changes_the_episode(tmp_path):
    index = load_resume_index(write_run(tmp_path, [line(episode(1)), line(episode(1), "failed", 2)]))
    assert index.completed == {episode(1)}
    assert index.failed == {} and index.failed_kind == {}


def test_in_foreign_files_the_last_valid_line_counts(tmp_path):
    one, two, three = (episode(i) for i in range(3))
    lines = [
        line(one, schema=V4),
        line(one, "failed", schema=V4),
        line(two, "failed", schema=V4),
        line(two, "failed", schema=V4),
        line(two, schema=V4),
        line(three, schema=V4),
        b'{"schema_version": "another-v1", "episode_id": "' + three.encode() + b'", "status": "failed"}\n',
    ]
    index = load_resume_index(write_run(tmp_path, lines, receipts=False))
    assert index.completed == {two, three}
    assert index.failed == {one: 1}
    assert index.bad_lines == 1


def test_a_foreign_last_record_without_newline_counts_and_ours_does_not(tmp_path):
    foreign = write_run(tmp_path / "v4", [line(episode(1), schema=V4)[:-1]], receipts=False)
    ours = write_run(tmp_path / "v1", [line(episode(1))[:-1]], receipts=False)
    assert load_resume_index(foreign).completed == {episode(1)}
    assert load_resume_index(ours).completed == set()


@pytest.mark.parametrize(
    "raw",
    [
        line(episode(1), done=False),
        line(episode(1), "failed"),
    ],
)
def test_without_a_done_final_or_completed_status_it_is_not_complete(tmp_path, raw):
    index = load_resume_index(write_run(tmp_path, [raw], receipts=False))
    assert index.completed == set() and index.failed == {episode(1): 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"{broken\n",
        b"[]\n",
        b"\x00\x00\x00\n",
        b'{"schema_version": ["rayeval-episode-v1"]}\n',
        b'{"schema_version": "rayeval-episode-v1", "episode_id": 5, "status": "completed", "attempt": 1}\n',
        b'{"schema_version": "rayeval-episode-v1", "episode_id": "e", "status": "cancelled", "attempt": 1}\n',
        b'{"schema_version": "rayeval-episode-v1", "episode_id": "e", "status": "failed", "attempt": "1"}\n',
    ],
)
def test_bad_lines_in_the_middle_are_counted_and_never_cut(tmp_path, raw):
    run_dir = write_run(tmp_path, [line(episode(1)), raw, line(episode(2))], receipts=False)
    before = run_dir.traces.read_bytes()
    assert repair_torn_tail(run_dir) == 0
    index = load_resume_index(run_dir)
    assert run_dir.traces.read_bytes() == before
    assert (index.completed, index.bad_lines, index.lines) == ({episode(1), episode(2)}, 1, 3)


@pytest.mark.parametrize("tail", [b'{"half', b"\x00" * 200_000, b"\x00\x00\n", b"{x\n{y\n", b"\xff\xfe\n\x00"])
def test_a_torn_tail_is_kept_beside_and_cut_off(tmp_path, tail):
    run_dir = write_run(tmp_path, [line(episode(1)), tail], receipts=False)
    before = load_resume_index(run_dir)
    assert repair_torn_tail(run_dir) == len(tail)
    assert run_dir.traces.read_bytes() == line(episode(1))
    assert run_dir.torn.read_bytes() == (tail if tail.endswith(b"\n") else tail + b"\n")
    assert load_resume_index(run_dir).completed == before.completed == {episode(1)}
    assert repair_torn_tail(run_dir) == 0


def test_torn_tails_gather(tmp_path):
    run_dir = write_run(tmp_path, [line(episode(1)), b"one"], receipts=False)
    repair_torn_tail(run_dir)
    with run_dir.traces.open("ab") as file:
        file.write(b"two")
    repair_torn_tail(run_dir)
    assert run_dir.torn.read_bytes() == b"one\ntwo\n"


def test_a_receipt_that_does_not_match_its_bytes_is_not_believed(tmp_path):
    run_dir = write_run(tmp_path, [line(episode(1), "failed"), line(episode(2))])
    lie = run_dir.receipts.read_bytes().replace(b'"status":"failed"', b'"status":"completed"')
    body = run_dir.traces.read_bytes()
    run_dir.receipts.write_bytes(lie)
    run_dir.traces.write_bytes(body.replace(b'"message":"m"', b'"message":"n"'))
    index = load_resume_index(run_dir)
    assert index.failed == {episode(1): 1} and index.completed == {episode(2)}
    assert index.trusted_lines == 1


@pytest.mark.parametrize(
    "receipts",
    [b"", b"\x00" * 4096, b"null\n[]\n{}\n", b'{"episode_id":"x","attempt":1,"status":"completed","offset":-1}\n', b"{"],
)
def test_useless_receipts_cost_only_time(tmp_path, receipts):
    run_dir = write_run(tmp_path, [line(episode(i)) for i in range(5)])
    good = run_dir.receipts.read_bytes()
    for content in (receipts, receipts + b"\n" + good, good[: len(good) // 2] + b"\n" + receipts):
        run_dir.receipts.write_bytes(content)
        assert load_resume_index(run_dir).completed == {episode(i) for i in range(5)}


def test_receipts_past_the_end_of_the_traces_are_dropped_by_the_repair(tmp_path):
    lines = [line(episode(i)) for i in range(6)]
    run_dir = write_run(tmp_path, lines)
    with run_dir.traces.open("r+b") as file:
        file.truncate(sum(map(len, lines[:3])) + 11)
    assert repair_torn_tail(run_dir) == 11
    assert [r.episode_id for r in iter_receipts(run_dir.receipts)] == [episode(i) for i in range(3)]


def _expected(lines: list[bytes], ids: list[str], size: int) -> set[str]:
    done, end = set(), 0
    for raw, episode_id in zip(lines, ids, strict=True):
        end += len(raw)
        if end <= size:
            done.add(episode_id)
    return done


@pytest.mark.parametrize("receipts", ["all", "none", "rewritten"])
def test_cut_anywhere_in_the_last_100_kb_loads_the_right_index(tmp_path, receipts):
    rng = random.Random(20260828)
    ids = [episode(i // 4, i % 4) for i in range(160)]
    lines = [line(e, size=rng.randrange(100, 3000)) for e in ids]
    whole = b"".join(lines)
    assert len(whole) > 120_000
    run_dir = write_run(tmp_path, lines, receipts=receipts != "none")
    rows = run_dir.receipts.read_bytes() if receipts != "none" else b""
    offsets = [rng.randrange(len(whole) - 100_000, len(whole) + 1) for _ in range(195)]
    edges = [len(whole), len(whole) - 1, len(whole) - len(lines[-1]), len(whole) - len(lines[-1]) - 1, 1]
    for size in (*offsets, *edges):
        run_dir.traces.write_bytes(whole[:size])
        if receipts != "none":
            run_dir.receipts.write_bytes(rows)
        done = _expected(lines, ids, size)
        assert load_resume_index(run_dir).completed == done
        moved = repair_torn_tail(run_dir)
        if receipts == "rewritten":
            # a later driver appends other traces where the lost ones were, and their receipts come after the stale ones
            run_dir.receipts.write_bytes(rows)
            run_dir.traces.write_bytes(run_dir.traces.read_bytes() + line("task-000999__sample-000", size=50))
            done = done | {"task-000999__sample-000"}
        index = load_resume_index(run_dir)
        assert index.completed == done
        assert index.torn_bytes == 0 and index.bad_lines == 0
        assert moved == size - sum(len(raw) for raw, e in zip(lines, ids, strict=True) if e in done)
        run_dir.torn.unlink(missing_ok=True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["completed", "failed", "bad"]), st.integers(0, 40)), max_size=9),
    cut=st.floats(0, 1),
    receipts=st.sampled_from(["none", "all", "some", "shuffled"]),
    seed=st.integers(0, 9),
)
def test_the_index_is_the_same_with_any_receipts_and_before_and_after_a_repair(tmp_path, history, cut, receipts, seed):
    attempts: dict[int, int] = {}
    lines, model = [], []
    for task, status, size in history:
        if status == "bad":
            lines.append(b'{"bad": true}\n')
            model.append(None)
            continue
        attempts[task] = attempts.get(task, 0) + 1
        lines.append(line(episode(task), status, attempts[task], size=size))
        model.append((task, status, attempts[task]))
    directory = tmp_path / "run"
    run_dir = write_run(directory, [x for x in lines if b"bad" not in x])
    rows = run_dir.receipts.read_bytes().splitlines(keepends=True)
    write_run(directory, lines, receipts=False)
    # receipts of the same lines without the bad ones between: right ones, and wrong ones with plausible places
    chosen = {"none": [], "all": rows, "some": rows[::2], "shuffled": random.Random(seed).sample(rows, len(rows))}[receipts]
    run_dir.receipts.write_bytes(b"".join(chosen))
    size = int(cut * sum(map(len, lines)))
    with run_dir.traces.open("r+b") as file:
        file.truncate(size)
    completed: set[str] = set()
    failed: dict[str, int] = {}
    end = bad = 0
    for raw, row in zip(lines, model, strict=True):
        end += len(raw)
        if end > size:
            break
        if row is None:
            bad += 1
        elif row[1] == "completed":
            completed.add(episode(row[0]))
            failed.pop(episode(row[0]), None)
        elif episode(row[0]) not in completed:
            failed[episode(row[0])] = row[2]
    before = load_resume_index(run_dir)
    repair_torn_tail(run_dir)
    after = load_resume_index(run_dir)
    for index in (before, after):
        assert (index.completed, index.failed, index.bad_lines) == (completed, failed, bad)
        assert index.failed_kind.keys() == failed.keys()


def test_lines_longer_than_a_chunk_are_read(tmp_path):
    sizes = [CHUNK_BYTES // 2, 10, 2 * CHUNK_BYTES + 5, CHUNK_BYTES, 20]
    lines = [line(episode(i), size=size) for i, size in enumerate(sizes)]
    for receipts in (True, False):
        index = load_resume_index(write_run(tmp_path, lines, receipts=receipts))
        assert index.completed == {episode(i) for i in range(5)} and index.lines == 5


def test_traces_that_are_a_directory_are_refused_with_the_path(tmp_path):
    (tmp_path / "traces.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"traces\.jsonl.*cannot be read"):
        load_resume_index(RunDirectory(Path(tmp_path)))
