import hashlib

import duckdb
import orjson
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rayeval.exceptions import InputError, RefusedError
from rayeval.shard_places import open_place
from rayeval.shards import is_current, plan_shards, read_manifest, shard_files, verify_shards
from tests.helpers.runs import completed, failed, foreign, make_foreign_run, make_run, write_traces
from tests.helpers.shards import write_here


def rows_of(place):
    return [row for path in shard_files(place) for row in pq.read_table(path).to_pylist()]


def final(run, **sizes):
    """(task, attempt) of the rows that count."""
    place = open_place(run.shards)
    write_here([run], place, **sizes)
    return [(row["task_id"], row["attempt"]) for row in rows_of(place) if row["final_attempt"]]


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        ([failed(0), completed(0, attempt=2)], [(0, 2)]),
        ([failed(0), failed(0, attempt=2)], [(0, 2)]),
        ([completed(0), failed(0, attempt=2)], [(0, 1)]),
        ([completed(0), completed(0, attempt=2)], [(0, 1)]),
        ([failed(0), completed(1), failed(0, attempt=2), failed(1, attempt=2)], [(1, 1), (0, 2)]),
    ],
)
def test_one_attempt_of_each_episode_counts(tmp_path, traces, expected):
    assert final(make_run(tmp_path / "a", traces)) == expected
    assert final(make_run(tmp_path / "b", traces, receipts=False), part_bytes=1) == expected


def test_of_a_foreign_run_the_last_record_counts(tmp_path):
    traces = [foreign(completed(0, reward=reward)) for reward in (1.0, 0.5)]
    place = open_place(tmp_path / "out")
    write_here([make_foreign_run(tmp_path / "old", traces)], place)
    assert [(row["reward"], row["final_attempt"]) for row in rows_of(place)] == [(1.0, False), (0.5, True)]


def test_bad_lines_and_a_torn_tail_are_left_out_and_counted(tmp_path):
    run = make_run(tmp_path / "a", [completed(0), b"{oops\n", b"\n", completed(1), b"[]\n"], tail=b'{"schema_version": "ray')
    place = open_place(run.shards)
    manifest = write_here([run], place, part_bytes=1)
    assert [row["task_id"] for row in rows_of(place)] == [0, 1]
    assert manifest["skipped"] == {"bad_lines": 2, "torn_bytes": 23} and manifest["rows"] == 2


def test_a_whole_last_line_without_newline_counts_only_in_a_foreign_run(tmp_path):
    whole = orjson.dumps(foreign(completed(1)))
    old = make_foreign_run(tmp_path / "old", [foreign(completed(0))])
    write_traces(old, [foreign(completed(0))], whole, receipts=False)
    manifest = write_here([old], open_place(tmp_path / "out"))
    assert (manifest["rows"], manifest["skipped"]["torn_bytes"]) == (2, 0)
    ours = make_run(tmp_path / "a", [completed(0)], tail=orjson.dumps(completed(1)))
    manifest = write_here([ours], open_place(tmp_path / "out"))
    assert (manifest["rows"], manifest["skipped"]["torn_bytes"]) == (1, len(orjson.dumps(completed(1))))


@pytest.mark.parametrize("part_bytes", [1, 3000, 10_000, 1 << 20])
def test_however_a_run_is_cut_its_rows_are_the_same(tmp_path, part_bytes):
    traces = [completed(t, reward=t / 10, attempt=1 + t % 2) for t in range(10)]
    run = make_run(tmp_path / "a", [*traces[:5], b"junk\n", *traces[5:]])
    place = open_place(run.shards)
    manifest = write_here([run], place, part_bytes=part_bytes)
    assert [row["task_id"] for row in rows_of(place)] == list(range(10))
    sizes = [sum(span.length for span in part.spans) for part in plan_shards([run], part_bytes=part_bytes).parts]
    assert len(sizes) == len(manifest["files"]) and all(size <= max(part_bytes, 2500) for size in sizes)


