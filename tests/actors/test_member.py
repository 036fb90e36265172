from hypothesis import given
from hypothesis import strategies as st

from actors.member import Member, MemberState
from tests.actors.specs import spec


def member() -> Member:
    return Member(spec(), handle=None)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 12), max_size=40))
def test_a_reply_is_taken_once_in_whatever_order_it_comes(numbers: list[int]) -> None:
    m = member()
    taken = [n for n in numbers if m.took(n)]
    assert sorted(taken) == sorted(set(numbers))
    gapless = 0
    while gapless + 1 in taken:
        gapless += 1
    assert m.acknowledged == gapless
    assert m.ahead == {n for n in taken if n > gapless}


def test_only_placed_living_actors_get_orders() -> None:
    m = member()
    alive = {s for s in MemberState if setattr(m, "state", s) or m.alive}
    assert alive == {MemberState.WORKING, MemberState.SLOW}
