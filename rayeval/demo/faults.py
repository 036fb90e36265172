"""Latencies and faults that repeat: functions of the request's key, never of a clock or a random state.

A fault also depends on how often the same request was already refused, so that a retry can pass. The count is dropped
once the request has passed: memory stays flat, and the same requests meet the same faults again.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from dataclasses import dataclass

from rayeval.exceptions import ConfigurationError

_NORMAL = statistics.NormalDist()
LATENCY_FORMS = "give fixed:S, lognormal:MU,SIGMA or mean:M,SIGMA (seconds; MU and SIGMA of the natural logarithm)"


def u01(*key: object) -> float:
    """A uniform number in (0, 1) from the key, the same on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2.0**52  # 52 bits: the top value stays below 1 as a float


@dataclass(frozen=True, slots=True)
class Latency:
    """A delay in seconds: a constant, or log-normal with natural-log ``mu`` and ``sigma``."""

    fixed_s: float | None = 0.0
    mu: float = 0.0
    sigma: float = 0.0

    @classmethod
    def parse(cls, spec: str, field: str = "latency") -> Latency:
        """``fixed:S``, ``lognormal:MU,SIGMA`` or ``mean:M,SIGMA``. Raises ConfigurationError."""
        kind, _, rest = spec.partition(":")
        try:
            numbers = [float(n) for n in rest.split(",")]
            if not all(math.isfinite(n) for n in numbers):
                raise ValueError(rest)
            if kind == "fixed" and len(numbers) == 1 and numbers[0] >= 0:
                return cls(fixed_s=numbers[0])
            if len(numbers) == 2 and numbers[1] >= 0:
                if kind == "lognormal":
                    return cls(None, numbers[0], numbers[1])
                if kind == "mean" and numbers[0] > 0:
                    return cls(None, math.log(numbers[0]) - numbers[1] ** 2 / 2, numbers[1])
        except ValueError:
            pass
        raise ConfigurationError(field, spec, LATENCY_FORMS)

    def draw(self, *key: object) -> float:
        """Seconds for this key."""
        if self.fixed_s is not None:
            return self.fixed_s
        return math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(u01("latency", *key)))


class Refusals:
    """Decides faults and remembers how often each request was refused."""

    def __init__(self, salt: int = 0) -> None:
        self._salt = salt
        self._counts: dict[tuple[object, ...], int] = {}

    def strikes(self, kind: str, probability: float, *key: object) -> bool:
        """Whether this attempt at the request is refused with a fault of this kind."""
        if probability <= 0:
            return False
        full = (kind, *key)
        refused = self._counts.get(full, 0)
        if u01("fault", self._salt, *full, refused) < probability:
            self._counts[full] = refused + 1
            return True
        self._counts.pop(full, None)
        return False

    def clear(self) -> None:
        """Forget every refusal."""
        self._counts.clear()
