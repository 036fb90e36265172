"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the experiment.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Path of a run directory, a run's name, or 'latest'.")]
RunsDirOption = Annotated[Path, typer.Option("--runs-dir", metavar="DIR", help="Where names of runs are looked up.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
SetOption = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key, such as model.temperature=0; the value is read as YAML. May be repeated.",
    ),
]
LimitOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--limit", metavar="N", min=1, help="Only the first N episodes of the selection."),
]
TaskOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--task", metavar="IDS", help="Only these tasks, such as 12,40-60."),
]
WhereOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--where", metavar="EXPR", help="Only when the split says so, such as 'role==\"val\"'."),
]
MaxFailedOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--max-failed", metavar="N|P%", help="Failed episodes that still end with exit code 0."),
]
FailFastOption = Annotated[bool, typer.Option("-x", "--fail-fast", help="Stop at the first final failure.")]
RetryFailedOption = Annotated[bool, typer.Option("--retry-failed", help="Run only what failed before.")]
RetryQuarantinedOption = Annotated[bool, typer.Option("--retry-quarantined", help="Run quarantined episodes too.")]
SameWeightsOption = Annotated[
    bool, typer.Option("--same-weights", help="Resume although the model's URL differs: the weights are the same.")
]
NoResumeOption = Annotated[bool, typer.Option("--no-resume", help="Refuse a directory that holds traces.")]

DEFAULT_RUNS_DIR = Path("runs")
