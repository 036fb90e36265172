"""One benchmark by itself: ``python -m benchmarks.NAME``, with the options, the exit code and the JSON file that all of them share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Protocol

from rayeval.exceptions import InputError


class Benchmark(Protocol):
    """What a module of this package offers; ``python -m benchmarks`` wants ``figures`` besides."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its own options. Their names are its own among those of all benchmarks."""

    def measure(self, options: argparse.Namespace) -> dict[str, Any]:
        """-> its figures and ``within_limits``. Raises InputError for an option that cannot be, RuntimeError when it cannot be measured."""

    def show(self, result: dict[str, Any]) -> str:
        """The figures for a reader."""


def main(benchmark: Benchmark, argv: list[str] | None = None) -> int:
    """Measure and show. -> 0, or 1 when a limit is passed; SystemExit 2 for wrong options."""
    parser = argparse.ArgumentParser(description=benchmark.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    benchmark.add_arguments(parser)
    add_mock_command(parser)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all figures here")
    options = parser.parse_args(argv)
    try:
        result = benchmark.measure(options)
    except InputError as error:
        parser.error(str(error))
    if options.json is not None:
        options.json.write_text(json.dumps(result))
    print(benchmark.show(result))
    return 0 if result["within_limits"] else 1


def add_mock_command(parser: argparse.ArgumentParser) -> None:
    """Other servers than the demo."""
    parser.add_argument(
        "--mock-command",
        default=None,
        metavar="COMMAND",
        help="start these servers in place of the demo; as a benchmark needs it they get --model-latency, --model-slots, --fault-429 ...",
    )
