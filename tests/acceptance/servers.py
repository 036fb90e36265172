"""Servers that a run is held against: the project's own demo, or any mock with the same flags and the same ``/stats``."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import httpx

from rayeval.demo import DemoServers, start_demo

JsonObject = dict[str, Any]
FAULTY = {"fault_malformed": 0.02, "fault_length": 0.02}
"""What a model does wrong: it stands in the traces, and the hash with it."""
REFUSING = {"fault_429": 0.05, "fault_500": 0.05}
"""What a server does wrong: tried again, and in no hash."""


class Servers(AbstractContextManager["Servers"]):
    """A model server and an environment server with counters."""

    model_url: str
    shop_url: str

    def stats(self) -> JsonObject:
        """``{"model": {...}, "env": {...}}``; a counter that was never hit may be absent."""
        answer: JsonObject = httpx.get(f"{self.shop_url}/stats", timeout=10.0).json()
        return answer

    def count(self, side: str, name: str) -> int:
        """One counter, 0 when it was never hit."""
        return int(self.stats()[side].get(name, 0))

    def reset(self) -> None:
        """Counters and refusals from the start; leases stay."""
        httpx.post(f"{self.shop_url}/stats/reset", timeout=10.0).raise_for_status()


class DemoPair(Servers):
    """The bundled demo servers. Options are words of the command line: ``--slots 64`` is ``slots=64``."""

    def __init__(self, **options: Any) -> None:
        self._demo: DemoServers = start_demo(**options)
        self.model_url, self.shop_url = self._demo.model_url, self._demo.shop_url
        self.pid = self._demo.pid

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._demo.close()


class ExternalMock(Servers):
    """One process that serves both sides on one port and prints its URL first; ``command`` starts it."""

    def __init__(self, command: str, **options: Any) -> None:
        if "slots" in options:
            options["env_slots"] = options.pop("slots")
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [*shlex.split(command), "--port", "0", *words], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.shop_url = self._process.stdout.readline().strip()
        if not self.shop_url.startswith("http"):
            self._process.kill()
            raise RuntimeError(f"the mock printed no URL but {self.shop_url!r}")
        self.model_url = f"{self.shop_url}/v1"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(10.0)


class StartServers(Protocol):
    """Starts a pair with options named as the demo names them (``slots``, ``env_latency``, ``fault_429`` ...)."""

    def __call__(self, **options: Any) -> Servers: ...


def external(command: str) -> StartServers:
    """Starter of an external mock."""

    def start(**options: Any) -> Servers:
        return ExternalMock(command, **options)

    return start
