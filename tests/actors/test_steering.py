import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.engine import RunOutcome, RunRequest, run
from rayeval.config import load_config
from rayeval.control import ControlRequest
from rayeval.demo import DemoServers
from rayeval.display import NoDisplay
from rayeval.exceptions import RefusedError
from rayeval.mailbox import send
from rayeval.plan import make_plan
from rayeval.schemas import ExitCode, JsonObject
from rayeval.store import RunDirectory, read_status
from tests.actors.plans import write_config

PRICES = {"prompt_per_million": 1.0, "completion_per_million": 2.0, "currency": "EUR"}


class Notes(NoDisplay):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, level: str, text: str) -> None:
        self.notes.append(text)


def start(root: Path, servers: DemoServers, tasks: int = 6, repeats: int = 2, display: Notes | None = None, **execution: Any) -> RunOutcome:
    """One invocation in this process, without Ray."""
    overrides = {
        "environment.kind": "shopsimulator",
        "environment.base_url": servers.shop_url,
        "model.provider": "openai_chat",
        "model.base_url": servers.model_url,
        "model.temperature": 0.6,
    }
    overrides |= {f"execution.{key}": value for key, value in execution.items()}
    loaded = load_config(write_config(root, tasks=tasks, repeats=repeats, overrides=overrides))
    return run(RunRequest(loaded, make_plan(loaded), root / "run", show=True), display or Notes())


def steering(root: Path, *requests: ControlRequest, when: Callable[[JsonObject], bool]) -> tuple[threading.Thread, list[str]]:
    """A thread that sends these requests once the run's status is so."""
    run_dir, said = RunDirectory(root / "run"), list[str]()

    def go() -> None:
        deadline = time.monotonic() + 60
        while not when(read_status(run_dir) or {}) and time.monotonic() < deadline:
            time.sleep(0.05)
        said.extend(send(run_dir, request, 30.0)["done"] for request in requests)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread, said


def test_a_cap_ends_the_run_and_a_resume_is_refused_until_it_is_raised(tmp_path: Path, start_demo_with: Callable[..., DemoServers]) -> None:
    servers = start_demo_with(model_latency="fixed:0.1")
    ended = start(tmp_path, servers, concurrency=1, max_tokens_total=20_000, prices=PRICES)
    assert ended.exit_code == ExitCode.REFUSED and "max_tokens_total = 20000 is reached: " in str(ended.reason)
    assert ended.summary is not None and ended.summary["counts"]["not_run"] > 0
    used = ended.summary["attempts"]["tokens"]["total_tokens"]
    assert used >= 20_000 and str(ended.reason).endswith(f" tokens are used, and {used} tokens with the episodes that were in flight")
    assert ended.status["reason"] == ended.reason
    with pytest.raises(RefusedError, match="max_tokens_total = 20000 is reached"):
        start(tmp_path, servers, concurrency=1, max_tokens_total=20_000)
    ended = start(tmp_path, servers, concurrency=4, max_cost=1000.0, prices=PRICES)
    assert ended.exit_code == ExitCode.OK and ended.summary is not None
    tokens, cost = ended.summary["attempts"]["tokens"], ended.summary["cost"]
    assert cost["amount"] == pytest.approx((tokens["prompt_tokens"] + 2 * tokens["completion_tokens"]) / 1e6)
    assert cost["currency"] == "EUR" and cost["per_episode"] == cost["amount"] / 12
    assert 0 < ended.status["cost"]["amount"] < cost["amount"]  # the status knows this invocation alone


def test_cancelled_episodes_are_not_run_now_and_run_later(tmp_path: Path, start_demo_with: Callable[..., DemoServers]) -> None:
    servers = start_demo_with(model_latency="fixed:0.3")
    thread, said = steering(tmp_path, ControlRequest("cancel", {"task": "4-5"}), when=lambda s: s.get("state") == "running")
    ended = start(tmp_path, servers, concurrency=2, order="plan")
    thread.join()
    assert ended.exit_code == ExitCode.REFUSED and "4 episodes were cancelled" in str(ended.reason), said
    assert ended.summary is not None and ended.summary["counts"]["not_run"] == 4 == ended.status["cancelled"]
    record = [json.loads(line) for line in (tmp_path / "run/control.jsonl").read_text().splitlines()]
    assert [(r["verb"], r["arguments"], r["via"]) for r in record] == [("cancel", {"task": "4-5", "episodes": []}, "directory")]
    assert start(tmp_path, servers, concurrency=12).exit_code == ExitCode.OK


def test_a_drain_that_kept_nothing_from_running_is_no_failure(tmp_path: Path, start_demo_with: Callable[..., DemoServers]) -> None:
    servers = start_demo_with(model_latency="fixed:0.5")
    thread, said = steering(tmp_path, ControlRequest("drain"), when=lambda s: s.get("in_flight") == 12)
    ended = start(tmp_path, servers, concurrency=12)
    thread.join()
    assert said and said[0].startswith("draining")
    assert (ended.exit_code, ended.reason) == (ExitCode.OK, None)


def test_a_server_that_ignores_seeds_is_found_out(tmp_path: Path, start_demo_with: Callable[..., DemoServers]) -> None:
    display = Notes()
    ended = start(tmp_path, start_demo_with(ignore_seed=True), tasks=8, repeats=4, concurrency=16, display=display)
    assert ended.summary is not None
    found = ended.summary["duplicates"]
    assert (found["tasks_compared"], found["episodes_compared"], found["pairs"], found["share"]) == (8, 32, 48, 1.0)


def test_the_demo_s_samples_differ(tmp_path: Path, demo_servers: DemoServers) -> None:
    ended = start(tmp_path, demo_servers, tasks=8, repeats=4, concurrency=16)
    assert ended.summary is not None and ended.summary["duplicates"]["share"] < 0.5


def test_without_sampling_there_is_nothing_to_compare(tmp_path: Path, demo_servers: DemoServers) -> None:
    ended = start(tmp_path, demo_servers, tasks=2, repeats=1)
    assert ended.summary is not None and ended.summary["duplicates"] is None
