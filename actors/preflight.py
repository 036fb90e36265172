"""Whether anything listens where a configuration points, before a thousand episodes find out."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import NoReturn
from urllib.parse import urlsplit

from rayeval.config import Config
from rayeval.environments import load_environment
from rayeval.exceptions import ConnectFailedError, EndpointsOutError
from rayeval.models import load_model
from rayeval.transport import FakeTransport

_CONNECT_S = 5.0


def check_classes(config: Config, persona: bool) -> None:
    """Make model and environment once and throw them away: a missing API key or a class that cannot be made is told before anything
    starts. Raises ConfigurationError."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look there by itself
    nowhere = ("http://127.0.0.1:9/v1",)
    load_model(config, nowhere, FakeTransport(_no_answer))
    load_environment(config, persona, nowhere)


async def _no_answer(*_: object, **__: object) -> NoReturn:
    raise ConnectFailedError("nothing is called here")


async def reach_all(config: Config, servers: tuple[str, ...], endpoints: tuple[str, ...]) -> None:
    """Raises EndpointsOutError when no URL of a kind answers; what the URLs of a user's own class mean is its affair."""
    if config.model.provider == "openai_chat":
        await _reach_any("model.base_url", endpoints)
    if config.environment.kind == "shopsimulator":
        await _reach_any("environment.base_url", servers)


async def _reach_any(field_name: str, urls: tuple[str, ...]) -> None:
    answers = await asyncio.gather(*(_reach(field_name, url) for url in urls), return_exceptions=True)
    if all(isinstance(answer, EndpointsOutError) for answer in answers):
        for answer in answers:
            if isinstance(answer, EndpointsOutError):
                raise answer


async def _reach(field_name: str, url: str) -> None:
    """Whether anything listens at a URL, before a thousand episodes find out. Raises EndpointsOutError."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        raise EndpointsOutError(f"{field_name} = {url!r}: nothing answers there ({why}); start the server or give its URL") from error
    writer.close()
