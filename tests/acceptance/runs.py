"""Runs for the acceptance rows: configurations written to a directory, started in this process or as the command line does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
import yaml

from actors.engine import RunOutcome, RunRequest
from actors.engine import run as run_plan
from rayeval.config import load_config
from rayeval.plan import make_plan
from rayeval.store import RunDirectory, canonical_hash_of_run, iter_traces, load_journal
from tests.acceptance.servers import Servers

JsonObject = dict[str, Any]
PROMPT = "You shop for one user. Use one tool each turn, and buy the product that fits best."
DEADLINE_S = 240.0
"""No run of a row takes this long; a hang ends here."""


@dataclass(slots=True)
class Recorder:
    """A display that keeps what it was told."""

    notes: list[tuple[str, str]] = field(default_factory=list)
    updates: list[JsonObject] = field(default_factory=list)
    started: JsonObject = field(default_factory=dict)
    ended: JsonObject = field(default_factory=dict)

    def start(self, info: JsonObject) -> None:
        self.started = info

    def update(self, status: JsonObject) -> None:
        self.updates.append(status)

    def note(self, level: str, text: str) -> None:
        self.notes.append((level, text))

    def event(self, kind: str, event: JsonObject) -> None: ...

    def end(self, outcome: JsonObject) -> None:
        self.ended = outcome


class Bench:
    """A directory with one split of ``tasks`` tasks, and configurations of runs over it."""

    def __init__(self, root: Path, tasks: int, *, persona: bool = False) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        split = {"role": "train", "persona": persona, "task_ids": list(range(tasks))}
        (root / "split.json").write_text(json.dumps({"version": "acceptance-1", "splits": {"train": split}}))

    def config(self, name: str, servers: Servers | Sequence[Servers], overrides: Mapping[str, Any] | None = None) -> Path:
        """Write ``<name>.yaml``. ``overrides``: dotted key -> value."""
        pairs = [servers] if isinstance(servers, Servers) else list(servers)
        shops, models = [p.shop_url for p in pairs], [p.model_url for p in pairs]
        content: JsonObject = {
            "experiment": {"name": name, "seed": 7, "output_dir": "runs"},
            "tasks": {"split_file": "split.json", "split": "train"},
            "environment": {"kind": "shopsimulator", "base_url": shops if len(shops) > 1 else shops[0]},
            "prompt": {"system_prompt": PROMPT},
            # a checkpoint of one name: several URLs, and a URL that changes, serve the same weights
            "model": {"name": "scripted", "base_url": models if len(models) > 1 else models[0], "checkpoint_id": "fixed"},
            "execution": {"concurrency": 64, "actors": 1, "exclusive_environment": True, "shards": False},
        }
        for key, value in (overrides or {}).items():
            section, _, leaf = key.partition(".")
            content[section][leaf] = value
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        return path

    def run_dir(self, name: str) -> RunDirectory:
        """Where the run of that name lies."""
        return RunDirectory(self.root / "runs" / name)


def run_here(config: Path, *, show: bool = False, display: Recorder | None = None, **request: Any) -> RunOutcome:
    """Run in this process, on its Ray when it has one."""
    loaded = load_config(config)
    plan = make_plan(loaded)
    run_dir = loaded.config.experiment.output_dir / plan.experiment
    return run_plan(RunRequest(loaded, plan, run_dir, show=show, **request), display or Recorder())


class Driver:
    """``rayeval run CONFIG`` as a process group of its own."""

    def __init__(self, config: Path, *arguments: str, environment: Mapping[str, str] | None = None, preexec: Any = None) -> None:
        self.run_dir = RunDirectory(config.parent / "runs" / yaml.safe_load(config.read_text("utf-8-sig"))["experiment"]["name"])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rayeval", "run", str(config), "--display", "plain", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=preexec,
            env={**os.environ, "RAYEVAL_DISPLAY": "plain", **(environment or {})},
        )
        self.pid = self.process.pid
        self._output: str | None = None

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """-> the exit code; ``output`` is there afterwards."""
        try:
            self._output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._output, _ = self.process.communicate(timeout=30.0)
            raise AssertionError(f"the driver did not end within {timeout_s:.0f} s:\n{self._output[-4000:]}") from None
        return self.process.returncode

    @property
    def output(self) -> str:
        assert self._output is not None, "wait first"
        return self._output

    def signal(self, number: signal.Signals) -> None:
        """To the driver alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL of the whole process group."""
        os.killpg(self.pid, signal.SIGKILL)

    def until(self, what: str, holds: Any, timeout_s: float = 120.0) -> None:
        """Wait until ``holds()``; fails when the driver ends first."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if self.process.poll() is not None:
                self.wait(30.0)
                raise AssertionError(f"the driver ended ({self.process.returncode}) before {what}:\n{self.output[-4000:]}")
            assert time.monotonic() < deadline, f"{what} did not come within {timeout_s:.0f} s"
            time.sleep(0.01)

    def until_lines(self, n: int) -> None:
        """Wait until ``n`` whole lines of traces are on disk."""
        self.until(f"{n} traces", lambda: lines_of(self.run_dir) >= n)


