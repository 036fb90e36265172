"""The deadlines an environment keeps, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rayeval.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class EnvironmentTimeouts:
    """Handed to every environment by ``load_environment``."""

    reset_timeout_s: float = 120.0
    """How long a caller waits for a slot; the request itself lives on in the reaper."""
    step_timeout_s: float = 30.0
    """One interact, terminate or health check, from the connection to the last byte."""
    release_timeout_s: float = 15.0
    """All tries of one release together."""
    drain_timeout_s: float = 15.0
    """How long ``aclose`` waits for resets that nobody awaits and for releases under way."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise ConfigurationError(f"execution.{item.name}", value, "give a number of seconds above 0")
