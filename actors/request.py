"""What a run is asked for, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rayeval.config import LoadedConfig
from rayeval.plan import Plan
from rayeval.schemas import ExitCode, JsonObject


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What ``rayeval run`` asks for."""

    loaded: LoadedConfig
    plan: Plan
    run_dir: Path
    retry_failed: bool = False
    """Run only the episodes that failed before."""
    retry_quarantined: bool = False
    fail_fast: bool = False
    """Drain at the first episode that fails for good."""
    same_weights: bool = False
    """A resume with another model URL serves the same weights."""
    address: str | None = None
    """Ray cluster to join."""
    show: bool = False
    """Run in this process, without Ray, and tell the display every moment."""
    argv: tuple[str, ...] = ()
    kill_by_pid: bool = True
    """See ``PoolSettings.kill_by_pid``."""


@dataclass(slots=True)
class RunOutcome:
    """How a run ended."""

    exit_code: ExitCode
    reason: str | None
    run_dir: Path
    summary: JsonObject | None
    status: JsonObject = field(default_factory=dict)
