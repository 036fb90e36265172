"""The canonical form, field by field, on traces of real episodes: what it keeps and what it drops."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from rayeval.hashing import canonical_trace
from rayeval.store import RunDirectory, iter_traces
from tests.acceptance.runs import Bench, run_here
from tests.acceptance.servers import DemoPair

Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Completed traces, some with a protocol error and a refused call in them."""
    bench = Bench(tmp_path_factory.mktemp("canonical"), 24)
    with DemoPair(fault_malformed=0.05, fault_length=0.02, fault_429=0.05, retry_after=0.01) as servers:
        run = run_here(bench.config("canonical", servers), show=True)
    found = [t for t in iter_traces(RunDirectory(run.run_dir)) if t["status"] == "completed"]
    assert any(s.get("protocol_error") for t in found for s in t["steps"])
    assert any(s["model"].get("retries") for t in found for s in t["steps"])
    return found


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from leaves(child, (*path, index))
    else:
        yield path


def is_dropped(path: Path_, trace: dict[str, Any]) -> bool:
    """What may differ between two runs of one plan, said a second time and otherwise than in ``hashing.py``."""
    names = tuple("[]" if isinstance(part, int) else part for part in path)
    if path[0] in ("started_at", "ended_at", "duration_ms", "attempt"):
        return True
    if names[:3] == ("provenance", "model", "transport"):
        return True
    if names in (("provenance", "model", "base_url"), ("provenance", "environment", "base_url")):
        return True
    if names[:2] == ("steps", "[]"):
        rest = names[2:]
        if rest[0] == "resampled" or rest[:2] in (("model", k) for k in ("latency_ms", "response_id", "metadata", "retries")):
            return True
        if rest[:2] == ("model", "usage") and str(rest[2:3]).find("_details") > 0:
            return True
        if rest[:2] == ("model", "raw_response") and (
            rest[2:3] in (("id",), ("created",)) or (rest[2:3] == ("usage",) and len(rest) > 3 and rest[3].endswith("_details"))
        ):
            return True
    result: tuple[str | int, ...] | None = None
    if path[0] in ("reset", "final"):
        result = path[1:]
    elif names[:3] == ("steps", "[]", "environment"):
        result = path[3:]
    if result is not None and result[:1] in (("env_idx",), ("lease_id",)):
        return True
    if result == ("idx",):
        return str(at(trace, path)).startswith("slot-")
    return bool(names[:2] == ("error", "cleanup_errors") or (path[0] == "error" and (trace["error"] or {}).get("stage") == "cleanup"))


def at(value: Any, path: Path_) -> Any:
    for part in path:
        value = value[part]
    return value


def changed(old: Any) -> Any:
    """The value with one character, digit or truth changed."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return old + 1
    if isinstance(old, str):
        return old[:-1] + ("y" if old[-1:] != "y" else "z")
    return {"changed": True} if isinstance(old, dict) else "changed" if old is None else ["changed"]


def test_one_character_in_any_kept_field_changes_the_form_and_in_any_dropped_one_does_not(traces: list[dict[str, Any]]) -> None:
    with_error = next(t for t in traces if any(s.get("protocol_error") for s in t["steps"]))
    with_retry = next(t for t in traces if any(s["model"].get("retries") for s in t["steps"]))
    kept: set[str] = set()
    dropped: set[str] = set()
    for trace in (with_error, with_retry):
        before = canonical_trace(trace)
        for path in leaves(trace):
            other = copy.deepcopy(trace)
            at(other, path[:-1])[path[-1]] = changed(at(trace, path))
            name = ".".join("[]" if isinstance(p, int) else p for p in path)
            if is_dropped(path, trace):
                dropped.add(name)
                assert canonical_trace(other) == before, f"{path} is a matter of the machine, yet the form changes with it"
            else:
                kept.add(name)
                assert canonical_trace(other) != before, f"{path} may not differ between two runs, yet the form does not see it"
    assert {"episode_id", "job.seed", "steps.[].action", "conversation.[].content", "final.reward"} <= kept
    assert {"started_at", "attempt", "steps.[].model.latency_ms", "steps.[].model.retries.[].cause"} <= dropped


def test_a_field_that_is_added_is_kept(traces: list[dict[str, Any]]) -> None:
    trace = traces[0]
    for place in ((), ("provenance",), ("provenance", "model"), ("steps", 0), ("steps", 0, "model"), ("final",), ("reset",)):
        other = copy.deepcopy(trace)
        at(other, place)["new_field"] = 1
        assert canonical_trace(other) != canonical_trace(trace), place
