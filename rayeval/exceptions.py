"""Every error that rayeval raises on purpose.

RayevalError
├── InputError (ValueError)                exit 2: the user gave something wrong; has ``field``, ``value``, ``hint``
│   ├── ConfigurationError                 a key or value of a configuration file or ``--set``
│   ├── SplitError                         a split manifest
│   └── SkillBankError                     a skill bank or an assignment
├── PlanMismatchError (ValueError)         exit 3: the run directory holds another plan; has ``differences``
├── RefusedError (PermissionError)         exit 4: an action the rules forbid
│   ├── TestSplitGuardError                a test split without its unlock
│   └── RunLockedError                     another driver holds the run directory
├── StoppedError (RuntimeError)            exit 5: the machine ended the run
│   ├── StoreWriteError (OSError)          disk full, unwritable, a failed fsync: never retried
│   ├── RunTakenOverError                  another host took the run directory over: nothing more is written
│   ├── EndpointsOutError                  model or environment servers gone for longer than ``endpoint_outage_s``
│   └── PlacementError                     Ray did not place an actor in time
├── TransportError (ConnectionError)       one HTTP request did not end in an answer
│   ├── ConnectFailedError                 no connection: nothing was sent
│   ├── ReplyLostError                     sent, and the connection ended before a whole answer: it may have been executed
│   ├── ReplyTimeoutError (TimeoutError)   sent, and no whole answer in time: it may have been executed
│   └── ReplyTooLargeError                 the answer passed ``max_bytes``
├── EpisodeError (RuntimeError)            one attempt failed; has ``kind`` (``ErrorKind``), ``retryable``
│   ├── ModelCallError                     no usable HTTP answer of the model; has ``retries``
│   ├── EnvironmentCallError               reset, step, terminate or release failed
│   └── EpisodeDeadlineError (TimeoutError)
└── FencedError (RuntimeError)             this actor's right to act has lapsed: it starts nothing more

To add one: pick the parent by who must act on it, give the stdlib kind beside it, keep every argument in ``args`` (errors cross
process borders pickled), name the phase, and add the line above. What this file does not replace: Ray's own errors, which the pool
reads where it catches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayeval.schemas import ErrorKind, ExitCode, ModelRetry


class RayevalError(Exception):
    """Base of all. ``exit_code`` is what the command line ends with."""

    exit_code: ExitCode = ExitCode.INTERNAL


class InputError(RayevalError, ValueError):
    """Wrong input. One line: the field, the value got, what to give."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, field: str, value: Any, hint: str) -> None:
        super().__init__(field, value, hint)
        self.field, self.value, self.hint = field, value, hint

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {_short(self.value)}"
        return f"{self.field}{shown}: {self.hint}"


class ConfigurationError(InputError):
    """A key or value of a configuration."""


class SplitError(InputError):
    """A split manifest."""


class SkillBankError(InputError):
    """A skill bank or an assignment of skills."""


class PlanMismatchError(RayevalError, ValueError):
    """The run directory holds another plan. ``differences``: (key, old value, new value) for each key that differs."""

    exit_code = ExitCode.FINGERPRINT

    def __init__(self, message: str, differences: Sequence[tuple[str, Any, Any]] = ()) -> None:
        super().__init__(message, tuple(differences))
        self.message, self.differences = message, tuple(differences)

    def __str__(self) -> str:
        rows = "".join(f"\n  {key}: {_short(old)} -> {_short(new)}" for key, old, new in self.differences)
        return self.message + rows


class RefusedError(RayevalError, PermissionError):
    """An action the rules forbid."""

    exit_code = ExitCode.REFUSED


class TestSplitGuardError(RefusedError):
    """A test split without its unlock, or used in a way that peeks."""

    __test__ = False  # a name pytest would collect


class RunLockedError(RefusedError):
    """Another driver holds the run directory; the message names it."""


class StoppedError(RayevalError, RuntimeError):
    """The machine ended the run."""

    exit_code = ExitCode.STOPPED


class StoreWriteError(StoppedError, OSError):
    """A write or fsync failed. Never retried: what is on disk after a failed fsync is not known."""


class RunTakenOverError(StoppedError):
    """The lock's epoch is another driver's: nothing more may be written."""


class EndpointsOutError(StoppedError):
    """Servers gone for too long."""


class PlacementError(StoppedError):
    """Ray did not place an actor in time; the message says what is missing."""


class TransportError(RayevalError, ConnectionError):
    """One HTTP request did not end in an answer."""


class ConnectFailedError(TransportError):
    """No connection: nothing was sent."""


class ReplyLostError(TransportError):
    """Sent, and the connection ended before a whole answer."""


class ReplyTimeoutError(TransportError, TimeoutError):
    """Sent, and no whole answer in time."""


class ReplyTooLargeError(TransportError):
    """The answer passed the size limit. ``start``: its first bytes, a few KB at most and perhaps none, for a caller that must know what it
    was given; kept out of ``args``, for no message may quote a server."""

    def __init__(self, message: str, start: bytes = b"") -> None:
        super().__init__(message)
        self.start = start


class EpisodeError(RayevalError, RuntimeError):
    """One attempt failed for a reason that is not the policy's."""

    def __init__(self, message: str, kind: ErrorKind, retryable: bool) -> None:
        super().__init__(message, kind, retryable)
        self.message, self.kind, self.retryable = message, kind, retryable

    def __str__(self) -> str:
        return self.message


class ModelCallError(EpisodeError):
    """The model gave no usable HTTP answer. ``retries``: the attempts thrown away, the last one included."""

    def __init__(self, message: str, kind: ErrorKind, retryable: bool, retries: tuple[ModelRetry, ...] = ()) -> None:
        super().__init__(message, kind, retryable)
        self.args = (message, kind, retryable, retries)
        self.retries = retries


class EnvironmentCallError(EpisodeError):
    """reset, step, terminate or release failed."""


class EpisodeDeadlineError(EpisodeError, TimeoutError):
    """The episode's own deadline passed. ``retries``: attempts thrown away when it passed within a model call."""

    def __init__(self, message: str, kind: ErrorKind, retryable: bool, retries: tuple[ModelRetry, ...] = ()) -> None:
        super().__init__(message, kind, retryable)
        self.args = (message, kind, retryable, retries)
        self.retries = retries


class FencedError(RayevalError, RuntimeError):
    """This actor's right to act on the environment has lapsed."""


def _short(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
