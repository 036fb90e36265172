"""The conversation with one actor: one exchange open, a second one only while there is something to say.

Owners and invariants:
* ``serve`` runs in the actor's ``_live`` task of the pool, once in the life of a member; it alone sends orders to it.
* At most two calls are open. A reply is taken at the moment its call ends, and every call is awaited, so that no result waits in a node
  that may die.
* A reply that was lost on the way is asked for again (``Order.resend``); the actor keeps it until it is acknowledged.
Closing rule: ``serve`` returns when the member is no longer given orders or the pool is closing; replies that have come by then are taken,
open calls are cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from actors.dispatch import Dispatcher, Phase
from actors.handles import ActorGoneError, ReplyGoneError
from actors.ledger import Ledger
from actors.member import Member
from actors.messages import Order, Reply
from actors.replies import Replies

_SLACK_S = 60.0
"""An exchange returns after a second or so by itself."""
_AWOKEN_S = 1.0
"""A driver that was stopped finds its time over and the reply at the door."""
FIRST_DISPATCH = "the first jobs are on their way"
"""Debug note at whose moment a run begins its work."""


class Exchanges:
    """Serves every member of a pool."""

    def __init__(
        self,
        phase: Phase,
        *,
        ledger: Ledger,
        dispatch: Dispatcher,
        replies: Replies,
        note: Callable[[str, str], None],
        slack_s: float = _SLACK_S,
    ) -> None:
        self._phase, self._ledger, self._dispatch, self._replies, self._note = phase, ledger, dispatch, replies, note
        self._slack_s = slack_s
        self._dispatched = False

    async def serve(self, member: Member) -> None:
        """Exchange until the member or the pool ends. Raises ActorGoneError and ActorFaultError of ``handles``."""
        calls: list[asyncio.Task[Reply]] = []
        nudge: asyncio.Task[Any] | None = None
        resend = False
        heard = time.monotonic()
        try:
            while member.alive and not self._phase.closing:
                if not calls or (len(calls) < 2 and self._dispatch.news_for(member)):
                    if not calls:
                        heard = time.monotonic()
                    order = self._order_for(member, resend)
                    resend = False
                    calls.append(asyncio.create_task(member.handle.exchange(order)))
                member.nudge.clear()
                nudge = asyncio.create_task(member.nudge.wait())
                left_s = max(0.0, heard + self._slack_s - time.monotonic())  # a nudge is no sign of life
                await asyncio.wait({*calls, nudge}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                nudge.cancel()
                if time.monotonic() >= heard + self._slack_s and not any(c.done() for c in calls):
                    await asyncio.wait(calls, timeout=_AWOKEN_S, return_when=asyncio.FIRST_COMPLETED)
                    if not any(c.done() for c in calls):
                        raise ActorGoneError(f"no reply for {self._slack_s:g} s")
                for call in [c for c in calls if c.done()]:
                    calls.remove(call)
                    heard = time.monotonic()
                    try:
                        reply = call.result()
                    except ReplyGoneError as error:
                        self._note("warning", f"{member.actor_id}: a reply was lost on the way, asking again ({error})")
                        resend = True
                        continue
                    self._replies.take(member, reply)
                await self._ledger.room()
        finally:
            if nudge is not None:
                nudge.cancel()
            for call in calls:
                if call.done() and not call.cancelled() and call.exception() is None and member.alive:
                    self._replies.take(member, call.result())
                call.cancel()

    def _order_for(self, member: Member, resend: bool) -> Order:
        order = self._dispatch.order_for(member, resend)
        if order.assignments and not self._dispatched:
            self._dispatched = True
            self._note("debug", FIRST_DISPATCH)
        return order