def lines_of(run_dir: RunDirectory) -> int:
    """Whole lines of ``traces.jsonl``."""
    try:
        return run_dir.traces.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below ``pid`` now."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_gone(processes: Sequence[psutil.Process], timeout_s: float = 60.0) -> list[str]:
    """-> names of those that still run after ``timeout_s``."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [f"{p.pid} {p.name()}" for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def actors_of(run_dir: RunDirectory) -> list[int]:
    """Pids of the actors that the journal says are there."""
    return [a.pid for a in load_journal(run_dir.leases).actors.values() if not a.gone]


def records(run_dir: RunDirectory) -> Iterator[JsonObject]:
    """Every record; a line that is none fails."""
    reader = iter_traces(run_dir)
    yield from reader
    assert (reader.bad_lines, reader.torn_bytes) == (0, 0), f"{reader.bad_lines} bad lines, {reader.torn_bytes} torn bytes"


def completed_counts(run_dir: RunDirectory) -> Counter[str]:
    """Completed lines by episode id."""
    return Counter(t["episode_id"] for t in records(run_dir) if t["status"] == "completed")


def assert_exactly_once(run_dir: RunDirectory, episodes: int) -> None:
    """Every episode is completed, by one line each."""
    counts = completed_counts(run_dir)
    assert len(counts) == episodes, f"{len(counts)} of {episodes} episodes are completed"
    twice = [e for e, n in counts.items() if n != 1]
    assert not twice, f"{len(twice)} episodes are completed more than once: {twice[:5]}"


def canonical(run_dir: RunDirectory) -> str:
    """The canonical hash of a run."""
    return canonical_hash_of_run(run_dir)


def summary_of(run_dir: RunDirectory) -> JsonObject:
    """``summary.json``."""
    value: JsonObject = orjson.loads((run_dir.path / "summary.json").read_bytes())
    return value


def status_of(run_dir: RunDirectory) -> JsonObject:
    """``status.json``; empty when there is none yet."""
    try:
        value: JsonObject = orjson.loads((run_dir.path / "status.json").read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return value


def one_line(output: str) -> str:
    """The output without Ray's and rich's decoration, for messages that must be one line."""
    return re.sub(r"\x1b\[[0-9;]*m", "", output).strip()


def cli(*words: str) -> str:
    """What a command of rayeval prints on standard output."""
    done = subprocess.run([sys.executable, "-m", "rayeval", *words], capture_output=True, text=True, timeout=60.0)
    return done.stdout


def assert_gone(family: Sequence[psutil.Process]) -> None:
    """No process of an ended driver lives on."""
    left = wait_gone(family)
    assert not left, f"processes of an ended driver live on: {left}"


@contextlib.contextmanager
def when(holds: Callable[[], bool], act: Callable[[], None], every_s: float = 0.01) -> Iterator[None]:
    """Beside the block, call ``act`` once ``holds()`` does."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            if holds():
                act()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)