def test_the_manifest_knows_files_sources_and_columns(tmp_path):
    run = make_run(tmp_path / "a", [failed(0), completed(0, attempt=2), completed(1)])
    place = open_place(run.shards)
    manifest = write_here([run], place)
    assert read_manifest(run.shards) == manifest and manifest["schema"] == "rayeval-shards-v1"
    (file,) = manifest["files"]
    data = (run.shards / file["name"]).read_bytes()
    assert file == {"name": "traces-00000.parquet", "rows": 3, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (source,) = manifest["sources"]
    assert source["sha256"] == hashlib.sha256(run.traces.read_bytes()).hexdigest()
    assert (source["run"], source["records"], source["episodes"]) == ("a", 3, 2)
    assert source["fingerprint"] == run.read_manifest()["plan_fingerprint"]
    assert {"name": "r_strict", "type": "double"} in manifest["columns"]


def test_the_same_run_gives_the_same_bytes_wherever_it_lies(tmp_path):
    traces = [completed(t) for t in range(5)]
    read = []
    for where in ("x", "y"):
        (tmp_path / where).mkdir()
        run = make_run(tmp_path / where / "a", traces)
        write_here([run], open_place(run.shards))
        read.append({path.name: path.read_bytes() for path in run.shards.glob("[!.]*")})
    assert read[0] == read[1]


def test_several_runs_share_files_and_keep_their_names(tmp_path):
    runs = [make_run(tmp_path / name, [completed(t) for t in range(3)]) for name in "abc"]
    place = open_place(tmp_path / "merged")
    manifest = write_here(runs, place)
    assert [(row["run"], row["task_id"]) for row in rows_of(place)] == [(r, t) for r in "abc" for t in range(3)]
    assert len(manifest["files"]) == 1 and [source["run"] for source in manifest["sources"]] == list("abc")
    write_here(runs, place, part_bytes=4500)
    assert [(row["run"], row["task_id"]) for row in rows_of(place)] == [(r, t) for r in "abc" for t in range(3)]


def test_runs_of_two_trace_schemas_are_not_merged(tmp_path):
    ours, old = make_run(tmp_path / "a", [completed()]), make_foreign_run(tmp_path / "old", [foreign(completed())])
    with pytest.raises(InputError, match="different trace schemas"):
        plan_shards([ours, old])


def test_a_run_is_not_merged_with_itself(tmp_path):
    run = make_run(tmp_path / "a", [completed()])
    with pytest.raises(InputError, match="given twice"):
        plan_shards([run, run])


def test_a_run_without_traces_makes_an_empty_set(tmp_path):
    run = make_run(tmp_path / "a", [])
    run.traces.unlink()
    assert write_here([run], open_place(run.shards))["rows"] == 0
    assert shard_files(run.shards) == [] and verify_shards(run.shards) == []


def test_a_set_is_current_until_the_run_or_a_file_changes(tmp_path):
    run = make_run(tmp_path / "a", [completed(0), completed(1, r_late=1.0)])
    place = open_place(run.shards)
    write_here([run], place)
    assert is_current(place, plan_shards([run])) and is_current(place, plan_shards([run], look_at=1))
    path = run.shards / "traces-00000.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    assert not is_current(place, plan_shards([run]))
    assert verify_shards(place) == ["traces-00000.parquet: its bytes are not those the manifest knows"]
    path.write_bytes(data + b"x")
    assert "bytes, the manifest says" in verify_shards(place)[0]
    path.unlink()
    assert verify_shards(place) == ["traces-00000.parquet: is missing"]
    path.write_bytes(data)
    write_traces(run, [completed(0)], b"", receipts=True)
    assert not is_current(place, plan_shards([run]))


def test_without_a_manifest_nothing_counts(tmp_path):
    run = make_run(tmp_path / "a", [completed()])
    place = open_place(run.shards)
    with pytest.raises(InputError, match="no shards, or unfinished ones"):
        shard_files(run.shards)
    with place.lock():
        name = place.put("traces-00000.parquet", b"half", unfinished=True)
        assert not list(run.shards.glob("*.parquet")) and (run.shards / name).exists()
        place.clear()
    assert [path.name for path in run.shards.glob("[!.]*")] == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": "x", "files": []}', '{"schema": "rayeval-shards-v1", "files": [{"name": "x"}]}']
)
def test_a_damaged_manifest_is_refused(tmp_path, text):
    (tmp_path / "_manifest.json").write_text(text)
    with pytest.raises(InputError, match="manifest"):
        read_manifest(tmp_path)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path):
    file = {"name": "../secret.parquet", "rows": 1, "bytes": 1, "sha256": ""}
    (tmp_path / "_manifest.json").write_bytes(orjson.dumps({"schema": "rayeval-shards-v1", "files": [file]}))
    with pytest.raises(InputError, match="not of schema"):
        shard_files(tmp_path)


