"""Whether anything listens where a configuration points, before a thousand episodes find out."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from rayeval.config import Config
from rayeval.exceptions import EndpointsOutError

_CONNECT_S = 5.0


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
