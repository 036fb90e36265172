"""Models: the ``ChatModel`` seam, the OpenAI-compatible client, a public fake, and ``load_model``.

A model of one's own is a class that is named by its dotted path (``model.provider: my_package.MyModel``) and called as
``MyModel(model=config.model, endpoints=(...), transport=transport, model_attempts=n, model_timeout_s=s)``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayeval.exceptions import ConfigurationError
from rayeval.models._answer import read_answer
from rayeval.models._retry import RETRIED_STATUSES, AttemptObserver, Backoff, retry_after
from rayeval.models._secrets import REDACTED, KeyMark, Scrubber
from rayeval.models.base import ChatModel, ModelRequest
from rayeval.models.openai_chat import OpenAIChat
from rayeval.models.scripted import Answer, Script, ScriptedModel, call, completion, first_offered
from rayeval.transport import HttpTransport

if TYPE_CHECKING:
    from rayeval.config import Config

__all__ = [
    "REDACTED",
    "RETRIED_STATUSES",
    "Answer",
    "AttemptObserver",
    "Backoff",
    "ChatModel",
    "KeyMark",
    "ModelRequest",
    "OpenAIChat",
    "Script",
    "ScriptedModel",
    "Scrubber",
    "call",
    "completion",
    "first_offered",
    "load_model",
    "read_answer",
    "retry_after",
]


def load_model(
    config: Config,
    endpoints: Sequence[str],
    transport: HttpTransport,
    observer: AttemptObserver | None = None,
) -> ChatModel:
    """The configured model, for calls to ``endpoints`` (resolved base URLs) over ``transport``.

    Raises ConfigurationError: no such class, a class that is no ChatModel, a missing API key.
    """
    model, execution = config.model, config.execution
    if model.provider == "openai_chat":
        return OpenAIChat(
            name=model.name,
            endpoints=endpoints,
            transport=transport,
            checkpoint_id=model.checkpoint_id,
            api_key_env=model.api_key_env,
            temperature=model.temperature,
            top_p=model.top_p,
            max_tokens=model.max_tokens,
            send_seed=model.send_seed,
            tool_choice=model.tool_choice,
            extra_body=model.extra_body,
            model_attempts=execution.model_attempts,
            model_timeout_s=execution.model_timeout_s,
            observer=observer,
        )
    if model.provider == "scripted":
        return ScriptedModel(name=model.name, record=False)
    make = _named_class(model.provider)
    try:
        built = make(
            model=model,
            endpoints=tuple(endpoints),
            transport=transport,
            model_attempts=execution.model_attempts,
            model_timeout_s=execution.model_timeout_s,
        )
    except ConfigurationError:
        raise
    except Exception as error:
        hint = f"its object could not be made ({type(error).__name__}: {error})"
        raise ConfigurationError("model.provider", model.provider, hint) from error
    if not isinstance(built, ChatModel):
        raise ConfigurationError("model.provider", model.provider, "its object is no ChatModel: give it identity, generate and aclose")
    return built


def _named_class(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    hint = "give openai_chat, or the dotted path of a class that can be imported here (my_package.MyModel)"
    if not module_name:
        raise ConfigurationError("model.provider", path, hint)
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise ConfigurationError("model.provider", path, f"{hint}; importing failed: {error}") from error
    if not callable(found):
        raise ConfigurationError("model.provider", path, f"{module_name} has no class {name}; {hint}")
    return found
