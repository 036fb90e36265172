"""Statuses as an engine writes them, for tests of what shows them."""

from typing import Any

RUNNING: dict[str, Any] = {
    "schema": "rayeval-status-v1",
    "run": "smoke",
    "state": "running",
    "elapsed_s": 754.0,
    "updated_at": "2026-01-01T00:00:00.000+00:00",
    "planned": 2000,
    "done": 412,
    "failed": 3,
    "not_run": 1585,
    "in_flight": 64,
    "queued": 1521,
    "rate_per_min": 31.2,
    "eta_s": 3051,
    "reward_mean": 0.661,
    "reward_n": 409,
    "steps": 3021,
    "tokens": 12_345_678,
    "cost": {"amount": 1.23, "currency": "USD", "expected": 6.1},
    "stages": {"queued": 4, "pacing": 0, "resetting": 4, "model": 51, "environment": 9, "releasing": 0},
    "slowest": [
        {
            "episode_id": f"task-{i:06d}__sample-003",
            "age_s": 90 - i,
            "stage": "model",
            "stage_s": 12 - i,
            "step": i + 1,
            "actor": "1-actor-001",
        }
        for i in range(10)
    ],
    "failures": {"model_unavailable": 2, "lost": 1},
    "failures_retried": {"environment_unavailable": 12},
    "failure_samples": {"model_unavailable": "http://10.0.0.1:8000/v1: no answer in 5 attempts (5 x timeout)"},
    "model": [
        {
            "endpoint": "http://10.0.0.1:8000/v1",
            "episodes": 32,
            "out_s": None,
            "pause_s": None,
            "limit": None,
            "retries": {"status_429": 12},
        },
        {"endpoint": "http://10.0.0.2:8000/v1", "episodes": 32, "out_s": None, "limit": 24, "calls": 20, "calls_waiting": 4, "retries": {}},
    ],
    "environment": [
        {"server": "http://shop:5700", "slots": 64, "admission": 60, "held": 60, "resetting": 4, "out_s": None, "refused": False},
    ],
    "actors": [{"id": "1-actor-001", "state": "working", "lag_s": 0.01}],
    "broker": None,
    "notes": [{"at": "2026-01-01T00:00:00+00:00", "level": "warning", "text": "1-actor-002 is lost with 18 episodes"}],
}

OLD: dict[str, Any] = {
    name: RUNNING[name]
    for name in (
        "schema",
        "run",
        "state",
        "updated_at",
        "planned",
        "done",
        "failed",
        "not_run",
        "in_flight",
        "queued",
        "rate_per_min",
        "eta_s",
    )
} | {
    "actors": [{"id": "1-actor-001", "node": "n", "pid": 1, "state": "working", "slots": 64, "in_flight": 64, "lag_s": 0.0}],
    "environment": [{"server": "http://shop:5700", "admission": 60, "held": 60, "resetting": 4}],
    "model": [{"endpoint": "http://10.0.0.1:8000/v1", "episodes": 64}],
}
"""What version 0.1.0 wrote."""
