"""A node that is declared dead while its actors live on; by hand ``python -m tests.acceptance.fencing``.

Its raylet is stopped (SIGSTOP), not killed: the actors keep their parent and hear nothing, as behind a network that has come apart. So
time alone ends their right to act: they go on for up to ``fence_s``, then stop, release and exit, and only then are their slots used again.
(After a raylet's SIGKILL an actor ends sooner, for it sees that its parent is gone; ``chaos`` has that.)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from tests.acceptance.chaos import Chaos, bad_run, config_for, servers, shown, three_nodes
from tests.acceptance.findings import Findings, Report


class Stopped(Chaos):
    """One strike: the second node's raylet stands still from a third of the run on."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.plan = [(0.33, self.stop_raylet)]

    def stop_raylet(self) -> None:
        self.kill_raylet(signal.SIGSTOP)


def play(command: str | None, episodes: int, tasks: int, directory: Path) -> tuple[Report, Findings]:
    """-> the report and what was found."""
    log = directory / "requests.log"
    with servers(command, log) as (env, model), three_nodes() as victim:
        chaos = Stopped(env, model, victim, directory)
        try:
            report = bad_run(chaos, config_for(directory, episodes, tasks, env, model), directory / "runs" / "bad")
        finally:
            os.kill(victim.all_processes["raylet"][0].process.pid, signal.SIGCONT)
        found = Findings(report, chaos.notes, directory / "runs" / "bad", log)
        found.exactly_once(episodes)
        found.leases()
        found.deaths(["raylet"])
        found.back_in_time(slack_s=15.0)  # that it stands still is found out later than that it is gone
        found.fenced(left_alive_s=0.5)
        return report, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mock-command", default=None, help="serves both sides on --port; default: the bundled demo servers")
    parser.add_argument("--episodes", type=int, default=600)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fencing-"))
    report, found = play(options.mock_command, options.episodes, options.episodes if options.mock_command else 40, directory)
    print(json.dumps(shown(report, found) | {"directory": str(directory)}))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
