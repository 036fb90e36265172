"""What an actor's process printed last, out of Ray's own log files: the only words of one that crashed.

Read where the driver can see the file (same machine, same session), else asked of the cluster's state API, which needs its dashboard.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path

from actors.messages import ActorInfo

TAIL_BYTES = 64 << 10
TAIL_LINES = 400
_ASK_S = 10
_MARKS = re.compile(r"^:(job_id|actor_name|task_name):.*\n?", re.MULTILINE)
"""Lines by which Ray's log monitor knows whose output it reads."""
_PID = re.compile(r"^\s*pid: (\d+)\s*$", re.MULTILINE)
_IP = re.compile(r"^\s*ip: (\S+)\s*$", re.MULTILINE)


def last_output(info: ActorInfo | None, error: BaseException | None) -> str | None:
    """-> the end of its stderr and stdout, each under a heading; None when nothing was printed or nothing can be read.

    ``error``: Ray's error about its death names the process of an actor that died before it had said where it lives.
    """
    pid = info.pid if info is not None else _found(_PID, error)
    if pid is None:
        return None
    if info.host == platform.node() if info is not None else _found(_IP, error) == _own_ip():
        parts = list(_local(int(pid)))
        if parts:
            return "".join(parts)
    if info is not None:
        return "".join(_remote(info)) or None
    return None


def _found(pattern: re.Pattern[str], error: BaseException | None) -> str | None:
    while error is not None:
        found = pattern.search(str(error))
        if found is not None:
            return found[1]
        error = error.__cause__
    return None


def _own_ip() -> str | None:
    import ray

    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else None  # type: ignore[no-untyped-call]


def _local(pid: int) -> Iterator[str]:
    import ray
    from ray._private.worker import _global_node  # the session's directory is in no public interface

    if _global_node is None or not ray.is_initialized():
        return
    logs = Path(_global_node.get_logs_dir_path())
    for suffix, name in (("err", "stderr"), ("out", "stdout")):
        # the name holds a worker, a job and a pid; a worker that was started ahead of its job names none. A pid given anew: the newest
        for path in sorted(logs.glob(f"worker-*-{pid}.{suffix}"), key=lambda path: path.stat().st_mtime)[-1:]:
            yield from _part(name, _tail(path))


def _remote(info: ActorInfo) -> Iterator[str]:
    from ray.util.state import get_log

    for suffix, name in (("err", "stderr"), ("out", "stdout")):
        pieces = get_log(node_id=info.node_id, pid=info.pid, suffix=suffix, tail=TAIL_LINES, timeout=_ASK_S)
        yield from _part(name, "".join(pieces)[-TAIL_BYTES:])


def _part(name: str, text: str) -> Iterator[str]:
    words = _MARKS.sub("", text).strip("\n")
    if words.strip():
        yield f"--- last {name} of the process ---\n{words}\n"


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
