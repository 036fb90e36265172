"""A configuration file and its ``--set`` overrides -> ``LoadedConfig``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayeval.config._models import Config, PricesSection
from rayeval.config._schema import config_keys
from rayeval.config._yaml import parse, read_text
from rayeval.exceptions import ConfigurationError

_PATH_KEYS = ("experiment.output_dir", "tasks.split_file", "prompt.system_prompt_file", "skills.path")
_OPEN_KEYS = ("environment.options", "model.extra_body", "execution.prices")
"""Keys whose value is an object: an override may go deeper."""
_MOVED = {
    "experiment.concurrency": "execution.concurrency",
    "experiment.resume": "execution.resume",
    "environment.timeout": "execution.step_timeout_s",
    "model.id": "model.name",
    "model.timeout": "execution.model_timeout_s",
    "model.max_retries": "execution.model_attempts",
    "model.trust_env": "execution.trust_env",
}
"""Keys of older configurations."""
_GONE = {
    "models": "one configuration is for one model; give a file (or --set) for each",
    "experiment.dotenv": "no file of variables is read; export the variable before the run",
    "model.stream": "answers are never streamed; leave it out",
    "model.retry_backoff_seconds": "the back-off is fixed; leave it out",
}


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration with where it came from."""

    config: Config
    path: Path
    """The file, absolute."""
    text: str
    """Its text, verbatim."""
    origins: dict[str, str]
    """Where the value of each dotted key comes from: ``file:line``, ``--set`` or ``default``."""
    notes: list[str]
    """What a user should see although nothing is wrong."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, override, check. ``overrides`` are ``section.key=value`` texts, the value in YAML; the last of a key wins.

    Paths in the file and in overrides are taken from the file's directory. Raises ConfigurationError, one line.
    """
    path = Path(path)
    text = read_text(path)
    document = parse(text, str(path))
    if document.value is None:
        raise ConfigurationError(str(path), None, "is empty; give the sections experiment, tasks, environment, prompt and model")
    if not isinstance(document.value, dict):
        raise ConfigurationError(f"{path}:1", None, "give sections (experiment:, tasks:, ...) at the top level")
    raw: dict[str, Any] = document.value
    origins = {key: f"{path}:{line}" for key, line in document.lines.items()}
    _check_keys(raw, origins)
    raw = {section: {} if keys is None else dict(keys) for section, keys in raw.items()}
    notes: list[str] = []
    given: set[str] = set()
    for override in overrides:
        key, value = _override(override)
        if key in given:
            notes.append(f"--set {key} is given more than once: the last one counts")
        given.add(key)
        _put(raw, key, value)
        origins[key] = "--set"
        _trace_open_key(key, origins)
    root = path.absolute().parent
    for key in _PATH_KEYS:
        _resolve(raw, key, root)
    if raw.get("experiment", {}).get("output_dir") is None:
        raw.setdefault("experiment", {})["output_dir"] = str(root / "runs")
    for section in ("experiment", "tasks", "environment", "prompt", "model"):
        raw.setdefault(section, {})
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise _first_error(error, origins) from None
    if config.skills.max_skills is not None and config.skills.path is None:
        notes.append("skills.max_skills does nothing without skills.path")
    leaves = {key: _origin(key, origins) for key in config_keys()}
    return LoadedConfig(config, path.absolute(), text, leaves, notes)


def _check_keys(raw: dict[str, Any], origins: dict[str, str]) -> None:
    for section, keys in raw.items():
        if section not in Config.model_fields:
            raise _unknown(section, origins)
        if keys is None:
            continue
        if not isinstance(keys, dict):
            raise ConfigurationError(section, keys, f"give keys below the section{_at(section, origins)}")
        for key in keys:
            if f"{section}.{key}" not in config_keys():
                raise _unknown(f"{section}.{key}", origins)


def _unknown(key: str, origins: dict[str, str]) -> ConfigurationError:
    place = _at(key, origins)
    if key in _GONE:
        return ConfigurationError(key, None, f"unknown key; {_GONE[key]}{place}")
    nearest = _MOVED.get(key) or _nearest(key)
    hint = f"did you mean {nearest}?" if nearest else f"known here are {', '.join(_siblings(key))}"
    return ConfigurationError(key, None, f"unknown key; {hint}{place}")


def _nearest(key: str) -> str | None:
    section, _, name = key.partition(".")
    if not name:
        close = difflib.get_close_matches(section, [*Config.model_fields, *config_keys()], 1, 0.6)
        same = [k for k in config_keys() if k.endswith(f".{section}")]
        return close[0] if close else next(iter(same), None)
    if section not in Config.model_fields:
        right = difflib.get_close_matches(section, Config.model_fields, 1, 0.6)
        if right and (f"{right[0]}.{name}" in config_keys()):
            return f"{right[0]}.{name}"
    names = [k.partition(".")[2] for k in config_keys() if k.startswith(f"{section}.")]
    close = difflib.get_close_matches(name, names, 1, 0.7)
    if close:
        return f"{section}.{close[0]}"
    elsewhere = {k.partition(".")[2]: k for k in reversed(list(config_keys()))}
    close = difflib.get_close_matches(name, elsewhere, 1, 0.7) or difflib.get_close_matches(name, names, 1, 0.5)
    return None if not close else f"{section}.{close[0]}" if close[0] in names else elsewhere[close[0]]


