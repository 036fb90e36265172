"""``python -m benchmarks [NAME ...]``: without a name, those that make the table of docs/performance.md, in about a quarter of an hour.

Prints what each measured as it ends and one table of all at the end. Without a name the table is also written to docs/performance.md,
between its markers, unless --no-write is given; with --json one JSON object is printed and nothing is written. A benchmark that cannot be
measured has a row that says so, and the others go on. Exits 1 when one failed or a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import inflight, memory, overhead, peers, recovery, report, resume, scaling, shards, soak, startup, tail
from benchmarks.alone import add_mock_command
from benchmarks.servers import load_average
from rayeval.exceptions import InputError

MEASURED: dict[str, ModuleType] = {
    "startup": startup,
    "resume": resume,
    "overhead": overhead,
    "memory": memory,
    "shards": shards,
    "tail": tail,
    "scaling": scaling,
    "recovery": recovery,
    "inflight": inflight,
    "soak": soak,
    "peers": peers,
}
ALL = ("startup", "resume", "overhead", "memory", "shards", "tail", "scaling", "recovery", "inflight")
"""Without a name, and ``peers`` where a command is given. The soak takes its time; so does the widest wave of ``tail``."""
_INFLIGHT_S = 30.0
_INTERRUPTED = 130
_TAIL_PAIRS = 1
"""Pairs of one sitting differ by some thousandths."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options, with ``names`` and ``write`` decided. SystemExit 2 for wrong ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASURED)}; default: {', '.join(ALL)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object; write nothing")
    parser.add_argument("--no-write", action="store_true", help="leave docs/performance.md as it is")
    add_mock_command(parser)
    for module in MEASURED.values():
        module.add_arguments(parser)
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(MEASURED):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: give {', '.join(MEASURED)}")
    if "peers" in options.names and not options.peer_command:
        parser.error("peers needs --peer-command")
    options.write = not (options.names or options.json or options.no_write)
    if not options.names:
        options.names = [*ALL, *(["peers"] if options.peer_command else [])]
        options.wave = options.wave or tail.WAVES[:2]
        options.tail_pairs = options.tail_pairs or _TAIL_PAIRS
        options.seconds = min(options.seconds, _INFLIGHT_S)
    if options.write:
        try:
            report.check(report.DOCUMENT)
        except InputError as error:
            parser.error(str(error))
    return options


def measured(name: str, module: ModuleType, options: argparse.Namespace, out: Any) -> tuple[report.Part, dict[str, Any] | None]:
    """One benchmark. -> its part of the table, and all its figures; a failure is a part too."""
    before, began = load_average(), time.monotonic()
    print(f"{name} ...", file=sys.stderr, flush=True)
    try:
        result: dict[str, Any] = module.measure(options)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        part = report.Part(name, module.figures(result), (before, load_average()), result["within_limits"])
        print(module.show(result), end="\n\n", flush=True, file=out)
    except Exception as error:  # whatever it was, the others are still to be measured
        traceback.print_exc()
        return report.Part(name, (), (before, load_average()), False, type(error).__name__), None
    return part, result


def run(options: argparse.Namespace, benchmarks: Mapping[str, ModuleType], document: Path) -> int:
    """Measure ``options.names``, show the table, and write it to ``document`` where ``options.write`` says so. -> exit code.

    SIGINT and SIGTERM end the benchmark that runs, with its processes, and what was measured before is shown and not written.
    """
    out = sys.stderr if options.json else sys.stdout
    began, load = datetime.now(UTC), load_average()
    parts: list[report.Part] = []
    results: dict[str, Any] = {}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in dict.fromkeys(options.names):
            part, results[name] = measured(name, benchmarks[name], options, out)
            parts.append(part)
    except KeyboardInterrupt:
        print(f"{report.terminal(parts)}\ninterrupted: nothing is written", file=sys.stderr)
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    print(report.terminal(parts), file=out)
    servers = "the bundled demo" if options.mock_command is None else "those of `--mock-command`"
    if "peers" in options.names and options.peer_servers is not None:
        servers += "; for peers those of `--peer-servers`"
    if options.write:
        report.put(report.markdown(parts, report.circumstances(began, servers, load)), document)
        print(f"written to {document}", file=sys.stderr)
    if options.json:
        print(json.dumps(results))
    return 0 if all(part.within_limits for part in parts) else 1


if __name__ == "__main__":
    raise SystemExit(run(parse(), MEASURED, report.DOCUMENT))
