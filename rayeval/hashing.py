"""Canonical JSON, fingerprints, seeds, and the canonical form of a trace.

One list, ``CANONICAL_DROPS``, says what two runs of one plan may differ in; everything else must be byte-equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

CANONICAL_DROPS = (
    "started_at, ended_at, duration_ms: clocks",
    "attempt: how often it took",
    "steps[].model.latency_ms: a clock",
    "steps[].model.response_id: the server's own",
    "steps[].model.metadata: the server's own, request ids among it",
    "steps[].model.retries: retry records",
    "steps[].model.usage.*_details: cache hits and the like, a matter of load",
    "steps[].model.raw_response.{id, created, usage.*_details}: the same inside a rejected answer",
    "steps[].resampled: a matter of the network",
    "*.idx when it begins with slot-: the slot's number",
    "*.env_idx, *.lease_id: lease fields",
    "provenance.model.base_url, provenance.environment.base_url: endpoint names",
    "provenance.model.transport: time-outs and retries",
    "error when its stage is cleanup; cleanup_errors: a release that failed after the verdict",
)
"""What the canonical form leaves out, each with its reason. ``canonical_trace`` implements exactly this list, and a test holds them
together."""


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, non-ASCII kept, UTF-8 (the form of ``shopsimrl``). Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON. A string is hashed in its JSON quotes."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_hex(data: bytes) -> str:
    """Hex SHA-256 of raw bytes (files)."""
    return hashlib.sha256(data).hexdigest()


def episode_seed(experiment_seed: int, task_id: int, sample_id: int) -> int:
    """First four bytes, big-endian, of sha256("experiment_seed:task_id:sample_id"); 0 <= seed < 2**32."""
    digest = hashlib.sha256(f"{experiment_seed}:{task_id}:{sample_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def step_seed(seed: int, step_index: int) -> int:
    """Seed of a turn; ``step_index`` counts from 1 and protocol errors advance it too."""
    return seed + step_index - 1


def _without_details(usage: Any) -> Any:
    if not isinstance(usage, dict):
        return usage
    return {k: v for k, v in usage.items() if not k.endswith("_details")}


def _environment_result(result: Any) -> Any:
    if not isinstance(result, dict):
        return result
    kept = {k: v for k, v in result.items() if k not in ("env_idx", "lease_id")}
    if isinstance(kept.get("idx"), str) and kept["idx"].startswith("slot-"):
        del kept["idx"]
    return kept


def _raw_response(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    kept = {k: v for k, v in raw.items() if k not in ("id", "created")}
    if "usage" in kept:
        kept["usage"] = _without_details(kept["usage"])
    return kept


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in step.items() if k != "resampled"}
    model = kept.get("model")
    if isinstance(model, dict):
        model = {k: v for k, v in model.items() if k not in ("latency_ms", "response_id", "metadata", "retries")}
        if "usage" in model:
            model["usage"] = _without_details(model["usage"])
        if "raw_response" in model:
            model["raw_response"] = _raw_response(model["raw_response"])
        kept["model"] = model
    if "environment" in kept:
        kept["environment"] = _environment_result(kept["environment"])
    return kept


def canonical_form(trace: Mapping[str, Any]) -> dict[str, Any]:
    """A trace without what ``CANONICAL_DROPS`` lists; the argument is not changed."""
    kept = {k: v for k, v in trace.items() if k not in ("started_at", "ended_at", "duration_ms", "attempt")}
    provenance = dict(kept.get("provenance") or {})
    for part, dropped in (("model", ("base_url", "transport")), ("environment", ("base_url",))):
        if isinstance(provenance.get(part), dict):
            provenance[part] = {k: v for k, v in provenance[part].items() if k not in dropped}
    kept["provenance"] = provenance
    kept["reset"] = _environment_result(kept.get("reset"))
    kept["final"] = _environment_result(kept.get("final"))
    kept["steps"] = [_step(s) for s in kept.get("steps") or ()]
    error = kept.get("error")
    if isinstance(error, dict):
        kept["error"] = None if error.get("stage") == "cleanup" else {k: v for k, v in error.items() if k != "cleanup_errors"}
    return kept


def canonical_trace(trace: Mapping[str, Any]) -> bytes:
    """Bytes that are equal for equal episodes."""
    return orjson.dumps(canonical_form(trace), option=orjson.OPT_SORT_KEYS)


def canonical_hash(traces: Iterable[Mapping[str, Any]]) -> str:
    """One hash for a set of completed traces, whatever order they were written in: SHA-256 over (episode id, hash) sorted by id."""
    rows = sorted((str(t["episode_id"]), hashlib.sha256(canonical_trace(t)).hexdigest()) for t in traces)
    total = hashlib.sha256()
    for episode_id, digest in rows:
        total.update(f"{episode_id} {digest}\n".encode())
    return total.hexdigest()
