import threading
import time

from actors.health import EVERY_S, HealthThread
from actors.messages import Ping
from rayeval.config import MIN_FENCE_S


class Handle:
    """Answers pings, or not."""

    def __init__(self) -> None:
        self.answers = True
        self.pings = 0
        self.pinged = threading.Event()

    def ping(self, timeout_s: float) -> Ping | None:
        self.pings += 1
        self.pinged.set()
        return Ping(1.5) if self.answers else None


def wait_for_ping(handle: Handle) -> None:
    handle.pinged.clear()
    assert handle.pinged.wait(20.0)


def watch(handle: Handle) -> tuple[HealthThread, object]:
    health = HealthThread(every_s=0.02)
    vitals = health.watch("a", handle)  # type: ignore[arg-type]
    health.start()
    return health, vitals


def test_an_answer_is_written_down() -> None:
    handle = Handle()
    health, _ = watch(handle)
    vitals = health.watch("a", handle)  # type: ignore[arg-type]
    for _ in range(3):
        wait_for_ping(handle)
    assert vitals.tick_age_s == 1.5
    assert vitals.silence_s(vitals.answered_at + 7.0) == 7.0
    health.stop()


def test_silence_grows_while_nobody_answers() -> None:
    handle = Handle()
    handle.answers = False
    health = HealthThread(every_s=0.02)
    vitals = health.watch("a", handle)  # type: ignore[arg-type]
    began = vitals.answered_at
    health.start()
    for _ in range(3):
        wait_for_ping(handle)
    assert vitals.answered_at == began
    health.stop()


def test_a_forgotten_actor_is_not_pinged_again() -> None:
    handle, other = Handle(), Handle()
    health, _ = watch(handle)
    health.watch("b", other)  # type: ignore[arg-type]
    wait_for_ping(handle)
    health.forget("a")
    wait_for_ping(other)
    time.sleep(0.05)
    before = handle.pings
    for _ in range(3):
        wait_for_ping(other)
    assert handle.pings == before
    health.stop()


class Stuck(Handle):
    """Answers no ping before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def ping(self, timeout_s: float) -> Ping | None:
        self.pings += 1
        self.let_go.wait(20.0)
        return None


def test_one_ping_to_an_actor_is_open_at_most() -> None:
    stuck, other = Stuck(), Handle()
    health = HealthThread(every_s=0.01)
    health.watch("stuck", stuck)  # type: ignore[arg-type]
    health.watch("other", other)  # type: ignore[arg-type]
    health.start()
    for _ in range(20):
        wait_for_ping(other)
    assert stuck.pings == 1
    stuck.let_go.set()
    health.stop()


def test_a_ping_whose_actor_is_forgotten_before_its_turn_is_not_sent() -> None:
    handle = Handle()
    health = HealthThread()
    health.watch("a", handle)  # type: ignore[arg-type]
    health.forget("a")
    health._ask("a")
    assert handle.pings == 0
    health.stop()


def test_no_fence_is_shorter_than_two_signs_of_life() -> None:
    assert MIN_FENCE_S >= 2 * EVERY_S
