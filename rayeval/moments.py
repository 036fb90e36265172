"""Mean and standard error from exact sums, which do not depend on order or grouping.

A finite float is a whole number of 2**-1074, and Python's integers hold sums of such without rounding; the one rounding is the division
at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

_SCALE = 1074
"""Binary digits behind the point: the smallest positive float is 2**-1074."""


@dataclass(slots=True)
class Moments:
    """Exact count, sum and sum of squares of finite floats."""

    count: int = 0
    total: int = 0
    """Sum in units of 2**-1074."""
    squares: int = 0
    """Sum of squares in units of 2**-2148."""

    def add(self, value: float) -> None:
        numerator, denominator = value.as_integer_ratio()
        scaled = numerator << (_SCALE + 1 - denominator.bit_length())
        self.count += 1
        self.total += scaled
        self.squares += scaled * scaled

    def merge(self, other: Moments) -> None:
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    def mean(self, missing: int = 0, missing_value: int = 0) -> float | None:
        """The mean, with ``missing`` further values of ``missing_value``; None without any value."""
        count = self.count + missing
        if count == 0:
            return None
        return float(Fraction(self.total + ((missing * missing_value) << _SCALE), count << _SCALE))

    def sem(self) -> float | None:
        """Standard error of the mean with n - 1; None under two values."""
        if self.count < 2:
            return None
        spread = self.squares * self.count - self.total * self.total
        variance_of_mean = Fraction(spread, (self.count * self.count * (self.count - 1)) << (2 * _SCALE))
        try:
            return math.sqrt(variance_of_mean)
        except OverflowError:  # the square of a figure beyond 1e154 is no float; its root is one, and the fraction is below the last digit
            return float(math.isqrt(int(variance_of_mean)))
