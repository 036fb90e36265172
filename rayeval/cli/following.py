"""What ``submit`` and ``logs`` have in common: following a job from a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Annotated, Optional

import typer

from rayeval.cli.output import PipeClosedError, stdout_to_nowhere, visible, write_error, write_json
from rayeval.schemas import JsonObject

if TYPE_CHECKING:
    from rayeval.following import JobEnd
    from rayeval.job_server import JobServer

AddressOption = Annotated[
    Optional[str],  # noqa: UP045  typer reads the annotation at run time
    typer.Option("--address", metavar="URL", help="The cluster's job server (its dashboard); default: RAY_API_SERVER_ADDRESS."),
]
PatienceOption = Annotated[
    float, typer.Option("--patience", metavar="S", min=1.0, help="How long the job server may be silent before following ends with 5.")
]


class Hiding:
    """Takes secrets out of a text that comes in pieces: a secret may lie across two. What may be the beginning of one is held back."""

    def __init__(self, secrets: Iterable[str]) -> None:
        from rayeval.models._secrets import SHORTEST_SECRET

        self._secrets = sorted((secret for secret in secrets if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)
        self._kept = ""

    def hidden(self, text: str) -> str:
        """A whole text."""
        from rayeval.models._secrets import REDACTED

        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def feed(self, piece: str) -> str:
        """-> what can be shown by now."""
        text = self.hidden(self._kept + piece)
        held = max((n for secret in self._secrets for n in range(1, len(secret)) if text.endswith(secret[:n])), default=0)
        self._kept = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back, at the end: it was no secret."""
        kept, self._kept = self._kept, ""
        return kept


def follow_job(
    address: str, submission_id: str, *, patience_s: float, log_to: IO[str], tail: int | None = None, secrets: Iterable[str] = ()
) -> JobEnd:
    """Print a job's log until it ends, without ``secrets``. -> its end.

    Ctrl-C leaves the job alone (KeyboardInterrupt, after saying how to come back).
    Raises UnknownJobError, StoppedError, InputError as ``Follower.follow`` does.
    """
    from rayeval.exceptions import StoppedError
    from rayeval.following import Follower
    from rayeval.job_server import JobServer, known_token
    from rayeval.submission import follow_command, stop_command

    hiding = Hiding(secrets)

    def write(text: str) -> None:
        put(hiding.feed(text))

    def put(text: str) -> None:
        try:
            log_to.write(visible(text))
            log_to.flush()
        except BrokenPipeError as error:
            if log_to is sys.stdout:
                stdout_to_nowhere()
            raise PipeClosedError from error

    async def go() -> JobEnd:
        async with JobServer(address, known_token()) as server:
            await _greeted(server, patience_s)
            follower = Follower(server, submission_id, write, lambda text: write_error(f"note: {text}"), patience_s=patience_s, tail=tail)
            try:
                return await follower.follow()
            finally:
                put(hiding.rest())

    back = f"come back: {follow_command(submission_id, address)}"
    try:
        end = asyncio.run(go())
        return end._replace(reason=hiding.hidden(end.reason) if end.reason else None)
    except KeyboardInterrupt:
        write_error(f"\ndetached: {submission_id} goes on\n  {back}\n  stop it: {stop_command(submission_id, address)}")
        raise
    except PipeClosedError:
        write_error(f"nobody reads any more: {submission_id} goes on\n  {back}\n  stop it: {stop_command(submission_id, address)}")
        raise
    except StoppedError as error:
        raise StoppedError(f"{error}; {back}") from error


async def _greeted(server: JobServer, patience_s: float) -> None:
    """``greet``, for as long as the server may be silent: whoever comes back may find a dashboard that is just starting."""
    import time

    from rayeval.job_server import ServerSilentError

    until = time.monotonic() + patience_s
    while True:
        try:
            await server.greet()
            return
        except ServerSilentError:
            if time.monotonic() >= until:
                raise
            await asyncio.sleep(1.0)


def end_job(end: JobEnd, answer: JsonObject, as_json: bool) -> int:
    """Tell a job's end. -> its exit code."""
    if end.reason is not None:
        write_error(f"{answer['submission_id']}: {end.status.lower()}: {end.reason}")
    if as_json:
        write_json({**answer, "status": end.status, "exit_code": end.exit_code, "reason": end.reason})
    return end.exit_code
