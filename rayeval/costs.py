"""What tokens cost. Prices stand under ``execution.prices``, so they may be set or mended at any time without another plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayeval.schemas import JsonObject

if TYPE_CHECKING:
    from rayeval.store import RunDirectory

PRICED = ("prompt_tokens", "completion_tokens", "cached_tokens")
"""Counts that a cost is made of. ``cached_tokens`` are a part of the prompt's (``usage.prompt_tokens_details``)."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens of each kind."""

    prompt_per_million: float
    completion_per_million: float
    cached_prompt_per_million: float | None = None
    """None: cached tokens cost what the others do."""
    currency: str = "USD"

    def of(self, tokens: Mapping[str, int]) -> float:
        """The cost of these tokens; a kind that is absent costs nothing."""
        prompt, completion = tokens.get("prompt_tokens", 0), tokens.get("completion_tokens", 0)
        cached = min(tokens.get("cached_tokens", 0), prompt)
        cached_price = self.prompt_per_million if self.cached_prompt_per_million is None else self.cached_prompt_per_million
        return ((prompt - cached) * self.prompt_per_million + cached * cached_price + completion * self.completion_per_million) / 1e6


def prices_from(section: Mapping[str, Any] | None) -> Prices | None:
    """``execution.prices`` as data -> prices; None when there are none."""
    return None if section is None else Prices(**section)


def prices_of_run(run_dir: RunDirectory) -> Prices | None:
    """The prices of the newest launch of a run; None when it had none, or left nothing that can be read."""
    resolved = _newest_settings(run_dir)
    section = _object(_object(resolved.get("config")).get("execution")).get("prices")
    try:
        return prices_from(section) if isinstance(section, dict) else None
    except TypeError:  # written by another version
        return None


def tokens_spent(run_dir: RunDirectory) -> Counter[str]:
    """Tokens of every attempt in a run's traces: those of ``PRICED``, and all of them as ``tokens``. Reads the whole file."""
    import orjson

    from rayeval.figures import figures_of
    from rayeval.store.reading import TraceScanner

    spent: Counter[str] = Counter()
    for line in TraceScanner(run_dir.traces, run_dir.receipts):
        figures = figures_of(orjson.loads(line.raw))
        spent["tokens"] += figures["tokens"]["total_tokens"]
        spent.update({name: figures["tokens"].get(name, 0) for name in PRICED})
        spent["cached_tokens"] += figures["cached_tokens"]
    return spent


def money(amount: float, currency: str) -> str:
    """``0.0412 USD``: two digits behind the point, or four significant ones when it is less than one."""
    return f"{amount:.2f} {currency}" if amount >= 1 or amount == 0 else f"{amount:.4g} {currency}"


def _newest_settings(run_dir: RunDirectory) -> JsonObject:
    import orjson

    numbered = [(int(p.stem.partition("-")[2] or 1), p) for p in run_dir.path.glob("launch*.json") if _is_launch(p.stem)]
    try:
        launch = orjson.loads(max(numbered)[1].read_bytes())
        return _object(orjson.loads((run_dir.path / str(launch["files"]["resolved"])).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_launch(stem: str) -> bool:
    return stem == "launch" or stem.removeprefix("launch-").isdecimal()


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
