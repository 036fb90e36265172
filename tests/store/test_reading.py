from __future__ import annotations

import orjson
import pytest

from rayeval.exceptions import InputError
from rayeval.hashing import canonical_hash
from rayeval.store import RunDirectory, canonical_hash_of_run, iter_receipts, iter_traces, last_records
from tests.store.lines import V4, episode, line, write_run


def test_iter_traces_skips_and_counts_what_is_no_record(tmp_path):
    run_dir = write_run(tmp_path, [line(episode(1)), b"{x\n", line(episode(2)), b'{"torn'], receipts=False)
    for source in (run_dir, tmp_path, run_dir.traces):
        reader = iter_traces(source)
        assert [t["episode_id"] for t in reader] == [episode(1), episode(2)]
        assert (reader.bad_lines, reader.torn_bytes) == (1, 6)


def test_iter_traces_of_a_missing_file_is_empty(tmp_path):
    assert list(iter_traces(tmp_path / "traces.jsonl")) == []


def test_iter_traces_names_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "traces.jsonl").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        list(iter_traces(RunDirectory(tmp_path)))


def test_last_records_gives_one_record_an_episode(tmp_path):
    lines = [
        line(episode(1), "failed", 1),
        line(episode(2), "failed", 1),
        line(episode(1), "completed", 2),
        line(episode(2), "failed", 2),
        line(episode(1), "failed", 3),
    ]
    run_dir = write_run(tmp_path, lines)
    assert [(t["episode_id"], t["attempt"]) for t in last_records(run_dir)] == [(episode(1), 2), (episode(2), 2)]
    assert [t["episode_id"] for t in last_records(run_dir, completed_only=True)] == [episode(1)]


def test_last_records_of_a_foreign_file_are_its_last_lines(tmp_path):
    lines = [line(episode(1), schema=V4), line(episode(1), "failed", schema=V4), line(episode(2), schema=V4)[:-1]]
    run_dir = write_run(tmp_path, lines, receipts=False)
    assert [(t["episode_id"], t["status"]) for t in last_records(run_dir)] == [
        (episode(1), "failed"),
        (episode(2), "completed"),
    ]


def test_canonical_hash_does_not_depend_on_order_attempts_or_failed_lines(tmp_path):
    one = write_run(tmp_path / "a", [line(episode(1)), line(episode(2))])
    two = write_run(
        tmp_path / "b",
        [line(episode(2), "failed", 1), line(episode(2), "completed", 2), line(episode(1)), b'{"torn'],
        receipts=False,
    )
    three = write_run(tmp_path / "c", [line(episode(1))])
    expected = canonical_hash([orjson.loads(line(episode(1))), orjson.loads(line(episode(2)))])
    assert canonical_hash_of_run(one) == canonical_hash_of_run(two) == expected
    assert canonical_hash_of_run(three) != expected


def test_receipts_of_a_missing_file_are_none(tmp_path):
    assert list(iter_receipts(tmp_path / "receipts.jsonl")) == []


def test_a_device_in_place_of_a_file_is_not_read_for_ever(tmp_path):
    run_dir = write_run(tmp_path, [line(episode(1))], receipts=False)
    run_dir.receipts.symlink_to("/dev/full")
    assert list(iter_receipts(run_dir.receipts)) == []
    assert [t["episode_id"] for t in last_records(run_dir)] == [episode(1)]
