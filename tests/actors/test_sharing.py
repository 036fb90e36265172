from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.sharing import RunShares, max_min

TOTAL = 12
NAMES = ("a", "b", "c")


@given(st.integers(0, 40), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=6))
def test_shares_use_what_there_is_and_are_fair_by_weight(total: int, runs: list[tuple[int, int]]) -> None:
    wants, weights = [w for w, _ in runs], [w for _, w in runs]
    shares = max_min(total, wants, weights)
    assert sum(shares) == min(total, sum(wants))
    for i, want in enumerate(wants):
        assert 0 <= shares[i] <= want
        if shares[i] < want:
            assert all((shares[j] - 1) * weights[i] < (shares[i] + 1) * weights[j] for j in range(len(runs)))


def test_what_one_run_does_not_want_goes_to_those_that_do() -> None:
    assert max_min(16, [16, 16, 2], [1, 1, 1]) == [7, 7, 2]
    assert max_min(16, [16, 16], [3, 1]) == [12, 4]
    assert max_min(2, [5, 5, 5], [1, 1, 1]).count(0) == 1


@dataclass
class Run:
    """A run as it really is, whatever the dealer believes."""

    quota: int = 0
    held: int = 0
    want: int = 0
    applied: int = 0
    number: int = 0
    dead: bool = False
    known: bool = False
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Answers on their way: (number, quota)."""

    @property
    def taken(self) -> int:
        return max(self.quota, self.held)

    @property
    def most(self) -> int:
        """What it may come to take without another word."""
        return max(self.taken, *(quota for _, quota in self.waiting), 0)


class Sharing(RuleBasedStateMachine):
    """Runs that come, go, crash, fall silent and lose answers; a broker that starts anew."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = RunShares()
        self.runs: dict[str, Run] = {}
        self.settled = True

    def living(self) -> list[Run]:
        return [run for run in self.runs.values() if not run.dead]

    @rule(name=st.sampled_from(NAMES), want=st.sampled_from((0, 1, 4, 8, 12, 20)), arrives=st.sampled_from((True, True, True, False)))
    def ask(self, name: str, want: int, arrives: bool) -> None:
        run = self.runs.setdefault(name, Run())
        if run.dead:
            return
        run.want = want
        if not arrives:
            run.waiting.clear()  # given up
            return
        if not run.known:
            self.shares.join(name, 1)
            run.known, run.applied, run.number = True, 0, 0
        self.shares.freeze(name, False)
        self.shares.report(name, run.applied, wants={"s": run.want}, taken={"s": run.taken}, slots={"s": TOTAL})
        run.number += 1
        run.waiting.append((run.number, self.shares.deal(name, run.number, settled=self.settled)["s"]))

    @rule(name=st.sampled_from(NAMES))
    def hear(self, name: str) -> None:
        run = self.runs.get(name)
        if run is not None and not run.dead and run.waiting:
            run.applied, run.quota = run.waiting.pop(0)

    @rule(name=st.sampled_from(NAMES), more=st.integers(-6, 12))
    def work(self, name: str, more: int) -> None:
        run = self.runs.get(name)
        if run is not None and not run.dead:
            run.held = max(0, run.held + more) if more < 0 else max(run.held, min(run.held + more, run.quota))

    @rule(name=st.sampled_from(NAMES))
    def fall_silent(self, name: str) -> None:
        if name in self.runs and self.runs[name].known:
            self.shares.freeze(name)

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        if name in self.runs:
            self.runs[name].dead = True

    @rule(name=st.sampled_from(NAMES), left=st.integers(0, 3))
    def release(self, name: str, left: int) -> None:
        run = self.runs.get(name)
        if run is None or not run.dead:
            return
        run.held, run.quota = min(left, run.held), 0
        run.waiting.clear()
        if run.known:
            self.shares.freeze(name)
            self.shares.keep(name, {"s": run.held})
        if run.held == 0:
            self.shares.leave(name)
            del self.runs[name]

    @precondition(lambda self: all(not run.dead for run in self.runs.values()))
    @rule()
    def broker_starts_anew(self) -> None:
        self.shares, self.settled = RunShares(), False
        for run in self.runs.values():
            run.known = False
            run.waiting.clear()

    @precondition(lambda self: all(run.known for run in self.living()))
    @rule()
    def settle(self) -> None:
        self.settled = True

    @invariant()
    def never_more_than_there_are(self) -> None:
        assert sum(run.most for run in self.runs.values()) <= TOTAL
        assert self.shares.outstanding("s") <= TOTAL

    def teardown(self) -> None:
        """With no more surprises, everybody ends with its fair share."""
        for name in [n for n, r in self.runs.items() if r.dead]:
            self.release(name, 0)
        for _ in range(8):
            for name, run in self.runs.items():
                run.waiting.clear()
                self.ask(name, run.want, True)
                self.hear(name)
                run.held = min(run.held, run.quota)
            self.settled = True
        names = list(self.shares._runs)
        fair = max_min(TOTAL, [self.runs[n].want for n in names], [1] * len(names))
        assert [self.runs[n].quota for n in names] == fair


TestSharing: Any = Sharing.TestCase
TestSharing.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_a_lowered_quota_is_free_only_when_it_is_in_force() -> None:
    shares = RunShares()
    shares.join("old", 1)
    shares.report("old", 0, wants={"s": 12}, taken={"s": 0}, slots={"s": 12})
    assert shares.deal("old", 1) == {"s": 12}
    shares.join("new", 1)
    shares.report("new", 0, wants={"s": 12}, taken={"s": 0}, slots={"s": 12})
    assert shares.deal("new", 1) == {"s": 0}
    shares.report("old", 1, wants={"s": 12}, taken={"s": 12}, slots={"s": 12})
    assert shares.deal("old", 2) == {"s": 6}
    assert shares.deal("new", 2) == {"s": 0}
    shares.report("old", 2, wants={"s": 12}, taken={"s": 9}, slots={"s": 12})
    assert shares.deal("new", 3) == {"s": 3}
    shares.report("old", 2, wants={"s": 12}, taken={"s": 6}, slots={"s": 12})
    assert shares.deal("new", 4) == {"s": 6}


def test_the_smallest_view_of_a_server_counts() -> None:
    shares = RunShares()
    for name, slots in (("a", 16), ("b", 10)):
        shares.join(name, 1)
        shares.report(name, 0, wants={"s": 16}, taken={"s": 0}, slots={"s": slots})
    assert shares.total("s") == 10


def test_a_frozen_run_keeps_its_quota_and_the_others_share_the_rest() -> None:
    shares = RunShares()
    for name in ("a", "b", "c"):
        shares.join(name, 1)
        shares.report(name, 0, wants={"s": 12}, taken={"s": 0}, slots={"s": 12})
    assert [shares.deal(name, 1)["s"] for name in ("a", "b", "c")] == [4, 4, 4]
    shares.freeze("a")
    shares.report("b", 1, wants={"s": 1}, taken={"s": 1}, slots={"s": 12})
    shares.deal("b", 2)
    shares.report("b", 2, wants={"s": 1}, taken={"s": 1}, slots={"s": 12})
    shares.report("c", 1, wants={"s": 12}, taken={"s": 4}, slots={"s": 12})
    assert shares.deal("c", 2) == {"s": 7}
    assert shares.outstanding("s") == 12
