"""What a submitted job is: its id, command, environment and what is uploaded. Pure: nothing is sent from here.

* A job's id says what it runs and where: ``rayeval-<12 hex of sha256(fingerprint + output_dir)>-<n>``. The cluster takes an id once, so of
  two submits at the same moment the second is refused by the cluster itself.
* Nothing of a run is uploaded: its directory lies outside ``working_dir``, and the names in a run directory are left out wherever they lie.
* A secret goes to the cluster only by ``--env-from``, in the job's environment; never in its command line, metadata or log.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rayeval.config import LoadedConfig
from rayeval.exceptions import InputError, RefusedError
from rayeval.hashing import sha256_hex
from rayeval.plan import Plan
from rayeval.schemas import JsonObject
from rayeval.store import argv_without_secrets

ID_VARIABLE = "RAYEVAL_SUBMISSION_ID"
"""Set in every job: the run lock and the last line of the log name the job."""
STOP_WAIT_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
AUTH_VARIABLE = "RAY_AUTH_MODE"
CLOSING_S = 120.0
"""What a drain may take beyond grace and fence: cancelled episodes, resets nobody waits for, releases, the summary, leaving Ray."""
LIVE = frozenset({"PENDING", "RUNNING"})
"""Job states that are no end."""
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
EXCLUDES = (
    "/.git", "/runs", ".venv", "venv", "__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "node_modules",
    ".env", ".env.*", "traces.jsonl", "traces.jsonl.torn", "receipts.jsonl", "leases.jsonl",
)  # fmt: skip
"""Left out of the upload, in the way of ``.gitignore``: what is large, private, or of a run."""

_ID = re.compile(r"rayeval-[0-9a-f]{12}-[1-9][0-9]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = frozenset({ID_VARIABLE, STOP_WAIT_VARIABLE, "RAY_ADDRESS"})
_END = re.compile(r"(rayeval-[0-9a-f]{12}-[1-9][0-9]*): ended with exit code (\d{1,3})")
_END_WITHIN = 4000
"""The last characters of a log in which its end is looked for."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job ready to be sent."""

    submission_id: str
    entrypoint: str
    working_dir: Path
    excludes: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    """May hold secrets that the user chose to send."""
    metadata: Mapping[str, str]
    entrypoint_num_cpus: float | None = None
    entrypoint_resources: Mapping[str, float] | None = None

    @property
    def runtime_env(self) -> JsonObject:
        """As Ray takes it."""
        return {"working_dir": str(self.working_dir), "excludes": list(self.excludes), "env_vars": dict(self.env)}


class JobRow(NamedTuple):
    """One job of the cluster's list."""

    submission_id: str
    status: str


# ---- ids ------------------------------------------------------------------------------------------------------------------------------


def id_prefix(fingerprint: str, output_dir: str) -> str:
    """What all jobs of one plan in one directory have in common."""
    return f"rayeval-{sha256_hex((fingerprint + output_dir).encode())[:12]}-"


def is_submission_id(text: str) -> bool:
    """Whether ``text`` can be the id of a job of ours."""
    return _ID.fullmatch(text) is not None


def next_id(prefix: str, jobs: Iterable[JobRow], address: str) -> str:
    """-> the id of the next job. Raises RefusedError, naming the job, while an earlier one is not over."""
    number = 0
    for job in jobs:
        if not job.submission_id.startswith(prefix) or not is_submission_id(job.submission_id):
            continue
        if job.status not in ENDED:
            raise taken(job.submission_id, job.status, address)
        number = max(number, int(job.submission_id.removeprefix(prefix)))
    return f"{prefix}{number + 1}"


def taken(submission_id: str, status: str, address: str) -> RefusedError:
    """The refusal of a second job for one directory."""
    return RefusedError(
        f"{submission_id} is {status.lower()} with the same plan and directory; follow it: {follow_command(submission_id, address)}, "
        f"or stop it: {stop_command(submission_id, address)}"
    )


def follow_command(submission_id: str, address: str) -> str:
    """What one types to come back to a job."""
    return f"rayeval logs {submission_id} --address {address}"


def stop_command(submission_id: str, address: str) -> str:
    """What one types to drain a job and end it."""
    return f"ray job stop {submission_id} --address {address}"


# ---- checks ---------------------------------------------------------------------------------------------------------------------------


def checked_output_dir(text: str, working_dir: Path) -> str:
    """-> ``output_dir`` without a trailing slash. Raises InputError when it is relative or inside ``working_dir``."""
    path = PurePosixPath(text)
    if not path.is_absolute():
        raise InputError("--output-dir", text, "is relative; give an absolute path on the node of the driver, on a volume that outlives it")
    plain = os.path.normpath(text)
    # what is a link here may be none there, and the other way round: neither reading may lie inside
    for reading in {plain, os.path.realpath(plain)}:
        for root in {str(working_dir), os.path.realpath(working_dir)}:
            if PurePosixPath(reading).is_relative_to(root):
                raise InputError("--output-dir", text, f"lies inside the uploaded {working_dir}; give a directory outside of it")
    return plain


def checked_working_dir(chosen: Path | None, config: Path) -> Path:
    """-> the directory to upload: ``chosen``, or the current one. Raises InputError when the configuration is not in it."""
    root = Path(os.path.normpath((chosen or Path.cwd()).absolute()))
    if not root.is_dir():
        raise InputError("--working-dir", str(chosen), "is no directory; give the one to upload")
    inside(root, "CONFIG", config)
    return root


