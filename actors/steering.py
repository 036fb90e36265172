"""What steers a run besides its own rules: requests from outside, caps, and the watch over repeats; put together for the engine.

Order: ``Steering`` is made under the run's lock, before anything is started; ``open_to_cluster`` once Ray is there; ``governors`` go into
the pool; ``aclose`` when the pool has ended, so that nobody waits for an answer that cannot come.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.adaptive import Adaptive
from actors.caps import Caps
from actors.control import Control
from actors.control_actor import ClusterMailbox
from actors.duplicates import DuplicateWatch
from actors.governors import Governor
from actors.ledger import Ledger
from rayeval.config import Config
from rayeval.control import ControlRequest
from rayeval.costs import prices_from, tokens_spent
from rayeval.duplicates import should_differ
from rayeval.mailbox import DirectoryMailbox, Mailbox, append_record
from rayeval.plan import Plan
from rayeval.schemas import JsonObject
from rayeval.store import RunDirectory


class Steering:
    """One invocation's."""

    def __init__(self, run_dir: RunDirectory, plan: Plan, config: Config, note: Callable[[str, str], None], started: float) -> None:
        """``started``: monotonic, from which ``max_wall_s`` is counted."""
        self._run_dir, self._plan, self._config, self._note = run_dir, plan, config, note
        self._started = started
        self._directory = DirectoryMailbox(run_dir)
        self._cluster: ClusterMailbox | None = None
        self._unwritable = False
        self._directory.open()
        self.caps = Caps()

    def read_caps(self, resuming: bool) -> None:
        """Take the caps from the configuration. ``resuming``: earlier invocations have left traces, whose tokens count too.

        Raises RefusedError when these have used up a cap.
        """
        execution = self._config.execution
        capped = execution.max_tokens_total is not None or execution.max_cost is not None
        self.caps = Caps(
            max_tokens_total=execution.max_tokens_total,
            max_cost=execution.max_cost,
            max_wall_s=execution.max_wall_s,
            prices=prices_from(execution.prices.model_dump() if execution.prices else None),
            before=None if resuming and not capped else tokens_spent(self._run_dir) if resuming else {},
            started=self._started,
        )
        self.caps.refuse_if_reached()

    def open_to_cluster(self) -> None:
        """Take requests over the cluster too. Called in the driver's loop."""
        self._cluster = ClusterMailbox(self._run_dir.name, self._note)

    def governors(self, ledger: Ledger, adaptive: Adaptive | None) -> list[Governor]:
        """``adaptive``: what ``execution.concurrency: auto`` follows, which a request may bound."""
        boxes: list[tuple[str, Mailbox]] = [("directory", self._directory)]
        if self._cluster is not None:
            boxes.append(("cluster", self._cluster))
        set_most = None if adaptive is None else lambda slots: setattr(adaptive, "most", slots)
        chosen: list[Governor] = [Control(self._plan, self.caps, boxes, self._record, set_most), self.caps]
        if should_differ(self._plan):
            watch = DuplicateWatch()
            ledger.on_counted.append(watch.counted)
            chosen.append(watch)
        return chosen

    def publish(self, status: JsonObject) -> None:
        """Let the cluster know how far the run is. Never waits."""
        if self._cluster is not None:
            self._cluster.publish(status)

    async def farewell(self, status: JsonObject) -> None:
        """Tell whoever watches over the cluster how the run ended. Bounded; raises nothing."""
        if self._cluster is not None:
            await self._cluster.farewell(status)

    def close(self) -> None:
        """Refuse what came in after ``aclose``; the last step before the lock is given back."""
        self._directory.close()
        if self._cluster is not None:
            self._cluster.kill()

    async def aclose(self) -> None:
        """Refuse what waits; who watches over the cluster may go on. Bounded; raises nothing."""
        self._directory.close()
        if self._cluster is not None:
            await self._cluster.aclose()

    def _record(self, request: ControlRequest, reply: JsonObject, via: str) -> None:
        try:
            append_record(self._run_dir, request, reply, via)
        except OSError as error:
            if not self._unwritable:
                self._unwritable = True
                self._note(
                    "warning", f"{self._run_dir.control_log.name} cannot be written ({error.strerror}); requests are obeyed all the same"
                )
