"""The seam between a run and whoever watches it. The command line's displays are in ``rayeval/cli/display.py``."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rayeval.schemas import JsonObject


@runtime_checkable
class RunDisplay(Protocol):
    """Called by the driver, from one thread, never awaited; no method raises for what it cannot show."""

    def start(self, info: JsonObject) -> None:
        """Once, when it is known what there is to do. ``info``: ``run`` (name), ``path``, ``planned``, ``reused`` (completed before),
        ``to_run``, ``failed_before`` (of those to run), ``quarantined``; more keys are welcome."""
        ...

    def update(self, status: JsonObject) -> None:
        """About each second: the content of ``status.json``."""
        ...

    def note(self, level: str, text: str) -> None:
        """Something worth a line. ``level``: debug (for JSON logs alone), info, warning or error."""
        ...

    def event(self, kind: str, event: JsonObject) -> None:
        """One moment of an episode, only for ``--show``: reset, model, action, environment, protocol_error, end."""
        ...

    def end(self, outcome: JsonObject) -> None:
        """Once, last: ``exit_code``, ``reason`` (or null) and the last status. Closes whatever is open."""
        ...


class NoDisplay:
    """Shows nothing: for library use and tests."""

    def start(self, info: JsonObject) -> None: ...

    def update(self, status: JsonObject) -> None: ...

    def note(self, level: str, text: str) -> None: ...

    def event(self, kind: str, event: JsonObject) -> None: ...

    def end(self, outcome: JsonObject) -> None: ...
