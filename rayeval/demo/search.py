"""Search over the catalogue: BM25 with weighted fields, deterministic, each query worked out once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from rayeval.demo.catalogue import Catalogue, Product, normalized, terms

MAX_RESULTS = 150
K1, B = 1.2, 0.6
CACHED_QUERIES = 4096


def _weighted_terms(product: Product) -> Counter[str]:
    counts: Counter[str] = Counter()
    fields = (
        (3, product.title),
        (2, product.category),
        (2, " ".join(product.attributes)),
        (1, product.brand),
        (1, " ".join(label for labels in product.options.values() for label in labels)),
    )
    for weight, text in fields:
        for term in terms(text):
            counts[term] += weight
    return counts


class SearchIndex:
    """Ranks ASINs for a query. Ties fall back to the ASIN, so a ranking never depends on the order of calls."""

    def __init__(self, catalogue: Catalogue) -> None:
        documents = {asin: _weighted_terms(p) for asin, p in catalogue.products.items()}
        lengths = {asin: sum(counts.values()) for asin, counts in documents.items()}
        mean_length = sum(lengths.values()) / len(lengths)
        holders = Counter(term for counts in documents.values() for term in counts)
        self._postings: dict[str, dict[str, float]] = {}
        for asin, counts in documents.items():
            norm = K1 * (1 - B + B * lengths[asin] / mean_length)
            for term, n in counts.items():
                rarity = math.log(1 + (len(documents) - holders[term] + 0.5) / (holders[term] + 0.5))
                self._postings.setdefault(term, {})[asin] = rarity * n * (K1 + 1) / (n + norm)
        self._by_category = self._group(catalogue.products)
        self._cache: dict[str, tuple[str, ...]] = {}

    @staticmethod
    def _group(products: Mapping[str, Product]) -> dict[str, tuple[str, ...]]:
        groups: dict[str, list[str]] = {}
        for asin, product in products.items():
            groups.setdefault(product.category, []).append(asin)
        return {category: tuple(sorted(asins)) for category, asins in groups.items()}

    def search(self, query: str) -> tuple[str, ...]:
        """ASINs, best first, at most 150; empty when no term of the query is known."""
        key = normalized(query)
        found = self._cache.get(key)
        if found is None:
            scores: dict[str, float] = {}
            for term in dict.fromkeys(terms(key)):
                for asin, score in self._postings.get(term, {}).items():
                    scores[asin] = scores.get(asin, 0.0) + score
            found = tuple(sorted(scores, key=lambda asin: (-scores[asin], asin))[:MAX_RESULTS])
            if len(self._cache) >= CACHED_QUERIES:
                self._cache.clear()
            self._cache[key] = found
        return found

    def in_category(self, category: str) -> tuple[str, ...]:
        """ASINs of exactly one category path; empty when it is unknown."""
        return self._by_category.get(category, ())
