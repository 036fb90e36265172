"""When things happened inside an attempt, as far as its trace knows.

A trace holds when the attempt began, how long it took in all, and how long each turn of the model took. Of the environment's steps a
fresh line brings the sum and the size of each; the reset, the release and a call that failed have no clock. The order of all is known,
and the time that no clock covers is shared out among those without one.
"""

from __future__ import annotations

from collections.abc import Sequence


def lay_out(start: int, total: int, measured: Sequence[int | None], hungry: int | None = None) -> list[tuple[int, int]]:
    """-> (start, end) of each part, one after the other inside ``[start, start + total]``, in the unit of ``start``.

    ``measured``: how long each part took; None where no clock says so. Those share equally what the others leave of ``total``; the part
    ``hungry``, when it is one of them, takes all of it. Clocks that contradict ``total`` (sums beyond it) are shrunk alike.
    """
    known = sum(m for m in measured if m is not None)
    unknown = [i for i, m in enumerate(measured) if m is None]
    left = max(0, total - known)
    share = 0 if hungry in unknown or not unknown else left // len(unknown)
    at, parts = start, []
    for i, length in enumerate(measured):
        if length is None:
            length = left if i == hungry else share
        elif known > total:
            length = length * total // known
        parts.append((at, at + length))
        at += length
    return parts