def inside(root: Path, name: str, path: Path) -> str:
    """-> ``path`` relative to ``root``. Raises InputError when it lies elsewhere, or where nothing is uploaded."""
    plain = Path(os.path.normpath(path.absolute()))
    if not plain.is_relative_to(root):
        raise InputError(name, str(path), f"lies outside of {root}, which is what is uploaded; give --working-dir")
    relative = plain.relative_to(root)
    for depth, part in enumerate(relative.parts):
        if any(fnmatch.fnmatchcase(part if depth else f"/{part}", p) or fnmatch.fnmatchcase(part, p) for p in EXCLUDES):
            raise InputError(name, str(path), f"lies in {part}, which is not uploaded; move it")
    return relative.as_posix()


def referenced_files(loaded: LoadedConfig, absolute: Iterable[str]) -> dict[str, Path]:
    """Files that the configuration names by relative paths: key -> path. ``absolute``: keys whose path is the cluster's own."""
    config = loaded.config
    found = {
        "tasks.split_file": config.tasks.split_file,
        "prompt.system_prompt_file": config.prompt.system_prompt_file,
        "skills.path": config.skills.path,
    }
    return {key: path for key, path in found.items() if path is not None and key not in set(absolute)}


def absolute_path_keys(loaded: LoadedConfig, overrides: Sequence[str]) -> list[str]:
    """Keys whose file is given by an absolute path: such a file is read on the cluster, not uploaded."""
    import yaml

    document: Any = yaml.safe_load(loaded.text) or {}
    given: dict[str, Any] = {f"{s}.{k}": v for s, keys in document.items() if isinstance(keys, dict) for k, v in keys.items()}
    for text in overrides:
        key, _, word = text.partition("=")
        given[key.strip()] = yaml.safe_load(word)
    return [key for key in referenced_files(loaded, ()) if isinstance(value := given.get(key), str) and value.startswith("/")]


def checked_words(words: Sequence[str]) -> Sequence[str]:
    """-> ``words`` of a command line that everybody who sees the cluster's jobs may read. Raises InputError for a secret."""
    shown = argv_without_secrets(words)
    for word, masked in zip(words, shown, strict=True):
        if word != masked:
            hint = "looks like a secret, and a job's command line can be read by all who see the cluster's jobs; give it by --env-from NAME"
            raise InputError("command line", masked, hint)
    return words


def checked_env(pairs: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """``--env KEY=VALUE`` and ``--env-from NAME`` -> variables of the job. Raises InputError; no message repeats a value."""
    env: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or _NAME.fullmatch(name) is None:
            raise InputError("--env", name, "give NAME=VALUE")
        if argv_without_secrets([pair]) != [pair]:
            raise InputError("--env", name, f"looks like a secret; export it here and give --env-from {name}")
        env[name] = value
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise InputError("--env-from", name if "=" not in name else None, "give the name of a variable, not its value")
        if name not in environ:
            raise InputError("--env-from", name, "is not set here; export it first")
        env[name] = environ[name]
    for name in _OURS & env.keys():
        raise InputError("--env", name, "is set by rayeval submit; leave it out")
    return env


# ---- the job --------------------------------------------------------------------------------------------------------------------------


def stop_wait_s(loaded: LoadedConfig) -> int:
    """How long a stopped job may drain before Ray kills it: a bound, not a wait."""
    execution = loaded.config.execution
    return math.ceil(execution.grace_s + execution.fence_s + CLOSING_S)


def entrypoint(python: str, config: str, output_dir: str, words: Sequence[str]) -> str:
    """The command of the job's driver. ``exec``: the signal that stops a job must find the driver, not a shell around it."""
    command = [*shlex.split(python), "-m", "rayeval", "run", config, "--runs-dir", output_dir, "--display", "plain"]
    return "exec " + shlex.join(checked_words([*command, *words]))


def make_job(
    submission_id: str,
    loaded: LoadedConfig,
    plan: Plan,
    *,
    working_dir: Path,
    output_dir: str,
    command: str,
    env: Mapping[str, str],
    auth_mode: str,
    nonce: str,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
) -> JobSpec:
    """The job that runs ``plan`` into ``output_dir``. ``nonce``: what tells this submit from another one of the same id."""
    own_runs = loaded.config.experiment.output_dir
    excludes = list(EXCLUDES)
    if own_runs != working_dir and own_runs.is_relative_to(working_dir):
        excludes.append("/" + own_runs.relative_to(working_dir).as_posix())
    return JobSpec(
        submission_id=submission_id,
        entrypoint=command,
        working_dir=working_dir,
        excludes=tuple(dict.fromkeys(excludes)),
        env={AUTH_VARIABLE: auth_mode, **env, STOP_WAIT_VARIABLE: str(stop_wait_s(loaded)), ID_VARIABLE: submission_id},
        metadata={
            "rayeval_run": plan.experiment,
            "rayeval_run_dir": f"{output_dir}/{plan.experiment}",
            "rayeval_output_dir": output_dir,
            "rayeval_fingerprint": plan.fingerprint,
            "rayeval_submission": nonce,
        },
        entrypoint_num_cpus=num_cpus,
        entrypoint_resources=resources,
    )


# ---- the end of a job -----------------------------------------------------------------------------------------------------------------


def end_line(submission_id: str, exit_code: int) -> str:
    """The last line of a job's log: Ray keeps no exit code of a job that was stopped."""
    return f"{submission_id}: ended with exit code {exit_code}"


def end_in(log: str, submission_id: str) -> int | None:
    """-> the exit code that the job's own last line tells; None when it had no time to tell it."""
    for line in reversed(log[-_END_WITHIN:].splitlines()):
        found = _END.fullmatch(line.strip())
        if found is not None and found[1] == submission_id:
            return int(found[2])
    return None
