"""What becomes of an actor's reply: leases into the journal, finished traces to the ledger, jobs back to the queue. Synchronous.

Invariants: a reply is taken once, whatever order replies come in; a job leaves ``member.jobs`` here by its record or by being given back,
and nowhere else but in the burial of its actor; leases are written down before anything else of a reply is acted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from actors.dealing import Dealer
from actors.dispatch import Dispatcher, Phase
from actors.governors import Admission
from actors.ledger import Ledger
from actors.member import Member, MemberState
from actors.messages import Reply, own_bytes
from actors.queue import JobQueue, Ticket
from rayeval.exceptions import StoreWriteError
from rayeval.schemas import FinishedTrace, Lease
from rayeval.store import LeaseJournal


class Replies:
    """Takes replies for the pool."""

    def __init__(
        self,
        phase: Phase,
        *,
        queue: JobQueue,
        ledger: Ledger,
        dealer: Dealer,
        dispatch: Dispatcher,
        admission: Admission,
        journal: LeaseJournal,
        on_progress: Callable[[bool], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._phase = phase
        self._queue, self._ledger, self._dealer, self._dispatch = queue, ledger, dealer, dispatch
        self._admission, self._journal = admission, journal
        self._on_progress, self._on_fatal = on_progress, on_fatal
        self.left_out: set[str] = set()
        """Episodes cancelled by request: given back they are not run again."""

    def take(self, member: Member, reply: Reply) -> None:
        """Take a reply, and before it those that were sent again with it."""
        for missed in reply.missed:
            self.take(member, missed)
        if not member.took(reply.number):
            return
        if member.state == MemberState.DEAD:
            self._ledger.late += len(reply.records)
            return
        self._take_leases(member, reply)
        results = self._results(member, reply)
        overdue: list[Ticket] = []
        for episode_id in reply.returned:
            held = member.jobs.pop(episode_id, None)
            if held is not None:
                self._dispatch.endpoint_freed(held[1])
                if episode_id in self.left_out:
                    self._queue.leave_out_ticket(held[0])
                elif episode_id in reply.overdue:
                    overdue.append(held[0])
                else:
                    self._queue.give_back(held[0])
        self._dealer.reported(member.actor_id, reply.order, reply.taken)
        if reply.pauses:
            self._dispatch.heard_pauses(reply.pauses)
        member.last = reply
        member.lag_s = max(member.lag_s, reply.lag_s)
        if reply.view is not None:
            member.view, member.view_at = reply.view, time.monotonic()
        if results:
            self._admission.answered()  # also where an environment has no leases to tell of
            self._ledger.commit(results)
            self.leave_out([ticket for ticket, _ in results])
        if overdue:
            self._ledger.commit_overdue(overdue, alone=member.suspect)
        self._on_progress(bool(results))

    def leave_out(self, tickets: Sequence[Ticket]) -> None:
        """A cancelled episode that failed or was lost before it could be stopped would wait for its next attempt."""
        for ticket in tickets:
            if ticket.job.episode_id in self.left_out:
                self._queue.leave_out(ticket.job.episode_id)

    def write_down(self, write: Callable[..., None], *what: object) -> None:
        """A line of the lease journal. A failed one ends the run, yet what is held must still be given back."""
        try:
            write(*what)
        except StoreWriteError as error:
            self._on_fatal(error)

    def _results(self, member: Member, reply: Reply) -> list[tuple[Ticket, FinishedTrace]]:
        results: list[tuple[Ticket, FinishedTrace]] = []
        lines, reply.lines = reply.lines, []  # the last reply of each actor is kept, and what it came in with it
        for record, line in zip(reply.records, lines, strict=True):
            held = member.jobs.get(record.episode_id)
            if held is None or held[0].attempt != record.attempt:
                self._ledger.late += 1
                continue
            del member.jobs[record.episode_id]
            self._dispatch.endpoint_freed(held[1])
            self._dispatch.count_retries(held[1], record.figures.get("model_retries"))
            trace = FinishedTrace(
                record.episode_id, record.attempt, record.status, own_bytes(line), record.error_kind, record.retryable,
                record.figures, record.identity, record.server,
            )  # fmt: skip
            results.append((held[0], trace))
        return results

    def _take_leases(self, member: Member, reply: Reply) -> None:
        changes: list[tuple[str, Lease]] = []
        for event, server, env_idx, lease_id in reply.leases:
            lease = Lease(server, env_idx, lease_id)
            if event == "held":
                self._admission.answered()
                member.held[server, lease_id] = lease
                changes.append((event, lease))
            elif member.held.pop((server, lease_id), None) is not None:
                changes.append((event, lease))
        if changes:
            self.write_down(self._journal.changed, member.actor_id, changes)
        self.write_down(self._journal.seen, member.actor_id)
