"""Lines of ``traces.jsonl`` as the runtime writes them, with a canary in every private field."""

from __future__ import annotations

from typing import Any

import orjson

from rayeval.otel.records import RunContext
from rayeval.schemas import FinishedTrace, JsonObject

CANARY = "CANARY-of-the-solution"
START_NS = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z."""
MS = 1_000_000
TOOLS = [{"type": "function", "function": {"name": "search", "description": "Search the shop.", "parameters": {"type": "object"}}}]
GOAL = {"goal": {"asin": CANARY}, "purchase": {"asin": "A", "instruction_text": CANARY}}


def context(**more: Any) -> RunContext:
    settled: dict[str, Any] = {
        "name": "small",
        "experiment": "small",
        "fingerprint": "f" * 64,
        "created_at": "2026-01-01T00:00:00+00:00",
        "invocation": 1,
        "agent_name": "qwen-x",
        "agent_id": "0123456789abcdef",
        "agent_version": "step-900",
        "provider": "vllm",
    }
    return RunContext(**{**settled, **more})


def step(index: int = 1, *, ms: float = 100.0, done: bool = False, **more: Any) -> JsonObject:
    """One good turn: the model searches and the shop answers."""
    call = {"call_id": f"call_{index}", "name": "search", "arguments": {"query": f"tea {index}"}, "raw_arguments": "{}"}
    model = {
        "content": None,
        "reasoning": "Tea it is.",
        "tool_calls": [call],
        "finish_reason": "tool_calls",
        "usage": {
            "prompt_tokens": 100 * index,
            "completion_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 50},
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
        "response_id": f"chatcmpl-{index}",
        "metadata": {"model": "qwen-x-fp8"},
        "latency_ms": ms,
        "protocol_error": None,
        "policy_failure": None,
    }
    page: JsonObject = {"done": done, "observation": f"page {index}", "action_feedback": {"valid": True}}
    if done:
        page |= GOAL
    made = {"step_index": index, "observation": "p", "tools": TOOLS, "model": model, "action": f"search[tea {index}]", "environment": page}
    return {**made, **more}


def conversation(turns: int) -> list[JsonObject]:
    said: list[JsonObject] = [{"role": "system", "content": "Be a shopper."}, {"role": "user", "content": "Buy tea."}]
    for i in range(1, turns + 1):
        function = {"name": "search", "arguments": f'{{"query":"tea {i}"}}'}
        said.append({"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{i}", "type": "function", "function": function}]})
        said.append({"role": "tool", "tool_call_id": f"call_{i}", "content": f"page {i}"})
    return said


def completed(turns: int = 2, **more: Any) -> JsonObject:
    """An attempt of one second that ended with a purchase."""
    steps = [step(i, done=i == turns) for i in range(1, turns + 1)]
    detail = {"r_strict": 0.5, "r_success": 1, "title": 0.1, "price_upper": CANARY, "target_asin_match": CANARY}
    final = {"done": True, "reward": 0.5, "termination_reason": "purchase", "reward_detail": detail, **GOAL}
    sampling = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 512, "send_seed": True, "tool_choice": "auto"}
    sampling["extra_body"] = {"top_k": 20, "stop": ["\n\n"]}
    made: JsonObject = {
        "schema_version": "rayeval-episode-v1",
        "episode_id": "task-000003__sample-001",
        "attempt": 1,
        "status": "completed",
        "job": {"task_id": 3, "sample_id": 1, "seed": 77, "split": "val"},
        "provenance": {
            "model": {"provider": "openai_chat", "model": "qwen-x", "sampling": sampling, "base_url": "http://gpu-1:8000/v1"},
            "environment": {"base_url": "http://shop:5700", "environment_version": "shop-2"},
            "plan_fingerprint": "f" * 64,
        },
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:00:01+00:00",
        "duration_ms": 1000.0,
        "reset": {"observation": "page 0", "task_instruction": "Buy tea.", "private_task_instruction": CANARY, "lease_id": CANARY},
        "selected_skills": [],
        "conversation": conversation(turns),
        "steps": steps,
        "final": final,
        "error": None,
    }
    return {**made, **more}


def failed(stage: str = "model_step_3", kind: str = "model_unavailable", **more: Any) -> JsonObject:
    """An attempt that two good turns led to a failure."""
    error = {"stage": stage, "kind": kind, "type": "ModelCallError", "message": "gpu-1 is gone", "retryable": True}
    error |= {"model_retries": [{"cause": "status_503", "waited_s": 1.0}, {"cause": "timeout", "waited_s": 0.0}]}
    return completed(status="failed", final=None, error=error, steps=[step(1), step(2)], **more)


def finished(line: JsonObject, **figures: Any) -> FinishedTrace:
    """What the ledger hands on once the line is durable."""
    kind = (line.get("error") or {}).get("kind")
    return FinishedTrace(line["episode_id"], line["attempt"], line["status"], orjson.dumps(line) + b"\n", kind, False, figures)
