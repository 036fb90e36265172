"""Sending a job to a cluster, through Ray's own client: it packs and uploads the working directory, once for each content.

Ray's client has no deadlines, so it works in a thread that may be left behind. What became of a submit whose answer was lost is asked of
the cluster: ``rayeval_submission`` in the job's metadata tells our submit from another one that took the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayeval.exceptions import InputError, RayevalError, StoppedError
from rayeval.job_server import JobServer, UnknownJobError
from rayeval.models import Scrubber
from rayeval.submission import AUTH_VARIABLE, JobSpec, taken

SEND_S = 600.0
"""A large working directory on a slow line; Ray takes at most 500 MiB."""


def check_upload(spec: JobSpec, files: Mapping[str, str]) -> None:
    """Raises InputError for a file that Ray leaves out of the upload: ``.gitignore`` and ``.rayignore``, in any directory above it, count
    too, and Ray's own reading of them is the one that matters. ``files``: by the name of what asks for it, relative to ``working_dir``."""
    from ray._private.runtime_env.packaging import _get_excludes, get_excludes_from_ignore_files

    quiet = logging.getLogger("rayeval.upload")  # Ray tells at length which ignore files it has read
    quiet.propagate, quiet.disabled = False, True
    for name, relative in files.items():
        place = spec.working_dir
        rules = [_get_excludes(place, list(spec.excludes))]
        for part in ("", *Path(relative).parts):
            place = place / part
            rules += get_excludes_from_ignore_files(place, include_gitignore=True, logger=quiet)
            if part and any(rule(place) for rule in rules):
                what = place.relative_to(spec.working_dir)
                hint = f"is not uploaded: {what} is named in an ignore file above it; move it, or take it out there"
                raise InputError(name, str(spec.working_dir / relative), hint)


async def send(spec: JobSpec, server: JobServer, files: Mapping[str, str] = MappingProxyType({}), timeout_s: float = SEND_S) -> None:
    """Upload and submit. Returns once the cluster has the job. ``files``: what must be in the upload, as ``check_upload`` takes it.

    Raises RefusedError when another submit took the id first, InputError for a directory that cannot be packed or lacks one of ``files``,
    StoppedError when the cluster did not take the job.
    """
    sent: Future[None] = Future()
    threading.Thread(target=_submit, args=(spec, server, files, sent), daemon=True, name="submit").start()
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.wrap_future(sent)
        return
    except TimeoutError:
        failure: RayevalError = StoppedError(
            f"the job was not taken within {timeout_s:.0f} s by {server.address}; run the same command again"
        )
    except RayevalError:
        raise
    except Exception as error:
        text = _first_line(error, spec)
        if "413" in text and "body size" in text:
            hint = f"is too large for the cluster to take ({text}); give a smaller directory, or name what it does not need in .gitignore"
            raise InputError("--working-dir", str(spec.working_dir), hint) from error
        failure = StoppedError(f"the cluster at {server.address} did not take the job: {text}")
    try:
        found = await server.job(spec.submission_id)
    except UnknownJobError:
        raise failure from None
    if found.metadata.get("rayeval_submission") != spec.metadata["rayeval_submission"]:
        raise taken(spec.submission_id, found.status, server.address) from None


def _submit(spec: JobSpec, server: JobServer, files: Mapping[str, str], sent: Future[None]) -> None:
    try:
        client = _client(server)
        check_upload(spec, files)
        options: dict[str, Any] = {}
        if spec.entrypoint_num_cpus is not None:
            options["entrypoint_num_cpus"] = spec.entrypoint_num_cpus
        if spec.entrypoint_resources is not None:
            options["entrypoint_resources"] = dict(spec.entrypoint_resources)
        client.submit_job(
            entrypoint=spec.entrypoint,
            submission_id=spec.submission_id,
            runtime_env=spec.runtime_env,
            metadata=dict(spec.metadata),
            **options,
        )
    except RayevalError as error:
        _tell(sent, error)
    except ValueError as error:  # what cannot be packed: too large, or no directory
        _tell(sent, InputError("--working-dir", str(spec.working_dir), _first_line(error, spec)))
    except BaseException as error:
        _tell(sent, error)
    else:
        _tell(sent, None)


def _tell(sent: Future[None], error: BaseException | None) -> None:
    """Nobody may be listening any more; the thread's own traceback would then show what the server said, and that repeats the request."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            sent.set_result(None)
        else:
            sent.set_exception(error)


def _client(server: JobServer) -> Any:
    os.environ[AUTH_VARIABLE] = server.auth_mode  # before ray is loaded: it reads this once
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(name, None)  # they would win over the address that was given
    from ray.job_submission import JobSubmissionClient

    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return JobSubmissionClient(server.address)


def _first_line(error: BaseException, spec: JobSpec) -> str:
    """In one line, without the values that were to be sent: a server's error may repeat the request."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "Error" in line), lines[0] if lines else type(error).__name__)
    for value in spec.env.values():
        told = Scrubber(value).text(told)
    return told[:400]
