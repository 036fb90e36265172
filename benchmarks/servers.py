"""The servers a benchmark runs against: the project's demo, or any command that prints its address first."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from rayeval.demo import start_demo

_START_S = 30.0
_ANSWER_S = 30.0


class Servers(NamedTuple):
    """Addresses of one environment and one model server."""

    shop: str
    model: str
    """With its ``/v1``."""
    tasks: int
    """Task ids 0 to ``tasks - 1`` can be run."""

    def request_bytes(self) -> int:
        """Bytes of model requests that the server has read since it started."""
        return int(self.stats()["model"]["request_bytes"])

    def stats(self) -> dict[str, Any]:
        """What the servers counted. Raises OSError."""
        with urllib.request.urlopen(f"{self.shop}/stats", timeout=_ANSWER_S) as answer:
            counted: dict[str, Any] = json.loads(answer.read())
        return counted


@contextlib.contextmanager
def servers(command: str | None, slots: int) -> Iterator[Servers]:
    """Fresh servers. ``command`` prints as its first line either one base URL for both sides, or a JSON object with ``shop`` and
    ``model``; None: the demo with ``slots`` slots."""
    if command is None:
        with start_demo(slots=slots) as demo:
            yield Servers(demo.shop_url, demo.model_url, 40)
        return
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _START_S)
        line = process.stdout.readline().decode().strip() if ready else ""
        if not line:
            raise RuntimeError(f"--mock-command {command!r} printed no address within {_START_S:g} s")
        if line.startswith("{"):
            said = json.loads(line)
            yield Servers(said["shop"], said["model"], 1_000_000)
        else:
            yield Servers(line.rstrip("/"), line.rstrip("/") + "/v1", 1_000_000)
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)


def load_average() -> float:
    """Of the last minute: figures taken beside other work say little."""
    return os.getloadavg()[0]
