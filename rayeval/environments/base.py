"""The seam to an environment: a factory that opens single-use episodes.

An environment of one's own implements ``Environment`` and is named by its dotted path (``environment.kind: my_pkg.MyEnv``);
``docs/environments.md`` shows one in 40 lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from rayeval.schemas import EpisodeJob, JsonObject, Lease, ServerCapacity

LeaseListener = Callable[[str, Lease], None]
"""Called with ``"held"`` as soon as a lease is known and ``"ended"`` once the server no longer counts it; in the event loop,
not awaited."""


@runtime_checkable
class EnvironmentEpisode(Protocol):
    """One episode, used once: reset, steps, an end, close. Results are JSON objects with the keys of docs/environments.md."""

    @property
    def lease(self) -> Lease | None:
        """What is held, from the reset's answer to the release's."""
        ...

    async def reset(self) -> JsonObject:
        """Start the job's task. -> at least ``observation`` (str), ``observation_state`` (object with ``observation_version``,
        ``search_available``, ``actions``), ``task_instruction`` (str); no lease fields, no private fields.

        Raises EnvironmentCallError; after ``reset_timeout_s`` with kind RESET_TIMEOUT, while the request itself is kept by a reaper.
        """
        ...

    async def step(self, action: str) -> JsonObject:
        """Send one canonical action, once. -> ``done`` (bool), ``reward``, ``observation``, ``observation_state``, ...

        Raises EnvironmentCallError.
        """
        ...

    async def terminate(self, reason: str) -> JsonObject:
        """End the episode without a purchase (``action_limit`` or ``generation_length``), once. -> a terminal result.

        Raises EnvironmentCallError.
        """
        ...

    async def close(self) -> None:
        """Release the lease if there is one; idempotent, safe after any error. Raises EnvironmentCallError when the release failed."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A factory for one actor. Built by ``load_environment(config)`` where it is used, never pickled."""

    async def capacity(self) -> Sequence[ServerCapacity]:
        """Ask every server for its slots. Raises EnvironmentCallError naming the server that does not answer."""
        ...

    def identity(self) -> JsonObject:
        """What enters the plan (``adapter``, ``persona``, ``interaction_mode`` ...) and, with the versions seen, the trace."""
        ...

    def open(self, job: EpisodeJob, server: str, on_lease: LeaseListener, guard: Callable[[], None]) -> EnvironmentEpisode:
        """An episode on ``server``. ``guard`` is called right before each request that acts on the server and raises FencedError
        when this process may no longer act."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give back a lease that a dead process held; one that the server no longer knows counts as given back.

        Raises EnvironmentCallError.
        """
        ...

    async def release_all(self, server: str) -> None:
        """Give back every lease of ``server``, whoever holds it; only called under ``exclusive_environment``.

        Raises EnvironmentCallError.
        """
        ...

    def pending_resets(self, server: str) -> int:
        """Resets sent to ``server`` that nobody awaits any more and that are not answered yet; each still counts as a slot taken."""
        ...

    async def aclose(self) -> None:
        """Wait a bounded time for resets that nobody awaits any more, release them, close connections; idempotent."""
        ...
