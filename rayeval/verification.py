"""Checks on runs: is one sound in itself, and did two runs of one plan give the same episodes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from rayeval.figures import figures_of
from rayeval.hashing import canonical_form, canonical_trace, fingerprint
from rayeval.schemas import JsonObject
from rayeval.summary import READABLE_SCHEMAS

if TYPE_CHECKING:
    from rayeval.plan import Plan
    from rayeval.store import RunDirectory

MAX_PROBLEMS = 100
"""Problems told one by one; the rest is counted."""


class Problems:
    """What was found, the first hundred in words."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.told) < MAX_PROBLEMS:
            self.told.append(text)


def verify_run(run_dir: RunDirectory) -> JsonObject:
    """Check manifest, traces and receipts against each other. -> ``ok, problems, problem_count, lines, completed, failed, not_run``.

    A torn last line without a newline is no problem: the next resume cuts it off. Raises InputError without a manifest.
    """
    from rayeval.plan import plan_of_manifest

    manifest = run_dir.read_manifest()
    plan = plan_of_manifest(manifest)
    problems = Problems()
    if fingerprint(manifest.get("plan")) != manifest.get("plan_fingerprint"):
        problems.add("manifest.json: plan_fingerprint is not the hash of plan")
    recorded = manifest["jobs"].get("jobs_sha256") if isinstance(manifest.get("jobs"), dict) else plan.jobs_sha256
    if fingerprint([job._asdict() for job in plan.jobs()]) != recorded:
        problems.add("manifest.json: jobs_sha256 is not the hash of the jobs that follow from it")
    seen: dict[str, bool] = {}
    lines = torn = 0
    for number, line in _lines(run_dir):
        if not line.endswith(b"\n"):
            torn = len(line)
            break
        lines += 1
        where = f"traces.jsonl:{number}"
        try:
            trace = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problems.add(f"{where}: not JSON ({error})")
            continue
        _check_trace(trace, where, plan, seen, problems)
    receipts = _check_receipts(run_dir, problems)
    not_run = sum(1 for job in plan.jobs() if job.episode_id not in seen)
    completed = sum(seen.values())
    return {
        "run": run_dir.name,
        "fingerprint": manifest.get("plan_fingerprint"),
        "ok": problems.count == 0,
        "problem_count": problems.count,
        "problems": problems.told,
        "lines": lines,
        "receipts": receipts,
        "torn_bytes": torn,
        "planned": plan.job_count,
        "completed": completed,
        "failed": len(seen) - completed,
        "not_run": not_run,
    }


def _lines(run_dir: RunDirectory) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line with its newline); the last line may have none."""
    try:
        file = run_dir.traces.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from enumerate(file, 1)


def _check_trace(trace: Any, where: str, plan: Plan, seen: dict[str, bool], problems: Problems) -> None:
    if not isinstance(trace, dict) or trace.get("schema_version") not in READABLE_SCHEMAS:
        problems.add(f"{where}: not a trace of a known schema")
        return
    episode_id = str(trace.get("episode_id"))
    index = plan.index_of(episode_id)
    if index is None:
        problems.add(f"{where}: episode {episode_id} is not planned")
        return
    if trace.get("job") != plan.job_at(index)._asdict():
        problems.add(f"{where}: the job of {episode_id} is not the planned one")
    noted = (trace.get("provenance") or {}).get("plan_fingerprint")
    if noted is not None and noted != plan.fingerprint:
        problems.add(f"{where}: {episode_id} carries another fingerprint")
    if seen.get(episode_id):
        problems.add(f"{where}: a line of {episode_id} after its completed one")
    seen[episode_id] = figures_of(trace)["completed"] or seen.get(episode_id, False)


def _check_receipts(run_dir: RunDirectory, problems: Problems) -> int:
    """Each whole receipt must describe the bytes it points at."""
    if not run_dir.receipts.exists() or not run_dir.traces.exists():
        return 0
    count = 0
    with run_dir.receipts.open("rb") as receipts, run_dir.traces.open("rb") as traces:
        for number, line in enumerate(receipts, 1):
            if not line.endswith(b"\n"):
                break
            count += 1
            where = f"receipts.jsonl:{number}"
            try:
                receipt = orjson.loads(line)
                traces.seek(receipt["offset"])
                data = traces.read(receipt["length"])
                matches = len(data) == receipt["length"] and zlib.crc32(data) == receipt["crc32"]
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                problems.add(f"{where}: not a receipt")
                continue
            if not matches:
                problems.add(f"{where}: does not match the bytes it points at")
    return count


def canonical_digests(run_dir: RunDirectory) -> dict[str, str]:
    """Episode id -> hash of the canonical form of the completed trace that counts."""
    return {e: hashlib.sha256(canonical_trace(trace)).hexdigest() for e, trace in _completed(run_dir)}


def _completed(run_dir: RunDirectory) -> Iterator[tuple[str, JsonObject]]:
    from rayeval.store.reading import last_records

    for trace in last_records(run_dir, completed_only=True):
        yield trace["episode_id"], trace


def compare_canonical(a: RunDirectory, b: RunDirectory) -> JsonObject:
    """Whether two runs hold the same completed episodes, byte for byte in canonical form.

    -> ``equal, compared, hash_a, hash_b, only_a, only_b, different`` (the lists cut at 100, with counts beside them); each differing
    episode with the path of the first value that differs.
    """
    left, right = canonical_digests(a), canonical_digests(b)
    only_a, only_b = sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys())
    different = sorted(e for e in left.keys() & right.keys() if left[e] != right[e])
    wanted = set(different[:MAX_PROBLEMS])
    forms_a = {e: canonical_form(t) for e, t in _completed(a) if e in wanted}
    forms_b = {e: canonical_form(t) for e, t in _completed(b) if e in wanted}
    return {
        "equal": left == right,
        "compared": len(left.keys() & right.keys()),
        "hash_a": _total(left),
        "hash_b": _total(right),
        "only_a_count": len(only_a),
        "only_b_count": len(only_b),
        "different_count": len(different),
        "only_a": only_a[:MAX_PROBLEMS],
        "only_b": only_b[:MAX_PROBLEMS],
        "different": [{"episode_id": e, "first": first_difference(forms_a[e], forms_b[e])} for e in different[:MAX_PROBLEMS]],
    }


def _total(digests: dict[str, str]) -> str:
    """The same number as ``hashing.canonical_hash`` of the traces, from their digests."""
    total = hashlib.sha256()
    for episode_id, digest in sorted(digests.items()):
        total.update(f"{episode_id} {digest}\n".encode())
    return total.hexdigest()


def first_difference(a: Any, b: Any, path: str = "") -> str | None:
    """Path of the first value that differs, such as ``steps[2].model.content``; None when equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            here = f"{path}.{key}" if path else key
            if key not in a or key not in b:
                return here
            if (found := first_difference(a[key], b[key], here)) is not None:
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            if (found := first_difference(x, y, f"{path}[{index}]")) is not None:
                return found
        return None if len(a) == len(b) else f"{path}[{min(len(a), len(b))}]"
    return None if type(a) is type(b) and a == b else path
