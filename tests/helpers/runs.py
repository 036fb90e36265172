"""Run directories made by hand: small plans, traces of every ending."""

import zlib
from pathlib import Path

import orjson

from rayeval.hashing import episode_seed, fingerprint
from rayeval.schemas import MANIFEST_SCHEMA, TRACE_SCHEMA, EpisodeJob
from rayeval.store import RunDirectory

SEED = 7


def job(task=0, sample=0):
    return EpisodeJob(task, sample, episode_seed(SEED, task, sample), "val")


def step(index=1, *, valid=True, protocol_error=None, policy_failure=None, tokens=10, retries=(), resampled=False, **result):
    wrong = protocol_error or policy_failure
    made = {
        "step_index": index,
        "model": {
            "content": None,
            "usage": {
                "prompt_tokens": tokens,
                "completion_tokens": 2,
                "total_tokens": tokens + 2,
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            "retries": [{"cause": cause, "waited_s": 0.5} for cause in retries],
        },
        "action": None if wrong else "click[x]",
        "environment": None if wrong else {"done": False, "action_feedback": {"valid": valid, "reason": "r"}, **result},
    }
    if protocol_error:
        made["protocol_error"] = {"code": protocol_error, "message": "m"}
    if policy_failure:
        made["policy_failure"] = {"code": policy_failure, "message": "m"}
    if resampled:
        made["resampled"] = "timeout"
    return made


def completed(task=0, sample=0, reward=1.0, *, steps=None, reason="purchase", attempt=1, duration_ms=1000.0, error=None, **detail):
    done = {"r_strict": reward, "r_success": int(reward == 1.0), "r_price": 1.0, "title_score": 0.4, **detail}
    final = {"done": True, "reward": reward, "reward_detail": done, "termination_reason": reason, "goal": {"asin": "SECRET"}}
    return _trace(task, sample, "completed", steps if steps is not None else [step()], final, error, attempt, duration_ms)


def failed(task=0, sample=0, kind="model_unavailable", *, steps=(), attempt=1, stage="model_step_1", name="ModelCallError", **more):
    error = {"stage": stage, "kind": kind, "type": name, "message": "gone", "retryable": True, **more}
    return _trace(task, sample, "failed", list(steps), None, error, attempt, 5000.0)


def foreign(trace):
    """The same in the older package's schema."""
    trace = {**trace, "schema_version": "shopsimrl-episode-v4"}
    del trace["attempt"]
    if trace["error"]:
        trace["error"] = {k: v for k, v in trace["error"].items() if k in ("stage", "type", "message")}
    return trace


def _trace(task, sample, status, steps, final, error, attempt, duration_ms):
    planned = job(task, sample)
    return {
        "schema_version": TRACE_SCHEMA,
        "episode_id": planned.episode_id,
        "attempt": attempt,
        "status": status,
        "job": planned._asdict(),
        "provenance": {"model": {"model": "m"}},
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:00:01+00:00",
        "duration_ms": duration_ms,
        "reset": {"observation": "page"},
        "selected_skills": [],
        "conversation": [],
        "steps": steps,
        "final": final,
        "error": error,
    }


def make_run(path: Path, traces, tasks=(0, 1, 2), repeats=1, tail=b"", receipts=True) -> RunDirectory:
    """A run directory as the engine leaves it."""
    jobs = [job(task, sample) for task in tasks for sample in range(repeats)]
    digest = fingerprint([j._asdict() for j in jobs])
    plan = {
        "pipeline_version": "rayeval-pipeline-v1",
        "experiment": {"name": path.name, "seed": SEED},
        "tasks": {"split": "val", "role": "val", "split_version": "v", "job_count": len(jobs), "jobs_sha256": digest},
        "environment": {"kind": "shopsimulator", "persona": False, "options": {}},
        "model": {"provider": "openai_chat", "name": "m", "checkpoint_id": None},
        "prompt": {},
        "runtime": {},
        "skills": {"provider": "none"},
    }
    run_dir = RunDirectory(path).create()
    run_dir.write_manifest(
        {
            "schema_version": MANIFEST_SCHEMA,
            "created_at": "2026-01-01T00:00:00+00:00",
            "plan_fingerprint": fingerprint(plan),
            "plan": plan,
            "jobs": {"task_ids": list(tasks), "repeats": repeats, "seed": SEED, "job_count": len(jobs), "jobs_sha256": digest},
            "urls": {"model": ["demo"], "environment": ["demo"]},
        }
    )
    write_traces(run_dir, traces, tail, receipts)
    return run_dir


def make_foreign_run(path: Path, traces, tasks=(0, 1, 2)) -> RunDirectory:
    """A run directory of the older package: the manifest lists its jobs."""
    plan = {"pipeline_version": "shopsimrl-v0.4", "experiment": path.name, "jobs": [job(t)._asdict() for t in tasks]}
    plan |= {"model": {"model": "m"}, "task_split": {"name": "val", "split_version": None, "persona": True}}
    plan |= {"environment": {"persona": True}, "runtime": {"max_steps": 30}, "prompt": {}, "skills": {"provider": "none"}}
    path.mkdir(parents=True)
    head = {"schema_version": "shopsimrl-run-manifest-v1", "created_at": "2025-01-01T00:00:00+00:00"}
    (path / "manifest.json").write_bytes(orjson.dumps({**head, "plan_fingerprint": fingerprint(plan), "plan": plan}))
    run_dir = RunDirectory(path)
    write_traces(run_dir, traces, b"", receipts=False)
    return run_dir


def write_traces(run_dir: RunDirectory, traces, tail, receipts):
    lines, rows, offset = [], [], 0
    for trace in traces:
        line = trace if isinstance(trace, bytes) else orjson.dumps(trace) + b"\n"
        if not isinstance(trace, bytes):
            row = {k: trace[k] for k in ("episode_id", "status")} | {"attempt": trace.get("attempt", 1)}
            rows.append({**row, "offset": offset, "length": len(line), "crc32": zlib.crc32(line)})
        lines.append(line)
        offset += len(line)
    run_dir.traces.write_bytes(b"".join(lines) + tail)
    if receipts:
        run_dir.receipts.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
