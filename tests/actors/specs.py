"""Actor specs of the fake world."""

from __future__ import annotations

from typing import Any

from actors.messages import ActorSpec
from rayeval.schemas import EnvironmentIdentity
from tests.actors.plans import SHOP


def spec(config: dict[str, Any] | None = None, **changes: Any) -> ActorSpec:
    """``config``: ``Config.model_dump(mode="json")``."""
    given: dict[str, Any] = {
        "actor_id": "1-actor-001",
        "config": config or {},
        "system_prompt": "Shop.",
        "skill_bank": None,
        "persona": False,
        "provenance": {"plan_fingerprint": "f"},
        "servers": (SHOP,),
        "endpoints": ("http://model.invalid/v1",),
        "slots": 4,
        "fence_s": 30.0,
        "resets_per_s": 10_000.0,
        "pinned": EnvironmentIdentity(),
    }
    return ActorSpec(**{**given, **changes})
