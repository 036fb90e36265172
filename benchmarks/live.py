"""A run of the engine that is looked at while it runs and stopped when enough has been seen."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from benchmarks.experiment import REPOSITORY, last_object
from benchmarks.servers import Servers, servers
from rayeval.demo import start_demo

_END_S = 90.0
T = TypeVar("T")


class LiveRun:
    """One invocation in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path, output: IO[str]) -> None:
        self._process, self._run_dir, self._output = process, run_dir, output

    @property
    def pid(self) -> int:
        """Of the driver."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the driver has not ended."""
        return self._process.poll() is None

    def wait_for_end(self, within_s: float) -> int:
        """-> the exit code of a run that ends by itself. Raises subprocess.TimeoutExpired."""
        return self._process.wait(within_s)

    def kill(self) -> None:
        """SIGKILL of the driver alone: what it started is left to itself."""
        self._process.kill()
        self._process.wait(_END_S)

    def result(self) -> dict[str, Any]:
        """What ``benchmarks.engine_run`` printed, once it has ended. Raises ValueError when it printed no such thing."""
        self._output.seek(0)
        return last_object(self._output.read())

    def status(self) -> dict[str, Any]:
        """``status.json`` as it stands; empty before there is one."""
        with contextlib.suppress(FileNotFoundError):
            said: dict[str, Any] = json.loads((self._run_dir / "status.json").read_text())
            return said
        return {}

    def wait_for(self, look: Callable[[], T | None], within_s: float, every_s: float = 0.25) -> T:
        """What ``look`` gives once it gives something. Raises RuntimeError when the run ends first, TimeoutError."""
        deadline = time.monotonic() + within_s
        while (found := look()) is None:
            if self._process.poll() is not None:
                raise RuntimeError(f"the run ended early with {self._process.returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not seen within {within_s:g} s; status: {self.status()}")
            time.sleep(every_s)
        return found


@contextlib.contextmanager
def limited(command: str | None, shop_slots: int, **options: Any) -> Iterator[Servers]:
    """Fresh servers with such ``options`` (``model_latency="fixed:1"``), which a command gets as ``--model-latency fixed:1``; what it
    takes for shop slots is its own affair."""
    if command is not None:
        words = "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items())
        with servers(command + words, shop_slots) as fresh:
            yield fresh
        return
    with start_demo(slots=shop_slots, **options) as demo:
        yield Servers(demo.shop_url, demo.model_url, 40)


@contextlib.contextmanager
def live_run(config: Path, run_dir: Path, *options: str) -> Iterator[LiveRun]:
    """Start a run (``options`` are those of ``benchmarks.engine_run``); it is asked to stop at the end of the block, and waited for."""
    with live_command(["benchmarks.engine_run", str(config), str(run_dir), *options], run_dir) as run:
        yield run


@contextlib.contextmanager
def live_command(words: Sequence[str], run_dir: Path) -> Iterator[LiveRun]:
    """The same for any ``python -m`` that runs into ``run_dir``."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as result:
        process = subprocess.Popen([sys.executable, "-m", *words], cwd=REPOSITORY, stdout=result, stderr=said, text=True)
        try:
            yield LiveRun(process, run_dir, result)
        except BaseException:
            for output in (result, said):
                output.seek(0)
                sys.stderr.write(output.read()[-4000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
