from pathlib import Path
from typing import Any

import pytest

from actors.dealing import Dealer
from actors.dispatch import Dispatcher, Phase
from actors.member import Member, MemberState
from actors.messages import Reply
from actors.queue import JobQueue
from tests.actors.plans import index, small_plan
from tests.actors.specs import spec

A, B, MODEL = "http://a.invalid", "http://b.invalid", "http://model.invalid/v1"


@pytest.fixture
def member() -> Member:
    nowhere: Any = None
    return Member(spec(), nowhere, state=MemberState.WORKING)


@pytest.fixture
def dispatch(tmp_path: Path, member: Member) -> Dispatcher:
    nothing: Any = None
    queue = JobQueue(small_plan(tmp_path), index(), attempts=3, longest_first=False)
    dealer = Dealer({A: 4, B: 4})
    dealer.join(member.actor_id, 4)
    return Dispatcher(Phase(), {member.actor_id: member}, queue=queue, ledger=nothing, dealer=dealer, endpoints=(MODEL,))


def test_one_server_that_answers_is_enough(dispatch: Dispatcher, member: Member) -> None:
    member.last = Reply(1, 1, out={A: 3.0})
    assert dispatch.all_out() == [] and dispatch.credit(member) > 0


def test_servers_that_are_all_out_stop_dispatch(dispatch: Dispatcher, member: Member) -> None:
    member.last = Reply(1, 1, out={A: 3.0, B: 3.0})
    assert dispatch.all_out() == [A, B] and dispatch.credit(member) == 0


def test_a_server_without_slots_for_this_run_does_not_hide_an_outage(dispatch: Dispatcher, member: Member) -> None:
    dispatch._dealer.admission[B] = 0
    member.last = Reply(1, 1, out={A: 3.0})
    assert dispatch.all_out() == [A]
