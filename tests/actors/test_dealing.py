from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.dealing import Dealer

SERVERS = ("a", "b")


class Actor:
    """What an actor does with quotas: it takes up to the newest, and gives up only what it does not use."""

    def __init__(self) -> None:
        self.order = 0
        self.quota = dict.fromkeys(SERVERS, 0)
        self.used = dict.fromkeys(SERVERS, 0)
        self.orders: deque[tuple[int, dict[str, int]]] = deque()
        self.replies: deque[tuple[int, dict[str, int]]] = deque()

    def apply(self) -> None:
        if self.orders:
            self.order, self.quota = self.orders.popleft()

    def reply(self) -> None:
        self.replies.append((self.order, {s: max(self.quota[s], self.used[s]) for s in SERVERS}))


def bench(admission: int, slots: list[int]) -> tuple[Dealer, dict[str, Actor]]:
    dealer = Dealer(dict.fromkeys(SERVERS, admission))
    actors = {f"actor-{k}": Actor() for k in range(len(slots))}
    for name, n in zip(actors, slots, strict=True):
        dealer.join(name, n)
    return dealer, actors


moves = st.tuples(
    st.sampled_from(["deal", "apply", "start", "end", "reply", "hear", "want", "leave"]), st.integers(0, 5), st.integers(0, 40)
)


@settings(max_examples=300, deadline=None)
@given(admission=st.integers(0, 40), slots=st.lists(st.integers(1, 20), min_size=1, max_size=5), script=st.lists(moves, max_size=120))
def test_slots_in_use_never_pass_admission(admission: int, slots: list[int], script: list[tuple[str, int, int]]) -> None:
    dealer, actors = bench(admission, slots)
    wanted = dict(zip(actors, slots, strict=True))
    number = dict.fromkeys(actors, 0)
    for move, who, n in script:
        if not actors:
            break
        name = list(actors)[who % len(actors)]
        actor, server = actors[name], SERVERS[n % 2]
        if move == "deal":
            number[name] += 1
            actor.orders.append((number[name], dealer.deal(name, number[name], wanted)))
        elif move == "apply":
            actor.apply()
        elif move == "start" and actor.used[server] < actor.quota[server]:
            actor.used[server] += 1
        elif move == "end" and actor.used[server]:
            actor.used[server] -= 1
        elif move == "reply":
            actor.reply()
        elif move == "hear" and actor.replies:
            dealer.reported(name, *actor.replies.popleft())
        elif move == "want":
            wanted[name] = n
        elif move == "leave" and len(actors) > 1:
            dealer.leave(name)
            del actors[name], wanted[name]
        for s in SERVERS:
            assert dealer.outstanding(s) <= admission
            assert sum(max(a.used[s], a.quota[s]) for a in actors.values()) <= dealer.outstanding(s)


@settings(max_examples=200, deadline=None)
@given(admission=st.integers(0, 60), slots=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_fair_shares_add_up_to_admission(admission: int, slots: list[int]) -> None:
    dealer, actors = bench(admission, slots)
    assert sum(dealer.fair(name, "a") for name in actors) == admission


@settings(max_examples=200, deadline=None)
@given(
    admission=st.integers(1, 40),
    before=st.lists(st.integers(0, 30), min_size=2, max_size=5),
    after=st.lists(st.integers(0, 30), min_size=2, max_size=5),
)
def test_every_actor_comes_to_its_share_and_nothing_lies_idle(admission: int, before: list[int], after: list[int]) -> None:
    n = min(len(before), len(after))
    dealer, actors = bench(admission, [30] * n)
    number = 0
    for wants in (before[:n], after[:n]):
        wanted = dict(zip(actors, wants, strict=True))
        for _ in range(4 * n):  # rounds of: order, apply, (episodes end), reply
            for name, actor in actors.items():
                number += 1
                actor.orders.append((number, dealer.deal(name, number, wanted)))
                actor.apply()
                actor.reply()
                dealer.reported(name, *actor.replies.popleft())
        for name, want in wanted.items():
            assert actors[name].quota["a"] >= min(want, dealer.fair(name, "a"))
        assert sum(a.quota["a"] for a in actors.values()) == min(admission, sum(wants))


def test_a_smaller_quota_is_free_only_when_the_actor_has_applied_it() -> None:
    dealer, _ = bench(10, [10, 10])
    assert dealer.deal("actor-0", 1, {"actor-0": 10, "actor-1": 0})["a"] == 10
    dealer.reported("actor-0", 1, dict.fromkeys(SERVERS, 10))
    both = {"actor-0": 10, "actor-1": 10}
    assert dealer.deal("actor-0", 2, both)["a"] == 5
    assert dealer.deal("actor-1", 1, both)["a"] == 0
    dealer.reported("actor-0", 1, dict.fromkeys(SERVERS, 10))
    assert dealer.deal("actor-1", 2, both)["a"] == 0
    dealer.reported("actor-0", 2, dict.fromkeys(SERVERS, 7))  # seven still run
    assert dealer.would_grow("actor-1", both)
    assert dealer.deal("actor-1", 3, both)["a"] == 3
    dealer.reported("actor-0", 2, dict.fromkeys(SERVERS, 5))
    assert dealer.deal("actor-1", 4, both)["a"] == 5


def test_a_dead_actor_keeps_its_slots_until_it_leaves() -> None:
    dealer, _ = bench(4, [4, 4])
    dealer.deal("actor-0", 1, {"actor-0": 4})
    assert dealer.deal("actor-1", 1, {"actor-1": 4})["a"] == 0
    dealer.leave("actor-0")
    assert dealer.deal("actor-1", 2, {"actor-1": 4})["a"] == 4


def test_lowered_admission_takes_nothing_away_but_gives_nothing_new() -> None:
    dealer, _ = bench(8, [8])
    dealer.deal("actor-0", 1, {"actor-0": 8})
    dealer.reported("actor-0", 1, dict.fromkeys(SERVERS, 8))
    dealer.admission["a"] = 3
    assert dealer.deal("actor-0", 2, {"actor-0": 8}) == {"a": 3, "b": 8}


def test_words_of_an_actor_that_left_are_passed_over() -> None:
    dealer, _ = bench(4, [4])
    dealer.leave("actor-0")
    dealer.reported("actor-0", 1, {"a": 4})
    assert dealer.outstanding("a") == 0
