"""Small plans and traces for tests of the driver's parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from actors.queue import Ticket
from rayeval.config import load_config
from rayeval.figures import figures_of
from rayeval.plan import Plan, make_plan
from rayeval.schemas import TRACE_SCHEMA, EnvironmentIdentity, EpisodeStatus, FinishedTrace
from rayeval.store import ResumeIndex

SHOP = "http://shop.invalid"
IDENTITY = EnvironmentIdentity("shop-1", "pages-1", "reward-1")


def write_config(root: Path, *, tasks: int = 8, repeats: int = 1, overrides: Mapping[str, Any] | None = None) -> Path:
    """A configuration over tasks 0 to ``tasks - 1``; ``overrides``: dotted key -> value."""
    split = {"version": "t-1", "splits": {"train": {"role": "train", "persona": False, "task_ids": list(range(tasks))}}}
    root.mkdir(parents=True, exist_ok=True)
    (root / "split.json").write_text(json.dumps(split))
    content: dict[str, dict[str, Any]] = {
        "experiment": {"name": "small", "seed": 1, "output_dir": "runs"},
        "tasks": {"split_file": "split.json", "split": "train", "repeats": repeats},
        "environment": {"kind": "rayeval.environments.FakeEnvironment", "base_url": SHOP},
        "prompt": {"system_prompt": "Shop."},
        "model": {"provider": "scripted", "name": "scripted", "base_url": "http://model.invalid/v1"},
        "execution": {"concurrency": 8, "actors": 1},
    }
    for key, value in (overrides or {}).items():
        section, _, leaf = key.partition(".")
        content[section][leaf] = value
    path = root / "small.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return path


def small_plan(root: Path, tasks: int = 8, repeats: int = 1) -> Plan:
    return make_plan(load_config(write_config(root, tasks=tasks, repeats=repeats)))


def index(**known: Any) -> ResumeIndex:
    """A resume index that knows only what is given."""
    made = ResumeIndex()
    for name, value in known.items():
        setattr(made, name, value)
    return made


def trace_of(
    ticket: Ticket,
    *,
    completed: bool = True,
    retryable: bool = True,
    identity: EnvironmentIdentity = IDENTITY,
    reward: float = 0.5,
    kind: str = "environment_error",
) -> FinishedTrace:
    """What an actor would hand back for a ticket."""
    status = EpisodeStatus.COMPLETED if completed else EpisodeStatus.FAILED
    error = None if completed else {"stage": "reset", "kind": kind, "type": "T", "message": "m", "retryable": retryable}
    trace: dict[str, Any] = {
        "schema_version": TRACE_SCHEMA,
        "episode_id": ticket.job.episode_id,
        "attempt": ticket.attempt,
        "status": status,
        "job": ticket.job._asdict(),
        "provenance": {},
        "steps": [],
        "final": {"done": True, "reward": reward} if completed else None,
        "error": error,
    }
    line = orjson.dumps(trace, option=orjson.OPT_APPEND_NEWLINE)
    return FinishedTrace(
        ticket.job.episode_id, ticket.attempt, status, line, None if completed else kind, retryable, figures_of(trace), identity, SHOP
    )
