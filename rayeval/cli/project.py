"""``init`` and ``demo``: how one starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayeval.cli.options import JsonOption
from rayeval.cli.output import write_json, write_out
from rayeval.exceptions import InputError

INIT_SCHEMA = "rayeval-init-v1"

_FILES = {
    "experiment.yaml": "experiment.yaml",
    "splits/demo.json": "splits.json",
    "prompts/shopping.txt": "shopping.txt",
    ".gitignore": "gitignore",
    "Makefile": "Makefile",
}
"""File of a new project -> its template."""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made when it is not there.")],
    as_json: JsonOption = False,
) -> None:
    """Write a first project: configuration with comments, split, prompt, .gitignore, Makefile. Overwrites nothing."""
    from importlib.resources import files

    from rayeval.config import config_schema

    if directory.exists() and not directory.is_dir():
        raise InputError("DIR", str(directory), "is a file; give a directory")
    templates = files("rayeval.cli") / "templates"
    texts = {name: (templates / template).read_text(encoding="utf-8") for name, template in _FILES.items()}
    texts["rayeval.schema.json"] = _schema_text(config_schema())
    written, kept = [], []
    for name, text in texts.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # "x" is what keeps a file that someone makes between a look and the write.
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            kept.append(name)
        else:
            written.append(name)
    config = directory / "experiment.yaml"
    commands = [f"rayeval {verb} {config}" for verb in ("plan", "doctor", "run")]
    if as_json:
        write_json({"schema": INIT_SCHEMA, "directory": str(directory), "written": written, "kept": kept, "next": commands})
        return
    for name in written:
        write_out(f"wrote {directory / name}")
    for name in kept:
        write_out(f"kept  {directory / name} (it was there)")
    write_out("next:\n" + "\n".join(f"  {command}" for command in commands))


def _schema_text(schema: dict[str, object]) -> str:
    import json

    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def demo(context: typer.Context) -> int:
    """Start the bundled shop and the scripted model server, and print their addresses; --help lists its options."""
    from rayeval.demo.__main__ import main

    return int(main(context.args) or 0)
