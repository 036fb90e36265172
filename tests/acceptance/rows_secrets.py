"""The key and what is private, looked for in every file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory, iter_traces
from tests.acceptance.runs import (
    Bench,
    Driver,
    JsonObject,
)
from tests.acceptance.servers import DemoPair, StartServers

KEY = "sk-acceptance-0123456789abcdef"


def secrets(start: StartServers, root: Path, episodes: int = 40, modes: Sequence[str] = ("good", "echo_key", "echo_key_500")) -> JsonObject:
    """No key, private goal or lease id where it has no business, whatever the servers echo."""
    figures: JsonObject = {}
    for mode in modes:
        place = root / mode
        bench = Bench(place, episodes if mode == "good" else 6)
        options: JsonObject = {} if mode == "good" else {mode: True}
        # only the demo echoes a key
        with (start if mode == "good" else DemoPair)(slots=64, **options) as servers, tempfile.TemporaryDirectory(prefix="rs") as ray_dir:
            overrides = {"model.api_key_env": "ACCEPTANCE_KEY", "execution.model_attempts": 2, "execution.attempts": 1}
            config = bench.config("secret", servers, overrides)
            driver = Driver(config, environment={"ACCEPTANCE_KEY": KEY, "RAY_TMPDIR": ray_dir})
            code = driver.wait()
            assert code == (ExitCode.OK if mode == "good" else ExitCode.FAILED_EPISODES), driver.output
            (place / "output.txt").write_text(driver.output)
            files = [p for d in (place, Path(ray_dir)) for p in d.rglob("*") if p.is_file() and not p.is_symlink()]
            leases = _lease_ids(driver.run_dir.leases)
            goals = _goals(driver.run_dir)
            found = _search(files, {KEY, *leases, *goals}, driver.run_dir, leases, goals)
            assert not found, found
            if mode == "good":
                assert goals, "no private goal is in the traces: nothing is shown"
            figures[mode] = {"files": len(files), "lease_ids": len(leases), "goals": len(goals), "exit": code}
    return figures


def _lease_ids(journal: Path) -> set[str]:
    return {orjson.loads(line)["lease"][2] for line in journal.read_bytes().splitlines() if b'"lease"' in line}


def _goals(run_dir: RunDirectory) -> set[str]:
    """Texts that only the private goal has."""
    goals: set[str] = set()
    for trace in iter_traces(run_dir):
        goal = (trace.get("final") or {}).get("goal") or {}
        public = trace["reset"]["task_instruction"]
        goals |= {v for k, v in goal.items() if isinstance(v, str) and len(v) > 6 and v not in public and k not in ("user_id",)}
    return goals


def _search(files: Sequence[Path], words: set[str], run_dir: RunDirectory, leases: set[str], goals: set[str]) -> list[str]:
    found = []
    encoded = {word: word.encode() for word in words}
    for path in files:
        content = path.read_bytes()
        for word, raw in encoded.items():
            if raw not in content:
                continue
            if word in leases and path == run_dir.leases:
                continue
            if word in goals and path == run_dir.traces:
                continue
            kind = "the key" if word == KEY else "a lease id" if word in leases else f"a goal ({word})"
            found.append(f"{kind} in {path}")
    return found
