"""What the demo servers can be told: one frozen object behind both the command line and ``start_demo``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rayeval.demo.faults import LATENCY_FORMS, Latency
from rayeval.exceptions import ConfigurationError


def _option(default: Any, text: str, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of both servers. Construction raises ConfigurationError for a value out of range."""

    host: str = _option("127.0.0.1", "address both servers listen on")
    shop_port: int = _option(0, "port of the shop; 0 picks a free one", "PORT")
    model_port: int = _option(0, "port of the model server; 0 picks a free one", "PORT")
    slots: int = _option(64, "environment slots; a reset beyond them waits, as the real server has it", "N")
    model_slots: int = _option(0, "model requests served at once; 0: no limit", "N")
    model_full: str = _option("queue", "a model request beyond --model-slots: queue, or 429 with Retry-After", "queue|429")
    model_context: int = _option(0, "context length in tokens, beyond which a request gets a 400; 0: no limit", "TOKENS")
    model_latency: str = _option("fixed:0", f"delay of a model answer: {LATENCY_FORMS}", "SPEC")
    env_latency: str = _option("fixed:0", "delay of an environment answer, in the same forms", "SPEC")
    fault_429: float = _option(0.0, "share of model requests refused with 429", "P")
    fault_500: float = _option(0.0, "share of model requests answered with 500", "P")
    fault_hang: float = _option(0.0, "share of model requests without an answer for --hang-s", "P")
    fault_malformed: float = _option(0.0, "share of model answers that break the tool protocol", "P")
    fault_length: float = _option(0.0, "share of model answers cut at the length limit, without a call", "P")
    env_fault_500: float = _option(0.0, "share of environment requests answered with 500", "P")
    env_fault_hang: float = _option(0.0, "share of environment requests without an answer for --hang-s", "P")
    env_fault_lease_lost: float = _option(0.0, "share of interacts that find their lease gone (409)", "P")
    ignore_seed: bool = _option(False, "the model answers as if no seed were sent: the same to the same messages")
    hang_s: float = _option(3600.0, "how long a hanging request gets no answer", "S")
    retry_after: float = _option(0.1, "Retry-After of a 429, in seconds", "S")
    fault_seed: int = _option(0, "another number deals the same shares of faults to other requests", "N")
    request_log: str | None = _option(None, "append a line for each environment request here", "FILE")
    echo_key: bool = _option(False, "the model server answers 401 with the Authorization header in its text")
    echo_key_500: bool = _option(False, "the same with 500, which clients retry")
    catalogue: str | None = _option(None, "a catalogue file in place of the bundled one", "FILE")
    exit_with_stdin: bool = _option(False, "exit when standard input ends")
    ignore_sigterm: bool = _option(False, "go on after SIGTERM: it stops whole process trees, and a driver drains first")

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if "fault_" in f.name and f.name != "fault_seed" and not 0.0 <= value <= 1.0:
                raise ConfigurationError(f.name, value, "give a probability from 0 to 1")
        for name in ("model_slots", "model_context", "hang_s", "retry_after"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ConfigurationError(name, getattr(self, name), "give a number from 0")
        if self.slots < 1:
            raise ConfigurationError("slots", self.slots, "give at least 1")
        if self.model_full not in ("queue", "429"):
            raise ConfigurationError("model_full", self.model_full, "give queue or 429")
        for name in ("shop_port", "model_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigurationError(name, getattr(self, name), "give a port from 0 to 65535")
        Latency.parse(self.model_latency, "model_latency")
        Latency.parse(self.env_latency, "env_latency")

    def argv(self) -> list[str]:
        """The command line that gives these options."""
        words: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            flag = "--" + f.name.replace("_", "-")
            # one word, so that a value that begins with a dash is not read as a flag
            words.append(flag if value is True else f"{flag}={value}")
        return words


def parser() -> argparse.ArgumentParser:
    """The command line of ``python -m rayeval.demo``."""
    made = argparse.ArgumentParser(
        prog="rayeval demo",
        description="A small shop that speaks the environment contract, and a scripted OpenAI-compatible model server. "
        'Prints one JSON line {"shop": URL, "model": URL} when both listen, and runs until SIGINT or SIGTERM.',
    )
    for f in fields(DemoOptions):
        flag = "--" + f.name.replace("_", "-")
        if f.default is False:
            made.add_argument(flag, action="store_true", help=f.metadata["help"])
            continue
        kind = str if f.default is None else type(f.default)
        shown = "" if f.default is None else f" (default: {f.default})"
        made.add_argument(flag, type=kind, default=f.default, metavar=f.metadata["metavar"], help=f.metadata["help"] + shown)
    return made


def parse_options(argv: Sequence[str] | None = None) -> DemoOptions:
    """Options from a command line. Raises ConfigurationError; SystemExit for an unknown flag, as argparse does."""
    return DemoOptions(**vars(parser().parse_args(argv)))
