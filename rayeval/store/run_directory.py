"""A run is a directory: the names in it, its manifest, and how a run is found by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from rayeval.exceptions import InputError
from rayeval.schemas import MANIFEST_SCHEMA, JsonObject
from rayeval.store._files import fsync_directory, replace_file, write_error

FOREIGN_MANIFEST_SCHEMAS = frozenset({"shopsimrl-run-manifest-v1"})
"""Manifests that are read but never written; such runs are never resumed."""
LATEST = "latest"
"""The name that means the newest run; a symlink in the runs directory."""


class RunDirectory:
    """Names of everything in a run's directory. Making one touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = self.path / "manifest.json"
        self.environment = self.path / "environment.json"
        """The first environment identity seen."""
        self.traces = self.path / "traces.jsonl"
        self.torn = self.path / "traces.jsonl.torn"
        self.receipts = self.path / "receipts.jsonl"
        self.leases = self.path / "leases.jsonl"
        self.status = self.path / "status.json"
        self.summary = self.path / "summary.json"
        self.config = self.path / "config.yaml"
        self.config_resolved = self.path / "config.resolved.json"
        self.launch = self.path / "launch.json"
        self.lock = self.path / "run.lock"
        self.lock_record = self.path / "run.lock.json"
        self.shards = self.path / "shards"
        self.logs = self.path / "logs"
        """``attempt_N`` for each invocation, N as in ``launch-N.json``."""
        self.control = self.path / "control"
        """The mailbox of a live run."""
        self.control_log = self.path / "control.jsonl"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunDirectory) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def create(self) -> RunDirectory:
        """Make the directory (parents too) and see that it can be written. -> self. Raises InputError, StoreWriteError
        (disk full).
        """
        if self.path.name == LATEST and not self.path.is_symlink():
            raise InputError("experiment.name", LATEST, "is kept for the newest run; give another name")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            probe.unlink()
            fsync_directory(self.path.parent)
        except (FileExistsError, NotADirectoryError):
            raise InputError("run directory", str(self.path), "is or lies below a file; give a directory") from None
        except PermissionError as cause:
            hint = f"cannot be written ({cause.strerror}); give another experiment.output_dir or change its permissions"
            raise InputError("run directory", str(self.path), hint) from None
        except OSError as cause:
            raise write_error(self.path, "making the run directory", cause) from cause
        return self

    def write_manifest(self, manifest: JsonObject) -> None:
        """Write it once: write, fsync, rename, fsync the directory. Raises InputError when there is one,
        StoreWriteError.
        """
        if self.manifest.exists():
            raise InputError("manifest", str(self.manifest), "is written once; compare with it, or give another name")
        replace_file(self.manifest, orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n", durable=True)

    def read_manifest(self) -> JsonObject:
        """-> the manifest, ours or a foreign one (``is_foreign``). Raises InputError."""
        manifest = _read_object(self.manifest, "manifest")
        schema = manifest.get("schema_version")
        if schema != MANIFEST_SCHEMA and schema not in FOREIGN_MANIFEST_SCHEMAS:
            known = ", ".join((MANIFEST_SCHEMA, *sorted(FOREIGN_MANIFEST_SCHEMAS)))
            raise InputError("manifest schema_version", schema, f"is not known ({self.manifest}); known: {known}")
        return manifest

    @property
    def is_foreign(self) -> bool:
        """Whether another package wrote the run. Raises InputError."""
        return self.read_manifest()["schema_version"] in FOREIGN_MANIFEST_SCHEMAS

    def write_environment(self, identity: JsonObject) -> None:
        """Keep the environment identity that the run is pinned to, durably. Raises StoreWriteError."""
        replace_file(self.environment, orjson.dumps(identity, option=orjson.OPT_INDENT_2) + b"\n", durable=True)

    def read_environment(self) -> JsonObject | None:
        """-> the pinned identity; None when none was seen yet. Raises InputError when the file is damaged."""
        return _read_object(self.environment, "environment identity") if self.environment.exists() else None

    def write_summary(self, summary: JsonObject) -> None:
        """Replace ``summary.json`` durably. Raises StoreWriteError."""
        replace_file(self.summary, orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n", durable=True)

    def point_latest(self) -> None:
        """Let ``latest`` beside this directory name it; replaced atomically. Raises StoreWriteError."""
        link = self.path.parent / LATEST
        temporary = link.with_name(f".{LATEST}.{os.getpid()}.tmp")
        try:
            with suppress(FileNotFoundError):
                temporary.unlink()
            temporary.symlink_to(self.path.name, target_is_directory=True)
            os.replace(temporary, link)
        except OSError as cause:
            with suppress(OSError):
                temporary.unlink()
            raise write_error(link, "pointing it at the run", cause) from cause


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One row of a list of runs, from manifest, summary and status alone."""

    name: str
    path: str
    created_at: str | None
    fingerprint: str | None
    experiment: str | None
    model: str | None
    checkpoint_id: str | None
    split: str | None
    foreign: bool
    state: str
    """``running``, ``interrupted`` (began, and nobody works on it), ``ended``, ``not begun`` (no episode was ever
    started), ``broken`` (its manifest cannot be read), or ``unknown`` (a foreign run without a summary).
    """
    planned: int | None
    done: int | None
    failed: int | None
    reward_mean: float | None
    reward_sem: float | None
    bytes: int
    """Size of ``traces.jsonl``."""
    modified_at: float
    """Unix time of the newest of manifest, summary, status and traces."""


def resolve_run(run: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> RunDirectory:
    """A path, a name in ``runs_dir``, or ``latest`` -> the run. Raises InputError with the nearest names."""
    text, base = os.fspath(run), Path(runs_dir)
    if not text:
        raise InputError("run", text, f"give a path, a name in {base}, or latest")
    candidates = [base / text] if text == LATEST else [Path(text)] if os.sep in text else [base / text, Path(text)]
    for path in candidates:
        if (path / "manifest.json").is_file():
            # `latest` may move while the run is read
            return RunDirectory(path.resolve() if path.is_symlink() else path)
    if text == LATEST:
        newest = max(_run_paths(base), key=lambda p: (p / "manifest.json").stat().st_mtime, default=None)
        if newest is not None:
            return RunDirectory(newest)
        raise InputError("run", text, f"there is no run in {base} yet; start one, or give a path or --runs-dir")
    if any(path.is_dir() for path in candidates):
        raise InputError("run", text, "is a directory without manifest.json; give the directory of a run")
    near = difflib.get_close_matches(Path(text).name, [p.name for p in _run_paths(base)], n=3)
    hint = f"no such run in {base}; " + (f"nearest: {', '.join(near)}" if near else "give a path, a name, or latest")
    raise InputError("run", text, hint)


def list_runs(runs_dir: str | os.PathLike[str] = "runs") -> list[RunInfo]:
    """All runs of a directory, newest first; those with a damaged manifest last, as ``broken``. Reads no traces. Raises
    InputError when ``runs_dir`` is not a directory."""
    base = Path(runs_dir)
    if not base.is_dir():
        raise InputError("runs directory", str(base), "does not exist; start a run, or give --runs-dir")
    rows = [run_info(RunDirectory(path)) for path in _run_paths(base)]
    return sorted(rows, key=lambda row: (row.created_at or "", row.name), reverse=True)


def run_info(run_dir: RunDirectory) -> RunInfo:
    """-> the row of one run."""
    from rayeval.store.lock import living_holder  # lock.py takes RunDirectory from here

    manifest = _cached(run_dir.manifest)
    head = manifest or {}
    summary, status = _cached(run_dir.summary) or {}, _cached(run_dir.status) or {}
    plan = _object(head.get("plan"))
    model = _object(plan.get("model"))
    split = plan.get("split") or _object(plan.get("tasks")).get("split") or _object(plan.get("task_split")).get("name")
    foreign = head.get("schema_version") in FOREIGN_MANIFEST_SCHEMAS
    counts, primary = _object(summary.get("counts")), _object(summary.get("primary"))
    if manifest is None:
        state = "broken"
    elif living_holder(run_dir) is not None:
        state, counts, primary = "running", {}, {}
    elif status.get("state") == "ended":
        state = "ended"
    elif status or summary:
        state = "interrupted" if status else "ended"
    elif foreign:
        state = "unknown"
    else:
        state = "interrupted" if _stat(run_dir.traces)[1] else "not begun"
    jobs = _object(head.get("jobs")).get("job_count")
    planned = jobs if isinstance(jobs, int) else len(plan["jobs"]) if isinstance(plan.get("jobs"), list) else None
    experiment = plan.get("experiment")
    return RunInfo(
        name=run_dir.path.name,
        path=str(run_dir.path),
        created_at=head.get("created_at"),
        fingerprint=head.get("plan_fingerprint"),
        experiment=_object(experiment).get("name") if isinstance(experiment, dict) else experiment,
        model=model.get("model") or model.get("name") or plan.get("model_id"),
        checkpoint_id=model.get("checkpoint_id"),
        split=_object(split).get("name") if isinstance(split, dict) else split,
        foreign=foreign,
        state=state,
        planned=planned,
        done=_first(counts.get("completed"), status.get("done")),
        failed=_first(counts.get("failed"), status.get("failed")),
        reward_mean=_first(primary.get("reward_mean"), status.get("reward_mean")),
        reward_sem=primary.get("reward_sem"),
        bytes=_stat(run_dir.traces)[1],
        modified_at=max(_stat(p)[0] for p in (run_dir.manifest, run_dir.summary, run_dir.status, run_dir.traces)) / 1e9,
    )


def _run_paths(base: Path) -> Iterator[Path]:
    try:
        entries = [e for e in os.scandir(base) if not e.name.startswith(".") and not e.is_symlink()]
    except OSError:
        return
    for entry in entries:
        if os.path.isfile(os.path.join(entry.path, "manifest.json")):
            yield Path(entry.path)


def _cached(path: Path) -> JsonObject | None:
    modified, size = _stat(path)
    return _parsed(str(path), modified, size) if modified else None


@lru_cache(maxsize=8192)
def _parsed(path: str, modified_ns: int, size: int) -> JsonObject | None:
    try:
        value = _read_object(Path(path), "file")
    except InputError:
        return None
    # a job list can be millions of numbers; the row needs only how many
    if isinstance(jobs := value.get("jobs"), dict):
        value["jobs"] = {"job_count": jobs.get("job_count")}
    return value


def _stat(path: Path) -> tuple[int, int]:
    """-> (mtime in ns, size); zeros when there is no file."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _read_object(path: Path, what: str) -> JsonObject:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(what, str(path), "does not exist; give the directory of a run") from None
    except NotADirectoryError:
        raise InputError(what, str(path), "lies below a file; give the directory of a run") from None
    except OSError as cause:
        raise InputError(what, str(path), f"cannot be read ({cause.strerror})") from None
    except orjson.JSONDecodeError as cause:
        raise InputError(what, str(path), f"is not JSON ({cause}); restore it from a copy") from None
    if not isinstance(value, dict):
        raise InputError(what, str(path), "is not a JSON object; restore it from a copy")
    return value


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _first(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)
