"""``python -m benchmarks [NAME ...]``: without a name, those that take a quarter of an hour together.

Prints what each measured as it ends and one table of all at the end, or with ``--json`` one JSON object; exits 1 when a limit is passed.
``--mock-command`` names other servers than the bundled demo: a command that prints, as its first line, one URL for both sides or
``{"shop": URL, "model": URL}``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

from benchmarks import inflight, memory, overhead, peers, shards, soak, startup, tail
from benchmarks.experiment import REPOSITORY, Figure, table

_MEASURED: dict[str, ModuleType] = {
    "startup": startup,
    "overhead": overhead,
    "memory": memory,
    "tail": tail,
    "inflight": inflight,
    "shards": shards,
    "soak": soak,
    "peers": peers,
}
NAMES = ("resume", *_MEASURED)
ALL = ("startup", "resume", "overhead", "memory", "shards", "tail", "inflight")
"""Without a name, and ``peers`` where a command is given: the soak takes its time, and the widest wave of ``tail``."""
_RESUME_S = 900.0


def resume() -> dict[str, Any]:
    """``benchmarks/resume.py`` in a process of its own; it measures its own memory."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.resume"], cwd=REPOSITORY, capture_output=True, text=True, timeout=_RESUME_S, check=False
    )
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(f"benchmarks.resume ended with {done.returncode}:\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def _figures_of_resume(result: dict[str, Any]) -> list[Figure]:
    name = f"resume: {result['lines']} lines"
    return [
        Figure(f"{name}, s with receipts", f"{result['with_receipts_s']:.2f}", "", "", "2"),
        Figure(f"{name}, s without", f"{result['without_s']:.2f}", "", "", "20"),
        Figure(f"{name}, MB", f"{result['rss_mb']:.0f}", "", "", "150"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: {', '.join(ALL)}")
    parser.add_argument("--mock-command", default=None, help="start these servers in place of the demo")
    parser.add_argument("--json", action="store_true")
    for module in _MEASURED.values():
        module.add_arguments(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: give {', '.join(NAMES)}")
    if "peers" in options.names and not options.peer_command:
        parser.error("peers needs --peer-command")
    if not options.names:
        options.wave = options.wave or tail.WAVES[:2]
        options.seconds = min(options.seconds, 30.0)
    out = sys.stderr if options.json else sys.stdout
    results: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = [("benchmark", "measured", "floor or first", "ratio or growth", "limit", "")]
    for name in options.names or (*ALL, *(["peers"] if options.peer_command else [])):
        result = results[name] = resume() if name == "resume" else _MEASURED[name].measure(options)
        figures = _figures_of_resume(result) if name == "resume" else _MEASURED[name].figures(result)
        rows += [(*figure, "" if result["within_limits"] else "a limit is passed") for figure in figures]
        print(table(figures) if name == "resume" else _MEASURED[name].show(result), end="\n\n", flush=True, file=out)
    print(table(rows), file=out)
    if options.json:
        print(json.dumps(results))
    return 0 if all(result["within_limits"] for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
