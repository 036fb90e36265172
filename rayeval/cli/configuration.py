"""``config show``, ``config schema``, ``config diff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rayeval.cli.options import ConfigArgument, JsonOption, SetOption
from rayeval.cli.output import table, write_error, write_json, write_out

app = typer.Typer(help="Look at configurations.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(
    config: ConfigArgument,
    set_: SetOption = None,
    semantic: Annotated[bool, typer.Option("--semantic", help="Only keys that enter the fingerprint.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what is in force, and where each value comes from."""
    from rayeval.config import load_config, origins_table

    loaded = load_config(config, set_ or ())
    for note in loaded.notes:
        write_error(f"note: {note}")
    rows = [row for row in origins_table(loaded) if not semantic or _is_semantic(row[0])]
    if as_json:
        values = {key: {"value": value, "origin": origin} for key, value, origin in rows}
        write_json({"schema": "rayeval-config-v1", "path": str(loaded.path), "semantic": semantic, "keys": values})
        return
    lines: list[tuple[str, str]] = []
    section = ""
    for key, value, origin in rows:
        above, _, name = key.partition(".")
        if above != section:
            section = above
            lines.append((f"{section}:", ""))
        # JSON is YAML too, and says the type of each value in one line.
        lines.append((f"  {name}: {json.dumps(value, ensure_ascii=False)}", origin))
    width = min(max((len(text) for text, origin in lines if origin), default=0), 60)
    write_out("\n".join(f"{text:<{width}}  # {origin}" if origin else text for text, origin in lines))


@app.command()
def schema(as_json: JsonOption = False) -> None:
    """Print the JSON Schema of a configuration file, for editors; --json wraps it like every other answer."""
    from rayeval.config import config_schema

    if as_json:
        write_json({"schema": "rayeval-config-schema-v1", "json_schema": config_schema()})
        return
    write_out(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A configuration file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: JsonOption = False,
) -> None:
    """Print each key in which two configurations differ."""
    from rayeval.config import config_differences, load_config

    rows = config_differences(load_config(a).config, load_config(b).config)
    if as_json:
        found = [{"key": k, "a": old, "b": new, "semantic": _is_semantic(k)} for k, old, new in rows]
        write_json({"schema": "rayeval-config-diff-v1", "a": str(a), "b": str(b), "differences": found})
        return
    if not rows:
        write_out("no difference")
        return
    shown = [(k, _text(old), _text(new), "semantic" if _is_semantic(k) else "") for k, old, new in rows]
    write_out(table(("key", str(a), str(b), ""), shown))


def _is_semantic(key: str) -> bool:
    """Whether a dotted key enters the fingerprint; what lies below an open key such as model.extra_body belongs to it."""
    from rayeval.config import NOT_SEMANTIC, NOT_SEMANTIC_SECTIONS

    return key.split(".")[0] not in NOT_SEMANTIC_SECTIONS and ".".join(key.split(".")[:2]) not in NOT_SEMANTIC


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
