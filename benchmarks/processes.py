"""CPU and memory of a driver and every process that Ray started for it."""

from __future__ import annotations

import contextlib

import psutil

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


def family(root: int) -> list[psutil.Process]:
    """``root`` and its descendants: for a local Ray these are the GCS, the raylet, its agents and all workers."""
    try:
        parent = psutil.Process(root)
        return [parent, *parent.children(recursive=True)]
    except _GONE:
        return []


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time used so far, children that have ended and been waited for included: a worker that ends between two
    looks moves from its own figure to its parent's, and the sum stays right."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(*_GONE):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def cpu_by_name(processes: list[psutil.Process]) -> dict[str, float]:
    """The same, for each kind of process."""
    named: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(*_GONE):
            name = _kind(process)
            named[name] = named.get(name, 0.0) + cpu_seconds([process])
    return named


def rss_bytes(pid: int) -> int:
    """Resident set of one process."""
    return int(psutil.Process(pid).memory_info().rss)


def uss_bytes(pid: int) -> int:
    """Memory that would be freed if the process ended now."""
    return int(psutil.Process(pid).memory_full_info().uss)


def _kind(process: psutil.Process) -> str:
    title = " ".join(process.cmdline()[:6])
    for mark, name in (
        ("ray::IDLE", "idle workers"),
        ("ray::", "actor"),
        ("default_worker.py", "idle workers"),
        ("gcs_server", "gcs"),
        ("raylet/raylet", "raylet"),
        ("agent", "agents"),
        ("log_monitor", "log monitor"),
        ("monitor", "monitor"),
        ("benchmarks", "driver"),
    ):
        if mark in title:
            return name
    return "other"
