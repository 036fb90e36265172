"""Start the demo servers as a process of their own, and be sure that they end.

The child runs in a session of its own, so that a Ctrl-C meant for the driver does not reach it, and it exits when its
standard input ends: the pipe is held here and the kernel closes it however this process dies. A SIGTERM to the whole
process tree (``ray job stop``, a service manager) leaves it running: the driver drains, then closes the pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import IO, Any

import orjson

from rayeval.demo.options import DemoOptions
from rayeval.exceptions import StoppedError

START_S = 20.0
CLOSE_S = 5.0


class DemoServers:
    """Running demo servers. Use as a context manager, or call ``close``."""

    def __init__(self, process: subprocess.Popen[bytes], shop_url: str, model_url: str) -> None:
        self.shop_url = shop_url
        """Base URL of the environment."""
        self.model_url = model_url
        """Base URL for OpenAI clients, ``/v1`` included."""
        self.pid = process.pid
        self._process = process
        self._closing = threading.Lock()

    def __enter__(self) -> DemoServers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Close the pipe and wait; after ``timeout_s`` the process is killed. Idempotent, from any thread."""
        with self._closing:
            _end(self._process, timeout_s)


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout_s)
    if process.stdout is not None:
        process.stdout.close()


def _first_line(process: subprocess.Popen[bytes], stdout: IO[bytes], timeout_s: float) -> bytes:
    """The child's first line; what came so far when it ended or the time was up."""
    deadline = time.monotonic() + timeout_s
    got = b""
    while b"\n" not in got:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stdout], [], [], left)[0]:
            break
        chunk = os.read(stdout.fileno(), 4096)
        if not chunk:
            break
        got += chunk
    return got


def start_demo(*, timeout_s: float = START_S, **options: Any) -> DemoServers:
    """Start both servers; ``options`` are the fields of ``DemoOptions``.

    Raises ConfigurationError for a bad value, TypeError for an unknown name, and StoppedError, with what the servers
    wrote, when they do not listen within ``timeout_s``.
    """
    asked = DemoOptions(**{**options, "exit_with_stdin": True, "ignore_sigterm": True})
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rayeval.demo", *asked.argv()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = _first_line(process, process.stdout, timeout_s)
            urls = orjson.loads(line)
            return DemoServers(process, urls["shop"], urls["model"])
        except (ValueError, KeyError):
            _end(process, CLOSE_S)
            errors.seek(0)
            said = errors.read()[-2000:].decode(errors="replace").strip()
            reason = said or f"nothing was said within {timeout_s:g} s"
            raise StoppedError(f"the demo servers did not start (exit code {process.returncode}): {reason}") from None
        except BaseException:
            _end(process, CLOSE_S)
            raise
