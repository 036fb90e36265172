"""``python -m benchmarks [overhead|memory|resume|startup ...]``: without a name, all of them.

Prints one table each, or with ``--json`` one JSON object; exits 1 when a limit is passed. ``--mock-command`` names other servers than the
bundled demo: a command that prints, as its first line, one URL for both sides or ``{"shop": URL, "model": URL}``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

from benchmarks import memory, overhead, startup
from benchmarks.experiment import REPOSITORY, table

NAMES = ("startup", "resume", "overhead", "memory")
_MEASURED: dict[str, ModuleType] = {"startup": startup, "overhead": overhead, "memory": memory}
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


def _show_resume(result: dict[str, Any]) -> str:
    return table(
        [
            ("resume", "lines", "with receipts, s", "without, s", "memory, MB", "limits"),
            (
                "",
                str(result["lines"]),
                f"{result['with_receipts_s']:.2f}",
                f"{result['without_s']:.2f}",
                f"{result['rss_mb']:.0f}",
                "2 s, 20 s, 150 MB",
            ),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--mock-command", default=None, help="start these servers in place of the demo")
    parser.add_argument("--json", action="store_true")
    for module in _MEASURED.values():
        module.add_arguments(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: give {', '.join(NAMES)}")
    results: dict[str, Any] = {}
    for name in options.names or NAMES:
        if name == "resume":
            results[name] = resume()
            text = _show_resume(results[name])
        else:
            results[name] = _MEASURED[name].measure(options)
            text = _MEASURED[name].show(results[name])
        print(text, end="\n\n", flush=True, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(results))
    return 0 if all(result["within_limits"] for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
