"""``leases.jsonl``: which environment leases the run's actors hold, and which actors there are.

Written by the driver from its event loop, one short append for each change, without fsync: it must survive the
driver's process, not a power cut (servers do not survive that either). Mode 0600, because a lease id is the right to
act on a slot; no lease id leaves this file by an error text or a repr.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rayeval.schemas import JsonObject, Lease
from rayeval.store._files import write_all, write_error

SEEN_EVERY_S = 5.0


class LeaseJournal:
    """Appends to a journal. Raises StoreWriteError on a failed write; the journal stays usable, since ended leases
    should be told.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._seen: dict[str, float] = {}
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(self._fd, 0o600)
            size = os.fstat(self._fd).st_size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        except OSError as cause:
            raise write_error(self._path, "opening the lease journal", cause) from cause

    def actor(self, actor_id: str, node_id: str, host: str, boot_id: str, pid: int, start_time: float) -> None:
        """An actor is there. ``start_time``: Unix time at which its process began."""
        self._append(
            {"kind": "actor", "actor": actor_id, "node": node_id, "host": host, "boot_id": boot_id, "pid": pid,
             "start_time": start_time, "at": time.time()}
        )  # fmt: skip

    def actor_gone(self, actor_id: str) -> None:
        """The actor's process is known to be gone, or fenced."""
        self._seen.pop(actor_id, None)
        self._append({"kind": "gone", "actor": actor_id, "at": time.time()})

    def held(self, actor_id: str, lease: Lease) -> None:
        """A server gave the actor a slot."""
        self._append({"kind": "held", "actor": actor_id, "lease": list(lease)})

    def ended(self, actor_id: str, lease: Lease) -> None:
        """The server no longer counts the lease."""
        self._append({"kind": "ended", "actor": actor_id, "lease": list(lease)})

    def changed(self, actor_id: str, changes: Sequence[tuple[str, Lease]]) -> None:
        """Several ``held`` and ``ended`` in their order, in one write."""
        self._append(*({"kind": event, "actor": actor_id, "lease": list(lease)} for event, lease in changes))

    def seen(self, actor_id: str) -> None:
        """The actor answered just now; written at most every ``SEEN_EVERY_S`` for each actor."""
        now = time.monotonic()
        if now - self._seen.get(actor_id, -SEEN_EVERY_S) >= SEEN_EVERY_S:
            self._seen[actor_id] = now
            self._append({"kind": "seen", "actor": actor_id, "at": time.time()})

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, *records: JsonObject) -> None:
        if self._fd < 0:
            raise RuntimeError("the lease journal is closed")
        lines = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
        if self._torn:
            lines = b"\n" + lines
        try:
            before = os.fstat(self._fd).st_size
            try:
                write_all(self._fd, lines)
            except OSError:
                self._torn = True
                with suppress(OSError):
                    os.ftruncate(self._fd, before)
                raise
        except OSError as cause:
            raise write_error(self._path, "appending to the lease journal", cause) from cause
        self._torn = False


@dataclass(slots=True)
class JournalActor:
    """An actor as the journal knows it."""

    actor_id: str
    node_id: str
    host: str
    boot_id: str
    pid: int
    start_time: float
    last_seen: float
    """Unix time of its last sign of life. Wall clock: compare with ``time.time()``, and add the fence."""
    gone: bool = False


@dataclass(slots=True)
class JournalState:
    """What a journal adds up to."""

    actors: dict[str, JournalActor] = field(default_factory=dict)
    held: dict[tuple[str, str], tuple[str, Lease]] = field(default_factory=dict, repr=False)
    """(Server, lease id) -> (actor id, lease), for leases that did not end."""
    bad_lines: int = 0

    def held_by(self, actor_id: str) -> list[Lease]:
        """The leases of one actor."""
        return [lease for owner, lease in self.held.values() if owner == actor_id]


def load_journal(path: Path) -> JournalState:
    """Read a journal; a missing file is an empty state, a torn or foreign line is counted and passed over. Raises
    OSError.
    """
    state = JournalState()
    with suppress(FileNotFoundError), Path(path).open("rb") as file:
        for raw in file:
            if raw.isspace():
                continue
            try:
                _apply(state, orjson.loads(raw))
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                state.bad_lines += 1
    return state


def _apply(state: JournalState, record: Any) -> None:
    kind, actor_id = record["kind"], record["actor"]
    if kind == "held" or kind == "ended":
        server, env_idx, lease_id = record["lease"]
        if not all(isinstance(text, str) for text in (actor_id, server, lease_id)):
            raise TypeError(kind)
        if kind == "held":
            state.held[server, lease_id] = (actor_id, Lease(server, env_idx, lease_id))
        else:
            state.held.pop((server, lease_id), None)
    elif kind == "seen":
        if actor_id in state.actors:
            state.actors[actor_id].last_seen = float(record["at"])
    elif kind == "actor":
        state.actors[actor_id] = JournalActor(
            actor_id, record["node"], record["host"], record["boot_id"], int(record["pid"]),
            float(record["start_time"]), float(record["at"]),
        )  # fmt: skip
    elif kind == "gone":
        if actor_id in state.actors:
            state.actors[actor_id].gone = True
    else:
        raise ValueError(kind)
