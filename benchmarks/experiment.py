"""What the benchmarks have in common: a configuration in a temporary directory, and runs of the engine in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.servers import Servers

REPOSITORY = Path(__file__).resolve().parent.parent
_RUN_S = 1800.0
_SYSTEM_PROMPT = (
    "You help a customer of a web shop. In each turn call exactly one of the offered tools and write nothing else. Search for what the "
    "customer asks for, compare what you find with every wish that was named, choose the options that fit, and buy when all of them are "
    "met. When a page does not help, go back and search with other words.\n"
)


class Figure(NamedTuple):
    """A row of the table of all benchmarks."""

    what: str
    measured: str
    floor: str
    ratio: str
    limit: str
    """``1.6 ×`` is one on the ratio, ``+30`` one on the growth, anything else one on what was measured."""
    within: bool = True
    """Whether the limit is kept."""


def write_experiment(directory: Path, servers: Servers, *, episodes: int, concurrency: int, **execution: Any) -> Path:
    """-> the path of a configuration for ``episodes`` episodes."""
    tasks = min(episodes, servers.tasks)
    split = {"version": "bench-1", "splits": {"bench": {"role": "val", "persona": True, "task_ids": list(range(tasks))}}}
    (directory / "split.json").write_text(json.dumps(split))
    (directory / "system.txt").write_text(_SYSTEM_PROMPT)
    config = {
        "experiment": {"name": "bench", "seed": 20260828, "output_dir": str(directory / "runs")},
        "tasks": {"split_file": "split.json", "split": "bench", "repeats": -(-episodes // tasks)},
        "environment": {"kind": "shopsimulator", "base_url": servers.shop},
        "prompt": {"system_prompt_file": "system.txt"},
        "model": {
            "provider": "openai_chat",
            "name": "scripted",
            "base_url": servers.model,
            "temperature": 0.6,
            "top_p": 1.0,
            "max_tokens": 4096,
        },
        "execution": {"concurrency": concurrency, "actors": 1, "shards": False, **execution},
    }
    path = directory / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path


def in_fresh_process(module: str, *arguments: object) -> dict[str, Any]:
    """Run ``python -m module`` here; -> the JSON object of its last line. Raises RuntimeError with what it said when it failed."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_RUN_S, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return last_object(done.stdout)


def last_object(text: str) -> dict[str, Any]:
    """The JSON object of the last line. Raises ValueError when it is none."""
    said: dict[str, Any] = json.loads(text.strip().rpartition("\n")[2])
    return said


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as they need."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
