"""Servers that go and come back under a run, at its real clients; nothing is patched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from actors.engine import RunOutcome
from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory
from tests.acceptance.runs import Bench, JsonObject, Recorder, assert_exactly_once, lines_of, records, run_here, summary_of
from tests.acceptance.servers import DemoPair, Servers
from tests.helpers.ports import free_ports

EPISODES = 30
GENTLE = {"execution.concurrency": 12, "execution.attempts": 1}
"""One attempt: whatever counts against an episode fails it for good."""
REPEATS = 6
LONG = {"tasks.repeats": REPEATS}
"""Longer than a server takes to start and to be put back."""
SLOW: JsonObject = {"env_latency": "fixed:0.01", "model_latency": "fixed:0.02"}


class Site(Servers):
    """One pair of demo servers that stays at its ports while it goes and comes back."""

    def __init__(self, **options: Any) -> None:
        shop_port, model_port = free_ports(2)
        self._options = {"slots": 64, **SLOW, **options, "shop_port": shop_port, "model_port": model_port}
        self._pair: DemoPair | None = None
        self.start()

    def start(self) -> None:
        self._pair = DemoPair(**self._options)
        self.model_url, self.shop_url = self._pair.model_url, self._pair.shop_url

    def freeze(self) -> None:
        """Connections are still made, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._pair is not None
        os.kill(self._pair.pid, number)

    def stop(self) -> None:
        if self._pair is not None:
            self.thaw()
            self._pair.__exit__(None, None, None)
            self._pair = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


