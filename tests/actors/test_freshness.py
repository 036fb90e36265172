import threading

import pytest

from actors.freshness import Freshness
from rayeval.exceptions import FencedError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_right_lapses_without_a_sign_of_life() -> None:
    clock = Clock()
    fresh = Freshness(30.0, clock)
    clock.now += 29.9
    fresh.check()
    clock.now += 0.1
    with pytest.raises(FencedError, match="no sign of the driver for 30 s"):
        fresh.check()


def test_a_sign_of_life_renews_it_for_the_whole_time() -> None:
    clock = Clock()
    fresh = Freshness(30.0, clock)
    for _ in range(10):
        clock.now += 20.0
        fresh.renew()
    fresh.check()


def test_a_late_sign_of_life_does_not_bring_it_back() -> None:
    clock = Clock()
    fresh = Freshness(30.0, clock)
    clock.now += 31.0
    fresh.renew()
    with pytest.raises(FencedError):
        fresh.check()
    clock.now -= 31.0
    with pytest.raises(FencedError):
        fresh.check()


def test_the_watch_tells_a_lapse_once_and_ends() -> None:
    told: list[str] = []
    heard = threading.Event()
    fresh = Freshness(0.01)

    def lapse(reason: str) -> None:
        told.append(reason)
        heard.set()

    fresh.watch(lapse, exit_process=False, watch_parent=False)
    assert heard.wait(10.0)
    assert fresh._thread is not None
    fresh._thread.join(10.0)
    assert not fresh._thread.is_alive()
    assert len(told) == 1


def test_the_watch_ends_when_told() -> None:
    fresh = Freshness(3600.0)
    fresh.watch(lambda reason: None, exit_process=True, watch_parent=True)
    fresh.stop()
    assert fresh._thread is not None
    fresh._thread.join(10.0)
    assert not fresh._thread.is_alive()


def test_an_orphan_may_not_act_even_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    fresh = Freshness(3600.0, clock=lambda: now[0])
    fresh.watch(lambda reason: None, exit_process=False, watch_parent=True)
    fresh.check()
    monkeypatch.setattr("os.getppid", lambda: 1_000_000)
    now[0] += 0.05
    with pytest.raises(FencedError, match="parent process is gone"):
        fresh.check()
    fresh.stop()


def test_a_revoked_right_stays_gone() -> None:
    fresh = Freshness(3600.0)
    fresh.revoke("it was declared dead")
    fresh.renew()
    with pytest.raises(FencedError, match="declared dead"):
        fresh.check()
