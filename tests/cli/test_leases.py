import os
import socket
import time

import httpx
import psutil
import pytest

from rayeval.cli.leases import SILENT_S, owner_state
from rayeval.schemas import Lease
from rayeval.store import LeaseJournal, RunLock, load_journal
from rayeval.store.lease_journal import JournalActor
from rayeval.store.lock import boot_id, process_space
from tests.helpers.runs import make_run


def me():
    return psutil.Process().create_time()


def actor(**keys):
    known = {"actor_id": "1-a", "node_id": "n", "host": socket.gethostname(), "boot_id": boot_id(), "pid": os.getpid()}
    return JournalActor(**{**known, "start_time": me(), "last_seen": time.time(), **keys})


@pytest.mark.parametrize(
    ("keys", "state"),
    [
        ({}, "alive"),
        ({"gone": True}, "dead"),
        ({"start_time": 1.0}, "dead"),  # the pid is another process's now
        ({"pid": 2**22 + 7}, "dead"),
        ({"boot_id": process_space()}, "alive"),
        ({"boot_id": process_space(), "pid": 2**22 + 7}, "dead"),
        ({"boot_id": f"{boot_id()}/another container"}, "unknown"),
        ({"boot_id": f"{boot_id()}/another container", "last_seen": time.time() - SILENT_S - 1}, "dead"),
        ({"boot_id": "another"}, "dead"),
        ({"boot_id": "another", "host": "elsewhere"}, "unknown"),
        ({"boot_id": "another", "host": "elsewhere", "last_seen": time.time() - SILENT_S - 1}, "dead"),
    ],
)
def test_the_state_of_an_owner(keys, state):
    assert owner_state(actor(**keys)) == state


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "r", [])


@pytest.fixture
def shop(start_demo_with):
    return start_demo_with(slots=4).shop_url


def take(shop):
    """A slot of the shop, as an actor takes it."""
    body = {"action": "reset", "idx": 0, "if_persona": True, "include_private_goal": False, "interaction_mode": "single_turn"}
    result = httpx.post(f"{shop}/api/shop_agent", json=body, timeout=30).json()["result"]
    return Lease(shop, result["env_idx"], result["lease_id"])


def free_slots(shop):
    return httpx.get(f"{shop}/healthz", timeout=30).json()["free_slots"]


def journal(run, *leases, alive=False):
    written = LeaseJournal(run.leases)
    written.actor("1-a", "n", socket.gethostname(), boot_id(), os.getpid(), me() if alive else 1.0)
    for lease in leases:
        written.held("1-a", lease)
    written.close()


def test_nothing_held(rayeval, run):
    assert rayeval("leases", "list").out == "no lease is journalled as held\n"
    assert rayeval("leases", "list", "r", "--json").json["leases"] == []
    assert rayeval("leases", "doctor").out == "these runs name no server; give --server URL\n"


def test_held_leases_are_listed_with_their_owners(rayeval, run):
    journal(run, Lease("http://shop", 3, "0123456789abcdef"))
    answer = rayeval("leases", "list", "r")
    assert "01234567  1-a    dead" in answer.out and "89abcdef" not in answer.out
    (row,) = rayeval("leases", "list", "--json").json["leases"]
    assert row == {
        "run": "r",
        "actor": "1-a",
        "owner": "dead",
        "server": "http://shop",
        "env_idx": 3,
        "lease_id": "01234567",
    }


def test_a_damaged_line_hides_no_lease_and_stops_no_verb(rayeval, run):
    journal(run, Lease("http://shop", 3, "0123456789abcdef"))
    with run.leases.open("a") as file:
        file.write('{"kind":"held","actor":"1-a","lease":["http://shop",4,null]}\n')
    answer = rayeval("leases", "list", "r")
    assert answer.code == 0 and answer.out.count("http://shop") == 1


def test_what_a_dead_owner_held_is_released_once(rayeval, run, shop):
    journal(run, take(shop), take(shop))
    assert free_slots(shop) == 2
    assert rayeval("leases", "release", "r", "--json").json == {
        "schema": "rayeval-leases-release-v1",
        "released": 2,
        "failed": [],
        "living_runs": [],
    }
    assert free_slots(shop) == 4
    assert load_journal(run.leases).held == {}
    assert rayeval("leases", "release").out == "0 leases are free again\n"


def test_what_a_living_owner_holds_is_left(rayeval, run, shop):
    journal(run, take(shop), alive=True)
    assert rayeval("leases", "release", "r", "--json").json["released"] == 0
    assert free_slots(shop) == 3


def test_a_living_driver_keeps_its_runs_leases(rayeval, run, shop):
    journal(run, take(shop))
    with RunLock.acquire(run):
        named = rayeval("leases", "release", "r", "--json")
        assert named.code == 4 and "its driver" in named.json["error"]["hint"]
        everything = rayeval("leases", "release")
        assert everything.code == 0 and everything.out == "0 leases are free again; left 1 living run alone\n"
    assert free_slots(shop) == 3


def test_a_server_that_is_gone_is_told_and_the_lease_stays_journalled(rayeval, run):
    journal(run, Lease("http://127.0.0.1:9", 0, "x"))
    answer = rayeval("leases", "release", "r")
    assert answer.code == 5 and "0 leases are free again" in answer.out and "not released: slot 0" in answer.out
    assert set(load_journal(run.leases).held) == {("http://127.0.0.1:9", "x")}


def test_doctor_counts_what_nobody_holds(rayeval, run, shop):
    journal(run, take(shop))
    take(shop)
    (row,) = rayeval("leases", "doctor", "r", "--json").json["servers"]
    assert row == {"server": shop, "journalled": 1, "slots": 4, "free": 2, "held": 2, "held_by_nobody": 1, "error": None}
    assert "held by nobody: by no run looked at here" in rayeval("leases", "doctor").out


def test_doctor_looks_at_named_servers_and_says_which_are_gone(rayeval, run, shop):
    answer = rayeval("leases", "doctor", "--server", shop, "--server", "http://127.0.0.1:9", "--json")
    assert answer.code == 5
    good, gone = answer.json["servers"]
    assert (good["free"], good["error"]) == (4, None)
    assert gone["slots"] is None and "127.0.0.1:9" in gone["error"]
