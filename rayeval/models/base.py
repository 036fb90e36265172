"""The seam to a model: one conversation turn in, one ``ModelOutput`` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rayeval.schemas import JsonObject, ModelOutput


@dataclass(slots=True)
class ModelRequest:
    """One turn. ``messages`` are JSON bytes, one a message, appended to as the conversation grows and never rebuilt."""

    messages: Sequence[bytes]
    """Each message as encoded JSON, in order."""
    tools: Sequence[JsonObject]
    """Function tools offered in this turn."""
    seed: int
    """Step seed."""
    deadline: float
    """``time.monotonic()`` value after which no attempt may run or wait (the episode's deadline)."""
    tools_json: bytes | None = None
    """``tools`` encoded, when the caller has it."""
    context: dict[str, Any] = field(default_factory=dict)
    """For scripted models and logs; never sent."""


@runtime_checkable
class ChatModel(Protocol):
    """A model client. One instance serves many episodes at once; it holds no conversation."""

    def identity(self) -> JsonObject:
        """What enters the plan and the trace's ``provenance.model``. Never the API key."""
        ...

    async def generate(self, request: ModelRequest, endpoint: str | None = None) -> ModelOutput:
        """One answer from ``endpoint`` (one of the configured base URLs; None: the first).

        Protocol errors and policy failures are part of the output. Raises ModelCallError when no usable HTTP answer came, and lets
        CancelledError pass.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; idempotent."""
        ...
