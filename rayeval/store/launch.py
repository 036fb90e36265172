"""What a run was started with: the configuration as given and as resolved, the command line, versions, and the state
of the code.

The first launch writes ``config.yaml``, ``config.resolved.json`` and ``launch.json`` and is never overwritten; the
n-th resume adds ``launch-N.json``, and its own configuration beside it (``config-N.yaml``, ``config.resolved-N.json``)
when that differs.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

from rayeval.hashing import sha256_hex
from rayeval.schemas import JsonObject
from rayeval.store._files import replace_file
from rayeval.store.run_directory import RunDirectory

LAUNCH_SCHEMA = "rayeval-launch-v1"
REDACTED = "***"
GIT_TIMEOUT_S = 5.0
_CORE = (
    "rayeval",
    "ray",
    "aiohttp",
    "httpx",
    "orjson",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "uvloop",
    "filelock",
    "psutil",
)
_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|credential|authorization", re.IGNORECASE)
_PUBLIC_NAME = re.compile(r"(_env|max_tokens|max_tokens_total|max_completion_tokens)$", re.IGNORECASE)
"""Names that look secret and hold none: the name of a variable, a number of tokens."""
_SECRET_TEXT = re.compile(r"\bsk-[A-Za-z0-9_-]{6,}|\bBearer\s+[A-Za-z0-9._~+/=-]{6,}")
_URL_USER = re.compile(r"(?<=://)[^/@\s]+@")


def write_launch(
    run_dir: RunDirectory,
    *,
    config_text: str,
    resolved: JsonObject,
    origins: Mapping[str, str],
    argv: Sequence[str],
    code_dir: Path | None = None,
) -> Path:
    """Record one launch. -> its ``launch*.json``.

    ``config_text`` is kept verbatim; ``resolved`` and ``argv`` lose their secrets. ``code_dir``: where git is asked
    (default: the working directory). Call it under the run lock. Raises StoreWriteError.
    """
    number = 1
    while _numbered(run_dir.launch, number).exists():
        number += 1
    text = config_text.encode()
    settings = orjson.dumps({"config": without_secrets(resolved), "origins": dict(origins)}, option=orjson.OPT_INDENT_2)
    files: dict[str, str] = {}
    for kind, base, data in (("config", run_dir.config, text), ("resolved", run_dir.config_resolved, settings + b"\n")):
        path = base
        if base.exists() and base.read_bytes() != data:
            path = _numbered(base, number)
        if not path.exists():
            replace_file(path, data, durable=False)
        files[kind] = path.name
    launch: JsonObject = {
        "schema": LAUNCH_SCHEMA,
        "number": number,
        "started_at": datetime.now(UTC).isoformat(),
        "argv": argv_without_secrets(argv),
        "cwd": os.getcwd(),
        "files": files,
        "config_sha256": sha256_hex(text),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": package_versions(),
        "git": git_state(code_dir or Path.cwd()),
    }
    path = _numbered(run_dir.launch, number)
    replace_file(path, orjson.dumps(launch, option=orjson.OPT_INDENT_2) + b"\n", durable=False)
    return path


def launch_number(path: Path) -> int:
    """-> the number of a launch from the name of its file."""
    _, _, number = path.stem.rpartition("-")
    return int(number) if number.isdecimal() else 1


def argv_without_secrets(argv: Sequence[str]) -> list[str]:
    """The command line with the values of secret-looking options and ``key=value`` pairs, key-like strings and the
    user part of URLs replaced by ``***``."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("--"):
            shown.append(REDACTED)
            hide_next = False
            continue
        name, equals, value = word.partition("=")
        if equals and name == "--set":
            inner, mark, _ = value.partition("=")
            shown.append(f"--set={inner}={REDACTED}" if mark and _is_secret(inner) else _scrubbed(word))
        elif equals and _is_secret(name):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(_scrubbed(word))
        hide_next = not equals and word.startswith("--") and _is_secret(word)
    return shown


def without_secrets(value: Any, name: str = "") -> Any:
    """A copy of a JSON value in which texts and numbers under secret-looking names, and key-like strings, are
    ``***``.
    """
    if isinstance(value, dict):
        return {key: without_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(name):
        return REDACTED
    return _scrubbed(value) if isinstance(value, str) else value


def package_versions() -> dict[str, str | None]:
    """Installed versions of what a result may depend on; None: not installed."""
    versions: dict[str, str | None] = {}
    for name in _CORE:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def git_state(directory: Path) -> JsonObject | None:
    """-> ``{commit, dirty}`` of the repository around ``directory``; None without git or repository. ``dirty`` is None
    when git did not answer in time."""
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), "--no-optional-locks", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _is_secret(name: str) -> bool:
    last = name.rsplit(".", 1)[-1].replace("-", "_")
    return bool(_SECRET_NAME.search(name)) and not _PUBLIC_NAME.search(last)


def _scrubbed(text: str) -> str:
    return _URL_USER.sub(f"{REDACTED}@", _SECRET_TEXT.sub(REDACTED, text))


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
