"""What the servers dealt, and what the summary counts."""

from __future__ import annotations

from pathlib import Path

from rayeval.hashing import canonical_trace
from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory, last_records
from tests.acceptance.runs import (
    Bench,
    JsonObject,
    records,
    run_here,
    summary_of,
)
from tests.acceptance.servers import FAULTY, REFUSING, StartServers


def faults(
    start: StartServers, root: Path, episodes: int = 500, hang: float = 0.01, on_ray: bool = True, model: str = "random"
) -> JsonObject:
    """What the summary counts is what the servers dealt; nothing that failed is scored.

    ``model``: one that makes no mistakes of its own (the demo's ``random``; other mocks take any name).
    """
    bench = Bench(root, episodes)
    overrides = {"experiment.name": "same", "execution.model_timeout_s": 2, "model.name": model}
    with start(slots=64) as servers:
        clean = RunDirectory(
            run_here(bench.config("clean", servers, {**overrides, "experiment.output_dir": "runs/clean"}), show=not on_ray).run_dir
        )
    with start(slots=64, fault_hang=hang, hang_s=30, **FAULTY, **REFUSING) as servers:
        outcome = run_here(bench.config("faulty", servers, {**overrides, "experiment.output_dir": "runs/faulty"}), show=not on_ray)
        model = servers.stats()["model"]
        assert servers.stats()["env"]["leases_held"] == 0
    assert outcome.exit_code == ExitCode.OK, outcome.reason
    run_dir = RunDirectory(outcome.run_dir)
    attempts = summary_of(run_dir)["attempts"]
    retries = attempts["model_retries"]
    counted = {
        "fault_429": retries.get("status_429", 0),
        "fault_500": retries.get("status_500", 0),
        "fault_hang": retries.get("timeout", 0),
        "fault_malformed": attempts["protocol_errors"],
        "fault_length": attempts["generation_length"],
    }
    dealt = {name: model.get(name, 0) for name in counted}
    assert counted == dealt, f"counted {counted}, dealt {dealt}"
    assert all(dealt.values()) or hang == 0, dealt
    for trace in records(run_dir):
        if trace["status"] == "failed":
            assert trace["final"] is None or not trace["final"].get("done"), "a failure is scored"
    reference = {t["episode_id"]: canonical_trace(t) for t in last_records(clean, completed_only=True)}
    compared = 0
    for trace in last_records(run_dir, completed_only=True):
        if not any(s.get("protocol_error") or s.get("policy_failure") for s in trace["steps"]):
            compared += 1
            assert canonical_trace(trace) == reference[trace["episode_id"]], trace["episode_id"]
    return {"counted": counted, "failed_lines": attempts["failed_lines"], "equal_to_fault_free": compared, "episodes": episodes}
