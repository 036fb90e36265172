"""Environments: the protocol, the ShopSimulator adapter, a fake for tests, and the way from a configuration to one of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rayeval.environments.base import Environment, EnvironmentEpisode, LeaseListener
from rayeval.environments.fake import FakeCall, FakeEnvironment
from rayeval.environments.shopsimulator import ShopSimulator
from rayeval.environments.timeouts import EnvironmentTimeouts
from rayeval.exceptions import ConfigurationError
from rayeval.transport import AiohttpTransport

if TYPE_CHECKING:
    from rayeval.config import Config

__all__ = [
    "Environment",
    "EnvironmentEpisode",
    "EnvironmentTimeouts",
    "FakeCall",
    "FakeEnvironment",
    "LeaseListener",
    "ShopSimulator",
    "load_environment",
]


def load_environment(config: Config, persona: bool, servers: Sequence[str]) -> Environment:
    """The environment of a configuration, on ``servers`` (the resolved base URLs).

    ``environment.kind`` is ``shopsimulator`` or the dotted path of a class that is called as ``MyEnv(base_urls=[...], persona=...,
    options={...}, timeouts=EnvironmentTimeouts(...))``. Raises ConfigurationError when the path leads to no such class.
    """
    execution = config.execution
    timeouts = EnvironmentTimeouts(reset_timeout_s=execution.reset_timeout_s, step_timeout_s=execution.step_timeout_s)
    kind = config.environment.kind
    if kind == "shopsimulator":
        transport = AiohttpTransport(trust_env=execution.trust_env)
        return ShopSimulator(servers, transport=transport, persona=persona, timeouts=timeouts)
    module_name, _, name = kind.rpartition(".")
    if not module_name:
        raise ConfigurationError("environment.kind", kind, "give 'shopsimulator' or the dotted path of a class, such as my_pkg.MyEnv")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError("environment.kind", kind, f"give the dotted path of a class that can be imported ({error})") from error
    if not callable(factory):
        raise ConfigurationError("environment.kind", kind, f"{name} is no class; give the dotted path of one")
    try:
        environment = factory(base_urls=list(servers), persona=persona, options=dict(config.environment.options), timeouts=timeouts)
    except Exception as error:
        hint = f"{name} could not be made ({type(error).__name__}: {error}); docs/environments.md shows what it is called with"
        raise ConfigurationError("environment.kind", kind, hint) from error
    if not isinstance(environment, Environment):
        wanted = ("capacity", "identity", "open", "release", "release_all", "pending_resets", "aclose")
        missing = [n for n in wanted if not hasattr(environment, n)]
        raise ConfigurationError(
            "environment.kind", kind, f"the class has no {', '.join(missing)}; docs/environments.md shows what it needs"
        )
    return environment
