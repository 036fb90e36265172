"""The files of ``cluster/`` as tests read them, and the command lines in them as the programs themselves parse them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from rayeval.config import load_config
from rayeval.submission import stop_wait_s

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
JsonObject = dict[str, Any]
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def read(name: str) -> JsonObject:
    """A YAML file of ``cluster/``."""
    value: JsonObject = yaml.safe_load((CLUSTER / name).read_text("utf-8"))
    return value


def drain_s() -> int:
    """What a drain may take with the defaults of a configuration; as ``rayeval submit`` tells Ray."""
    return stop_wait_s(load_config(ROOT / "configs" / "smoke.yaml"))


def ray_start_options(words: Sequence[str]) -> JsonObject:
    """``ray start ...`` as Ray parses it. Raises click's error for an option that it does not have."""
    from ray.scripts.scripts import start

    assert list(words[:2]) == ["ray", "start"], words
    return start.make_context("ray start", list(words[2:])).params


def rayeval_options(words: Sequence[str]) -> tuple[str, JsonObject]:
    """``rayeval VERB ...`` (or ``python -m rayeval VERB ...``) -> (verb, its parameters). Raises click's error."""
    words = list(words)
    if words[:3] == ["python", "-m", "rayeval"]:
        words = words[2:]
    assert words[0] == "rayeval", words
    command = _rayeval()
    context = command.make_context("rayeval", [words[1]], resilient_parsing=True)
    verbs, rest = [words[1]], words[2:]
    command = command.get_command(context, words[1])
    while hasattr(command, "get_command") and rest:
        verbs.append(rest[0])
        command, rest = command.get_command(context, rest[0]), rest[1:]
    assert command is not None, f"rayeval has no {' '.join(verbs)}"
    return " ".join(verbs), command.make_context(verbs[-1], rest, parent=context).params


@cache
def _rayeval() -> Any:
    import typer

    from rayeval.cli.app import app

    return typer.main.get_command(app)


def simple_commands(script: str) -> Iterator[list[str]]:
    """The commands of a shell line without ``exec``, assignments before them, redirections and directories in their names."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    for control, words in groupby(lexer, lambda token: set(token) <= set(";&|<>")):
        found = list(words)
        while found and (found[0] == "exec" or ("=" in found[0] and not found[0].startswith("-"))):
            found = found[1:]
        if found and not control:
            yield [found[0].rsplit("/", 1)[-1], *found[1:]]
