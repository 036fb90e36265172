"""Joining or starting a Ray cluster, and leaving it. The only module that calls ``ray.init``."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

import psutil
import ray
from ray._private import auto_init_hook

from actors import drain
from actors.asking import endings_are_sent
from actors.nodes import living_nodes, whole_cpus
from actors.signals import sigterm_passes
from rayeval.exceptions import PlacementError

_ENDINGS_S = 5.0
"""Sending the order to end an actor takes milliseconds, to a head that is there."""
_CONNECT_S = 5.0
RECONNECT_S = 600
"""How long Ray lets this process be without the head before it ends the process. Ray's own 60 are too few for a run to end in order."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OBJECT_STORE_BYTES = 256 << 20
"""Replies are about 1 MB and fetched at once: a few for each actor are ever alive."""


def prepare_environment() -> None:
    """Settings that must stand before Ray starts anything; what the user has set wins.

    Without ``RAY_AUTH_MODE`` a local cluster makes a token file on first use and behaves otherwise from then on.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Ray's own 15 leaves an actor a thirtieth of a core beside any other busy process, and its loop late by seconds
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_S))


class Joined(NamedTuple):
    """What was joined."""

    words: str
    ours: bool
    """Whether this process called ``ray.init`` here, so that it leaves again."""
    private: bool = False
    """Whether no other job can be in it."""


class RayTalk(io.TextIOBase):
    """Takes the place of standard output while Ray is there: Ray prints a coloured paragraph for each dead worker, whatever
    ``log_to_driver`` says, and the pool tells of it in a line of its own. What is printed becomes debug notes."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if words := _COLOURS.sub("", line).strip():
                self._note("debug", words)
        return len(text)


def join(address: str | None, actors: int, *, log_to_driver: bool = False) -> Joined:
    """Join the cluster at ``address`` or ``RAY_ADDRESS``, else start one of this process's own.

    A head that merely runs on this machine is never joined. Raises PlacementError when the cluster does not answer.
    """
    prepare_environment()
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    logging.getLogger("ray").setLevel(logging.ERROR)
    if ray.is_initialized():
        return Joined("the Ray of this process", False)
    if address == "local":
        cpus = max(os.cpu_count() or 1, actors + 1)
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=log_to_driver,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",  # nothing of a local run listens beyond this machine
            )
        except Exception as error:  # whatever kept it from starting is the machine's: files, memory, ports
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise PlacementError(f"Ray could not be started on this machine: {first}") from error
        return Joined(f"a local Ray of {cpus} CPUs", True, private=True)
    _see(address)
    try:
        ray.init(address=address, log_to_driver=log_to_driver, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PlacementError(f"the Ray cluster at {address} cannot be joined: {str(error).splitlines()[0]}") from error
    return Joined(f"the Ray cluster at {address}", True)


def _see(address: str) -> None:
    """Whether anything listens at ``host:port``, for Ray itself tries for minutes. Raises PlacementError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise PlacementError(f"the Ray cluster at {address} cannot be joined: nothing answers there ({error})") from error


def free_cpus() -> int:
    """CPUs that actors may take, at least 1."""
    return max(1, unclaimed_cpus())


def unclaimed_cpus() -> int:
    """Whole CPUs of single nodes that nothing has taken; blocks until the cluster answers."""
    return whole_cpus(living_nodes())


def import_paths() -> tuple[str, ...]:
    """Directories from which a user's classes are imported in this process, for its actors."""
    paths = [p for p in sys.path if p and os.path.isdir(p)]
    with contextlib.suppress(FileNotFoundError):  # on a shared machine a job's working directory may be unpacked anew under its feet
        paths.insert(0, os.getcwd())
    return tuple(dict.fromkeys(paths))


def job_id() -> str | None:
    """Id of the submitted Ray job this process runs in; None outside one."""
    return os.environ.get("RAYEVAL_SUBMISSION_ID") or os.environ.get("RAY_JOB_ID")


def leave(*, wait: bool = False) -> None:
    """End this process's part in the cluster, and the cluster if it was started here; with ``wait``, until its processes have ended."""
    if ray.is_initialized():
        if not endings_are_sent(_ENDINGS_S):
            start_no_other_ray()
        with sigterm_passes():
            ray.shutdown(wait_for_processes=wait)


def start_no_other_ray() -> None:
    """For a thread that hangs in Ray, and goes on once this process has left it: its next call of Ray's would start one, or join one that
    it finds. From now on only ``ray.init`` does. Ray reads the variable for this (RAY_ENABLE_AUTO_CONNECT) once, when it is imported."""
    auto_init_hook.enable_auto_connect = False


def kill_local() -> None:
    """SIGKILL the Ray that this process started, for an end at once. Left to themselves, its agents outlive it by a minute.

    Rollout actors are left, with what they have started: they see that their parent, the raylet, is gone, give back their slots and end,
    as after a SIGKILL of this process (``freshness.py``).
    """
    with contextlib.suppress(psutil.Error):
        this = psutil.Process()
        spared = {process.pid for actor in drain.actors(this) for process in (actor, *_below(actor))}
        for child in this.children():
            if _is_rays(child):
                # looked at before, ended first: a raylet that sees an agent die ends its actors
                family = [child, *child.children(recursive=True)]
                for process in family:
                    if process.pid not in spared:
                        with contextlib.suppress(psutil.Error):
                            process.kill()


def _below(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _is_rays(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(f"{os.sep}ray{os.sep}" in word for word in process.cmdline()[:4])
    return False
