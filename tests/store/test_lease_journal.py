from __future__ import annotations

import os
import stat
import subprocess
import sys
import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.exceptions import StoreWriteError
from rayeval.schemas import Lease
from rayeval.store import JournalState, LeaseJournal, load_journal

A, B, C = (Lease("http://s", i, f"secret-lease-{i}") for i in range(3))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leases.jsonl"


@pytest.fixture
def journal(path):
    opened = LeaseJournal(path)
    opened.actor("a1", "node", "host", "boot", 77, 123.5)
    yield opened
    opened.close()


def test_what_is_held_and_by_whom(path, journal):
    journal.actor("a2", "node", "host", "boot", 78, 124.5)
    journal.held("a1", A)
    journal.held("a1", B)
    journal.held("a2", C)
    journal.ended("a1", A)
    journal.actor_gone("a2")
    state = load_journal(path)
    assert state.held == {(B.server, B.lease_id): ("a1", B), (C.server, C.lease_id): ("a2", C)}
    assert state.held_by("a1") == [B]
    actor = state.actors["a1"]
    assert (actor.node_id, actor.host, actor.boot_id, actor.pid, actor.start_time) == ("node", "host", "boot", 77, 123.5)
    assert not actor.gone and state.actors["a2"].gone
    assert state.bad_lines == 0


def test_an_end_for_an_unknown_lease_changes_nothing(path, journal):
    journal.ended("a1", A)
    assert load_journal(path).held == {}


def test_last_seen_is_wall_clock_and_written_seldom(path, journal):
    before = time.time()
    for _ in range(1000):
        journal.seen("a1")
    assert before <= load_journal(path).actors["a1"].last_seen <= time.time()
    assert path.read_bytes().count(b'"seen"') == 1


def test_servers_may_give_leases_of_one_name(path, journal):
    there = Lease("http://t", 1, A.lease_id)
    journal.changed("a1", [("held", A), ("held", there), ("ended", A)])
    assert load_journal(path).held_by("a1") == [there]


def test_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "leases.jsonl"
    path.touch(0o644)
    old = os.umask(0)
    try:
        LeaseJournal(path).close()
        LeaseJournal(tmp_path / "new").close()
    finally:
        os.umask(old)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, tmp_path / "new")] == [0o600, 0o600]


def test_a_torn_tail_is_passed_over_and_does_not_swallow_the_next_line(path, journal):
    journal.held("a1", A)
    journal.held("a1", B)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    again = LeaseJournal(path)
    again.held("a1", C)
    again.close()
    state = load_journal(path)
    assert {name for _, name in state.held} == {A.lease_id, C.lease_id} and state.bad_lines == 1


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\x00\n",
        b"[]\n",
        b"{}\n",
        b'{"kind":"held","actor":"a","lease":[1]}\n',
        b"\xff\n",
        b'{"kind":"held","actor":"a","lease":["s",1,null]}\n',
        b'{"kind":"held","actor":"a","lease":["s",1,{}]}\n',
        b'{"kind":"held","actor":"a","lease":[null,1,"x"]}\n',
        b'{"kind":"held","actor":7,"lease":["s",1,"x"]}\n',
    ],
)
def test_junk_lines_are_counted(path, journal, junk):
    with path.open("ab") as file:
        file.write(junk)
    journal.held("a1", A)
    state = load_journal(path)
    assert state.bad_lines == 1 and set(state.held) == {(A.server, A.lease_id)}


def test_a_missing_journal_is_an_empty_state(path):
    assert load_journal(path) == JournalState()


FULL = """
import resource, sys
from pathlib import Path
from rayeval.exceptions import StoreWriteError
from rayeval.schemas import Lease
from rayeval.store import LeaseJournal
journal = LeaseJournal(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
held = 0
try:
    while True:
        journal.held("a1", Lease("http://s", held, f"secret-lease-{held}"))
        held += 1
except StoreWriteError as error:
    print(held, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, resource.RLIM_INFINITY))
journal.ended("a1", Lease("http://s", 0, "secret-lease-0"))
"""


def test_a_full_disk_is_told_without_lease_ids_and_the_journal_stays_usable(path):
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    held, _, error = done.stdout.partition(" ")
    assert str(path) in error and "free space" in error and "secret-lease" not in error
    state = load_journal(path)
    assert {name for _, name in state.held} == {f"secret-lease-{i}" for i in range(1, int(held))} and state.bad_lines == 0


def test_changes_go_in_together_and_in_order(path, journal):
    other = Lease("http://s", 2, "secret-lease-2")
    journal.changed("a1", [("held", A), ("held", other), ("ended", A)])
    assert load_journal(path).held == {(other.server, other.lease_id): ("a1", other)}
    assert [orjson.loads(line)["kind"] for line in path.read_bytes().splitlines()[-3:]] == ["held", "held", "ended"]


def test_no_lease_id_in_errors_and_reprs(tmp_path, path, journal):
    journal.held("a1", A)
    assert "secret-lease" not in repr(load_journal(path))
    with pytest.raises(StoreWriteError, match="opening the lease journal"):
        LeaseJournal(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError) as closed:
        journal.held("a1", A)
    assert "secret-lease" not in str(closed.value)


def test_a_hundred_thousand_lines_are_loaded(path, journal):
    line = b'{"kind":"%s","actor":"a1","lease":["http://s",1,"l%d"]}\n'
    with path.open("ab") as file:
        for i in range(50_000):
            file.write(line % (b"held", i) + line % (b"ended", i))
    began = time.perf_counter()
    state = load_journal(path)
    assert state.held == {} and state.bad_lines == 0
    assert time.perf_counter() - began < 10


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=30))
def test_held_is_always_the_difference(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("j") / "leases.jsonl"
    journal = LeaseJournal(path)
    held: set[str] = set()
    for gained, n in changes:
        lease = Lease("http://s", n, f"l{n}")
        (journal.held if gained else journal.ended)("a", lease)
        (held.add if gained else held.discard)(lease.lease_id)
    journal.close()
    assert {name for _, name in load_journal(path).held} == held