class Pair(Servers):
    """The environment of one site and the model server of another."""

    def __init__(self, shop: Servers, model: Servers) -> None:
        self.shop_url, self.model_url = shop.shop_url, model.model_url

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None: ...


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    """Starts sites, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Site:
            made = Site(**options)
            stack.callback(made.stop)
            return made

        yield start


class Script(Recorder):
    """Plays its acts one after the other beside a run, each once its condition holds at a status (one a second) or at a note."""

    def __init__(self, *acts: tuple[Callable[[Script], bool], Callable[[], None]]) -> None:
        super().__init__()
        self._acts = list(acts)
        self.failed: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    @property
    def finished(self) -> bool:
        """Whether every act was played."""
        return not self._acts and not self.failed

    def noted(self, words: str) -> bool:
        return any(words in text for _, text in self.notes)

    def start(self, info: JsonObject) -> None:
        super().start(info)
        self._thread.start()

    def end(self, outcome: JsonObject) -> None:
        super().end(outcome)
        self._over.set()
        self._thread.join(30.0)

    def _play(self) -> None:
        while self._acts and not self._over.wait(0.02):
            if self._acts[0][0](self):
                try:
                    self._acts.pop(0)[1]()
                except BaseException as error:
                    self.failed.append(error)
                    return


def after(run_dir: RunDirectory, lines: int) -> Callable[[Script], bool]:
    return lambda script: lines_of(run_dir) >= lines


def once_noted(words: str) -> Callable[[Script], bool]:
    return lambda script: script.noted(words)


def play(config: Path, script: Script) -> RunOutcome:
    outcome = run_here(config, show=True, display=script)
    assert script.finished, (script.failed, script.notes)
    return outcome


def kinds_of_failures(run_dir: RunDirectory) -> Counter[str]:
    return Counter(t["error"]["kind"] for t in records(run_dir) if t["status"] == "failed")


def test_a_restarted_environment_server_voids_every_lease_and_fails_nothing(tmp_path: Path, site: Callable[..., Site]) -> None:
    shop, model = site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("void")
    outcome = play(bench.config("void", Pair(shop, model), GENTLE), Script((after(run_dir, 6), shop.restart)))
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, EPISODES)
    lost = kinds_of_failures(run_dir)
    assert lost and set(lost) <= {"lease_lost", "environment_unavailable"}, lost
    assert shop.count("env", "leases_held") == 0


def test_calls_wait_for_a_model_server_that_is_away_and_no_attempt_is_lost(tmp_path: Path, site: Callable[..., Site]) -> None:
    shop, model = site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("away")
    script = Script((after(run_dir, 6), model.stop), (once_noted("dispatch waits"), model.start))
    outcome = play(bench.config("away", Pair(shop, model), {**GENTLE, "execution.model_attempts": 2}), script)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, EPISODES)
    assert not kinds_of_failures(run_dir)
    assert script.noted("servers answer again")


@pytest.mark.slow
def test_calls_wait_for_a_model_server_that_is_stuck(tmp_path: Path, site: Callable[..., Site]) -> None:
    """Time-outs alone would use up two attempts of each turn and fail every episode for good."""
    shop, model = site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("stuck")
    script = Script((after(run_dir, 6), model.freeze), (once_noted("dispatch waits"), model.thaw))
    settings = {**GENTLE, "execution.model_attempts": 2, "execution.model_timeout_s": 2.0}
    outcome = play(bench.config("stuck", Pair(shop, model), settings), script)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, EPISODES)
    assert not kinds_of_failures(run_dir)
    assert script.noted(f"dispatch waits: no answer from {model.model_url}") and script.noted("servers answer again")


@pytest.mark.slow
def test_a_model_server_that_stays_stuck_ends_the_run_and_fails_nothing(tmp_path: Path, site: Callable[..., Site]) -> None:
    shop, model = site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("hung")
    settings = {**GENTLE, "execution.model_attempts": 2, "execution.model_timeout_s": 2.0, "execution.endpoint_outage_s": 2.0}
    outcome = play(bench.config("hung", Pair(shop, model), settings), Script((after(run_dir, 6), model.freeze)))
    assert outcome.exit_code == ExitCode.STOPPED
    assert (outcome.reason or "").startswith(f"no answer from {model.model_url} for")
    counts = summary_of(run_dir)["counts"]
    assert counts["failed"] == 0 and counts["not_run"] > 0, counts
    assert shop.count("env", "leases_held") == 0


def test_a_model_server_that_stays_away_ends_the_run_which_then_resumes(tmp_path: Path, site: Callable[..., Site]) -> None:
    shop, model = site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("gone")
    config = bench.config("gone", Pair(shop, model), {**GENTLE, "execution.endpoint_outage_s": 1.0})
    outcome = play(config, Script((after(run_dir, 6), model.stop)))
    assert outcome.exit_code == ExitCode.STOPPED
    assert (outcome.reason or "").startswith(f"no answer from {model.model_url} for")
    counts = summary_of(run_dir)["counts"]
    assert counts["failed"] == 0 and counts["not_run"] > 0 and counts["completed"] >= 6, counts
    assert shop.count("env", "leases_held") == 0
    model.start()
    again = run_here(config, show=True)
    assert again.exit_code == ExitCode.OK, again.reason
    assert_exactly_once(run_dir, EPISODES)
    assert again.status["reused"] == counts["completed"]


def test_episodes_of_a_model_server_that_is_gone_go_on_at_the_other(tmp_path: Path, site: Callable[..., Site]) -> None:
    shop, other, model = site(), site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("one")
    overrides = {**GENTLE, "environment.base_url": shop.shop_url, "execution.episode_timeout_s": 60.0}
    script = Script((after(run_dir, 8), model.stop))
    outcome = play(bench.config("one", [Pair(shop, other), Pair(shop, model)], overrides), script)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, EPISODES)
    assert not kinds_of_failures(run_dir) and not script.noted("dispatch waits")


@pytest.mark.slow
def test_a_model_server_that_is_back_is_used_again(tmp_path: Path, site: Callable[..., Site]) -> None:
    shop, other, model = site(), site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("back")
    config = bench.config("back", [Pair(shop, other), Pair(shop, model)], {**GENTLE, **LONG, "environment.base_url": shop.shop_url})
    outcome = play(config, Script((after(run_dir, 8), model.stop), (after(run_dir, 20), model.start)))
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, REPEATS * EPISODES)
    assert not kinds_of_failures(run_dir)
    assert model.count("model", "requests") > 0, "it was not put back"


@pytest.mark.slow
def test_one_of_two_environment_servers_goes_and_its_episodes_run_again_on_the_other(tmp_path: Path, site: Callable[..., Site]) -> None:
    here, there = site(), site()
    bench = Bench(tmp_path, EPISODES)
    run_dir = bench.run_dir("half")
    config = bench.config("half", [Pair(here, here), Pair(there, here)], {**GENTLE, **LONG, "model.base_url": here.model_url})
    script = Script((after(run_dir, 8), there.stop), (after(run_dir, 20), there.start))
    outcome = play(config, script)
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    assert_exactly_once(run_dir, REPEATS * EPISODES)
    lost = kinds_of_failures(run_dir)
    assert lost and set(lost) <= {"lease_lost", "environment_unavailable"}, lost
    assert lost.total() <= 12, f"{lost.total()} attempts were lost, and 12 at most ran when it went"
    assert there.count("env", "reset") > 0, "it was not put back"
    assert here.count("env", "leases_held") == there.count("env", "leases_held") == 0


class Drip:
    """A model server in front of another one: the first ``drips`` completions begin to answer, a byte now and then, and never end."""

    def __init__(self, behind: str, drips: int) -> None:
        self._behind, self._left = behind.removesuffix("/v1"), drips
        self.dripped = 0
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self.model_url = ""

    def __enter__(self) -> Drip:
        self._thread.start()
        assert self._listening.wait(20.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20.0)

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.model_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._listening.set()
        await self._stop.wait()
        server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST") and self._left > 0:
                self._left -= 1
                self.dripped += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{")
                while not self._stop.is_set():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.05)
                return
            host, _, port = self._behind.removeprefix("http://").partition(":")
            inner, outer = await asyncio.open_connection(host, int(port))
            outer.write(head)
            await asyncio.gather(_pass(reader, outer), _pass(inner, writer))
        writer.close()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
    target.close()


@pytest.mark.slow
def test_a_model_server_that_drips_is_held_to_the_whole_calls_time(tmp_path: Path, site: Callable[..., Site]) -> None:
    demo = site()
    bench = Bench(tmp_path, 12)
    with Drip(demo.model_url, drips=5) as drip:
        overrides = {**GENTLE, "model.base_url": drip.model_url, "execution.model_timeout_s": 1.5, "execution.endpoint_outage_s": 5.0}
        outcome = run_here(bench.config("drip", demo, overrides), show=True)
        assert drip.dripped == 5
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    run_dir = RunDirectory(outcome.run_dir)
    assert_exactly_once(run_dir, 12)
    assert not kinds_of_failures(run_dir)
    assert summary_of(run_dir)["attempts"]["model_retries"] == {"timeout": 5}