def test_a_directory_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "part-00000.parquet").write_bytes(b"mine")
    with pytest.raises(InputError, match="holds other files"):
        write_here([make_run(tmp_path / "a", [completed()])], open_place(tmp_path))
    assert (tmp_path / "part-00000.parquet").read_bytes() == b"mine"


def test_one_writer_at_a_time(tmp_path):
    with open_place(tmp_path).lock(), pytest.raises(RefusedError, match="another process is writing"), open_place(tmp_path).lock():
        pass


class Store(MemoryFileSystem):
    """An object store: whole objects, no rename. ``puts``: their names in order."""

    cachable = False

    def __init__(self):
        super().__init__()
        self.store, self.pseudo_dirs, self.puts = {}, [""], []

    def _open(self, path, mode="rb", **kwargs):
        if mode == "wb":
            self.puts.append(path.rpartition("/")[2])
        return super()._open(path, mode, **kwargs)

    def mv(self, *args, **kwargs):
        raise AssertionError("an object store has no rename")

    cp_file = mv


def test_in_an_object_store_whole_objects_are_put_and_the_manifest_last(tmp_path):
    store = Store()
    place = open_place("/bucket/smoke", pafs.PyFileSystem(pafs.FSSpecHandler(store)))
    run = make_run(tmp_path / "a", [completed(t) for t in range(4)])
    manifest = write_here([run], place, part_bytes=3000)
    names = [file["name"] for file in manifest["files"]]
    assert len(names) > 1 and store.puts == [*names, "_manifest.json"]
    assert read_manifest(place) == manifest and verify_shards(place) == []
    assert is_current(place, plan_shards([run], part_bytes=3000)) and not is_current(place, plan_shards([run]))
    assert write_here([run], place, part_bytes=3000) == manifest


def test_a_place_by_uri(tmp_path):
    run = make_run(tmp_path / "a", [completed()])
    here = open_place(f"file://{tmp_path}/out")
    assert here.local and here.words == f"{tmp_path}/out"
    store = open_place(f"local://{tmp_path}/store")
    assert not store.local
    write_here([run], store)
    assert shard_files(f"local://{tmp_path}/store") == [f"local://{tmp_path}/store/traces-00000.parquet"]
    assert verify_shards(tmp_path / "store") == []


def test_a_place_never_tells_a_password():
    assert open_place("memory://me:secret@bucket/x?token=secret").words == "memory://bucket/x"
    with pytest.raises(InputError) as told:
        open_place("nosuch://me:secret@bucket/x")
    assert "secret" not in str(told.value)


def test_datasets_reads_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    run = make_run(tmp_path / "a", [failed(0), completed(0, attempt=2, reward=0.5)])
    write_here([run], open_place(run.shards), part_bytes=1)
    loaded = datasets.load_dataset("parquet", data_files=shard_files(run.shards), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["final_attempt"][:] == [False, True] and loaded["reward"][:] == [None, 0.5]
    assert orjson.loads(loaded[1]["trace"])["final"]["reward"] == 0.5


def test_duckdb_reads_them(tmp_path):
    run = make_run(tmp_path / "a", [failed(0), completed(0, attempt=2, reward=0.5), completed(1)])
    write_here([run], open_place(run.shards), part_bytes=1)
    question = (
        "select count(*), avg(reward), avg(r_price), sum(json_extract(trace, '$.final.reward')::double) "
        "from read_parquet($files) where final_attempt and status = 'completed'"
    )
    assert duckdb.execute(question, {"files": shard_files(run.shards)}).fetchone() == (2, 0.75, 1.0, 1.5)