def _siblings(key: str) -> list[str]:
    section, _, name = key.partition(".")
    return [k for k in config_keys() if k.startswith(f"{section}.")] if name and section in Config.model_fields else [*Config.model_fields]


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigurationError("--set", text, "give section.key=value, such as model.temperature=0.6")
    owner = next((k for k in _OPEN_KEYS if key.startswith(f"{k}.")), key)
    if owner in Config.model_fields:
        raise ConfigurationError(f"--set {key}", None, f"is a section; give one of its keys, such as {_siblings(f'{key}.x')[0]}=value")
    if owner not in config_keys():
        error = _unknown(owner, {})
        raise ConfigurationError(f"--set {key}", None, error.hint)
    if "" in key.split("."):
        raise ConfigurationError(f"--set {key}", None, "give a name after each dot")
    return key, parse(value, "--set", key).value


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    target = raw
    for depth, name in enumerate(parents):
        inner = target.get(name)
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigurationError(f"--set {key}", None, f"{'.'.join(parents[: depth + 1])} is no object; give it as a whole")
        target[name] = dict(inner)  # the text's own objects stay as they were read
        target = target[name]
    target[last] = value


def _trace_open_key(key: str, origins: dict[str, str]) -> None:
    owner = next((k for k in _OPEN_KEYS if key.startswith(f"{k}.")), None)
    if owner:
        before = origins.get(owner)
        origins[owner] = "--set" if before in (None, "--set") else f"{before.removesuffix(', --set')}, --set"


def _resolve(raw: dict[str, Any], key: str, root: Path) -> None:
    section, name = key.split(".")
    value = raw.get(section, {}).get(name)
    if isinstance(value, str) and value.strip() and not value.startswith("~"):
        raw[section][name] = str(_normal(root / value))


def _normal(path: Path) -> Path:
    """``a/../b`` -> ``b`` by name only when no link is in the way; else as it is."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1 and not Path(*parts).is_symlink():
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)


def _first_error(error: ValidationError, origins: dict[str, str]) -> ConfigurationError:
    rows = error.errors(include_url=False)
    row = next((r for r in rows if r["type"] != "missing"), rows[0])
    parts = [str(p) for p in row["loc"]]
    depth = 3 if parts[:2] == ["execution", "prices"] else 2
    key = ".".join(parts[:depth])
    message = str(row["msg"])
    if row["type"] == "value_error":
        message = str(row["ctx"]["error"])
    if not row["loc"]:  # a rule across fields opens with its key
        key, _, hint = message.partition(": ")
        return ConfigurationError(key, None, f"{hint}{_at(key, origins)}")
    if depth == 3 and row["type"] == "missing":
        return ConfigurationError(key, None, f"required; give a number{_at('execution.prices', origins)}")
    if row["type"] == "missing":
        info = config_keys().get(key)
        return ConfigurationError(key, None, f"required; give it: {info.description if info else ''}{_at(key.partition('.')[0], origins)}")
    expected = _EXPECTED.get(row["type"])
    hint = message if row["type"] == "value_error" else expected(row.get("ctx", {})) if expected else f"give what fits ({message})"
    union = [r for r in rows if [str(p) for p in r["loc"][:depth]] == parts[:depth]]
    if len(union) > 1:
        hint = " or ".join(
            dict.fromkeys(_EXPECTED[r["type"]](r.get("ctx", {})).removeprefix("give ") for r in union if r["type"] in _EXPECTED)
        )
        hint = f"give {hint}"
    elif any(isinstance(p, int) for p in row["loc"][2:]):
        key += "".join(f"[{p}]" for p in row["loc"][2:] if isinstance(p, int))
    is_url = key.endswith((".base_url", ".endpoint"))
    value = None if key in _SECRET_KEYS or (is_url and re.search("[@?#]", repr(row["input"]))) else row["input"]
    return ConfigurationError(key, value, f"{hint}{_at(key.partition('[')[0], origins)}")


_SECRET_KEYS = frozenset({"model.api_key_env", "model.extra_body"})
"""A refused value of these may hold a key, which no message may repeat; so may a URL with a user or a query."""
_EXPECTED: dict[str, Any] = {
    "int_type": lambda _: "give a whole number",
    "float_type": lambda _: "give a number",
    "bool_type": lambda _: "give true or false",
    "string_type": lambda _: "give a text (put it in quotes)",
    "dict_type": lambda _: "give an object of keys and values",
    "tuple_type": lambda _: "give a list",
    "path_type": lambda _: "give a path",
    "is_instance_of": lambda c: "give a path" if c.get("class") == "Path" else f"give a {c.get('class')}",
    "model_type": lambda _: "give an object of keys and values",
    "extra_forbidden": lambda _: "unknown key; known here are " + ", ".join(PricesSection.model_fields),
    "string_too_long": lambda c: f"give at most {c['max_length']} characters",
    "literal_error": lambda c: f"give {c['expected']}",
    "finite_number": lambda _: "give a finite number",
    "greater_than": lambda c: f"give more than {c['gt']:g}",
    "greater_than_equal": lambda c: f"give {c['ge']:g} or more",
    "less_than": lambda c: f"give less than {c['lt']:g}",
    "less_than_equal": lambda c: f"give {c['le']:g} or less",
}


def _at(key: str, origins: dict[str, str]) -> str:
    origin = origins.get(key)
    return f" ({origin})" if origin else ""


def _origin(key: str, origins: dict[str, str]) -> str:
    return origins.get(key, "default")


def origins_table(loaded: LoadedConfig) -> list[tuple[str, Any, str]]:
    """Rows (dotted key, value, origin) of everything in force; ``options`` and ``extra_body`` as one value each."""
    flat: dict[str, Any] = {}
    for section, keys in loaded.config.model_dump(mode="json").items():
        flat.update({f"{section}.{name}": value for name, value in keys.items()})
    return [(key, value, loaded.origins[key]) for key, value in flat.items()]
