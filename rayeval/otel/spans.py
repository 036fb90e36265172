"""From a committed trace to spans: pure, without OpenTelemetry, and silent (nothing that stands in a trace makes it raise).

One trace for each attempt, linked to the invocation of the run that played it:

    invoke_agent {model}                INTERNAL   the attempt; rewards as ``gen_ai.evaluation.result`` events
    ├── chat {model}                    CLIENT     one turn of the model; also the one that failed
    └── execute_tool {tool}             INTERNAL   one step of the environment

* Only fields that are named here leave the trace; free text is bounded and goes through ``Scrub``.
* Children lie inside their parent, one after the other. ``rayeval.timing`` says which times are measured (see ``layout``).
* Ids follow from the line alone (see ``records``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rayeval.otel import names
from rayeval.otel.content import Content, messages_before
from rayeval.otel.layout import lay_out
from rayeval.otel.reading import (
    flag_of,
    nanoseconds_of,
    number_of,
    object_of,
    objects_of,
    reasoning_tokens,
    server_of,
    spread_ns,
    times_of,
    whole_of,
    word_of,
    words_of,
)
from rayeval.otel.records import EventRecord, RunContext, SpanRecord, id_of
from rayeval.schemas import EpisodeStatus, ErrorKind, JsonObject

_WAITS = frozenset({ErrorKind.MODEL_UNAVAILABLE, ErrorKind.ENVIRONMENT_UNAVAILABLE, ErrorKind.EPISODE_TIMEOUT})
"""Failures that come after a wait: the call that failed is what took the time."""


def episode_spans(line: Any, context: RunContext, now_ns: int, environment_s: Any = None) -> list[SpanRecord]:
    """Spans of one parsed line of ``traces.jsonl``, the root first; none for what is no trace.

    ``now_ns`` stands in for a start that the trace does not tell. ``environment_s`` (``latencies.Packed``): how long the environment's
    answered steps took, which comes beside a line that is fresh and stands in none.
    """
    if not isinstance(line, Mapping) or not isinstance(line.get("episode_id"), str):
        return []
    return _Episode(line, context, now_ns, environment_s).spans()


class _Episode:
    """One attempt on its way to spans."""

    def __init__(self, trace: Mapping[str, Any], context: RunContext, now_ns: int, environment_s: Any) -> None:
        self._trace, self._context = trace, context
        self._step_ns = spread_ns(environment_s)
        self._content = Content(context.scrub) if context.content else None
        self._steps = objects_of(trace.get("steps"))
        self._error = object_of(trace.get("error"))
        self._failed = trace.get("status") != EpisodeStatus.COMPLETED
        self._kind = word_of(self._error.get("kind")) or word_of(self._error.get("type")) or "_OTHER"
        self._stage = word_of(self._error.get("stage")) or ""
        self._model = object_of(object_of(trace.get("provenance")).get("model"))
        self._model_name = word_of(self._model.get("model")) or context.agent_name
        conversation = trace.get("conversation")
        self._conversation: Sequence[Any] = conversation if isinstance(conversation, list) else []
        self._asked = messages_before(self._conversation, self._steps) if context.content else []
        attempt = whole_of(trace.get("attempt")) or 1
        self._trace_id = id_of(16, "episode", context.run_id, str(trace["episode_id"]), str(attempt))
        self._root_id = self._span_id("episode")
        self._start, self._total, self._timed = times_of(trace, now_ns)
        self._address = server_of(self._model.get("base_url"))
        self._sampling = object_of(self._model.get("sampling"))
        self._seed = whole_of(object_of(trace.get("job")).get("seed"))

    def spans(self) -> list[SpanRecord]:
        children = self._children()
        return [self._root(), *children]

    # ---- children -----------------------------------------------------------------------------------------------------------------

    def _children(self) -> list[SpanRecord]:
        """Turns and steps in their order, each with the part of time that is its own."""
        calls: list[tuple[str, int, Mapping[str, Any]]] = []
        measured: list[int | None] = [None]  # the reset
        hungry: int | None = None
        acted = 0
        for position, step in enumerate(self._steps):
            index = whole_of(step.get("step_index")) or position + 1
            calls.append((names.OPERATION_CHAT, position, step))
            measured.append(nanoseconds_of(object_of(step.get("model")).get("latency_ms")))
            if isinstance(step.get("action"), str):
                calls.append((names.OPERATION_TOOL, position, step))
                measured.append(self._step_ns[acted] if acted < len(self._step_ns) else None)
                acted += 1
                if self._failed and self._stage == f"environment_step_{index}":
                    hungry = len(measured) - 1
        if self._failed and self._stage.startswith("model_step_"):
            calls.append((names.OPERATION_CHAT, len(self._steps), {}))
            measured.append(None)
            hungry = len(measured) - 1
        if self._kind not in _WAITS:
            hungry = None
        times = lay_out(self._start, self._total, [*measured, None], hungry)[1:]  # the last part: an end by the runtime, the release
        make = {names.OPERATION_CHAT: self._chat, names.OPERATION_TOOL: self._tool}
        return [make[what](position, step, *when) for (what, position, step), when in zip(calls, times, strict=False)]

    def _chat(self, position: int, step: Mapping[str, Any], start: int, end: int) -> SpanRecord:
        model = object_of(step.get("model"))
        index = whole_of(step.get("step_index")) or position + 1
        usage = object_of(model.get("usage"))
        answered = bool(step)
        retries = objects_of(model.get("retries") if answered else self._error.get("model_retries"))
        extra = object_of(self._sampling.get("extra_body"))
        found: dict[str, Any] = {
            names.OPERATION_NAME: names.OPERATION_CHAT,
            names.PROVIDER_NAME: self._context.provider,
            names.CONVERSATION_ID: self._trace["episode_id"],
            names.REQUEST_MODEL: self._model_name,
            names.REQUEST_TEMPERATURE: number_of(self._sampling.get("temperature")),
            names.REQUEST_TOP_P: number_of(self._sampling.get("top_p")),
            names.REQUEST_TOP_K: whole_of(extra.get("top_k")),
            names.REQUEST_MAX_TOKENS: whole_of(self._sampling.get("max_tokens")),
            names.REQUEST_STOP_SEQUENCES: words_of(extra.get("stop")),
            names.OUTPUT_TYPE: "json" if object_of(extra.get("response_format")).get("type") in ("json_object", "json_schema") else None,
            names.RESPONSE_ID: word_of(model.get("response_id")),
            names.RESPONSE_MODEL: word_of(object_of(model.get("metadata")).get("model")),
            names.RESPONSE_FINISH_REASONS: words_of(model.get("finish_reason")),
            names.USAGE_INPUT: whole_of(usage.get("prompt_tokens")),
            names.USAGE_OUTPUT: whole_of(usage.get("completion_tokens")),
            names.USAGE_CACHE_READ: whole_of(object_of(usage.get("prompt_tokens_details")).get("cached_tokens")),
            names.USAGE_CACHE_CREATION: whole_of(usage.get("cache_creation_input_tokens")),
            names.USAGE_REASONING: reasoning_tokens(usage),
            names.SERVER_ADDRESS: self._address[0],
            names.SERVER_PORT: self._address[1],
            names.STEP_INDEX: index,
            names.RETRIES: len(retries) or None,
            names.RETRY_CAUSES: tuple(dict.fromkeys(c for c in (word_of(r.get("cause")) for r in retries) if c)) or None,
            names.RESAMPLED: True if step.get("resampled") else None,
            names.PROTOCOL_ERROR: word_of(object_of(step.get("protocol_error")).get("code")),
            names.POLICY_FAILURE: word_of(object_of(step.get("policy_failure")).get("code")),
            names.TIMING: "duration_measured" if nanoseconds_of(model.get("latency_ms")) is not None else "derived",
            names.ERROR_TYPE: None if answered else self._kind,
        }
        if self._sampling.get("send_seed") is True and self._seed is not None:
            found[names.REQUEST_SEED] = self._seed + index - 1
        ready: JsonObject = {}
        if self._content is not None and answered:
            asked = self._conversation[: self._asked[position]]
            ready[names.INPUT_MESSAGES], cut = self._content.input_messages(asked)
            ready[names.MESSAGES_CUT] = cut or None
            ready[names.OUTPUT_MESSAGES] = self._content.output_messages(model)
            ready[names.TOOL_DEFINITIONS] = self._content.tool_definitions(step.get("tools"))
        name = f"{names.OPERATION_CHAT} {self._context.short(self._model_name)}"
        return SpanRecord(
            name,
            "client",
            self._trace_id,
            self._span_id(f"chat:{position}"),
            self._root_id,
            start,
            end,
            self._context.attributes(found, ready),
            error=None if answered else self._error_words(),
        )

    def _tool(self, position: int, step: Mapping[str, Any], start: int, end: int) -> SpanRecord:
        index = whole_of(step.get("step_index")) or position + 1
        call = next(iter(objects_of(object_of(step.get("model")).get("tool_calls"))), {})
        tool = word_of(call.get("name")) or "action"
        result = step.get("environment")
        broken = result is None and self._failed
        found: dict[str, Any] = {
            names.OPERATION_NAME: names.OPERATION_TOOL,
            names.TOOL_NAME: tool,
            names.TOOL_TYPE: "function",
            names.TOOL_DESCRIPTION: self._description(step, tool),
            names.TOOL_CALL_ID: word_of(call.get("call_id")),
            names.STEP_INDEX: index,
            names.ACTION_VALID: flag_of(object_of(object_of(result).get("action_feedback")).get("valid")),
            names.TIMING: "derived",
            names.ERROR_TYPE: self._kind if broken else None,
        }
        ready: JsonObject = {}
        if self._content is not None:
            ready[names.TOOL_ARGUMENTS] = self._content.arguments(call.get("arguments"))
            ready[names.TOOL_RESULT] = self._content.result(object_of(result).get("observation"))
        name = f"{names.OPERATION_TOOL} {self._context.short(tool)}"
        return SpanRecord(
            name,
            "internal",
            self._trace_id,
            self._span_id(f"tool:{position}"),
            self._root_id,
            start,
            end,
            self._context.attributes(found, ready),
            error=self._error_words() if broken else None,
        )

    def _description(self, step: Mapping[str, Any], tool: str) -> str | None:
        for offered in objects_of(step.get("tools")):
            function = object_of(offered.get("function"))
            if function.get("name") == tool:
                return word_of(function.get("description"))
        return None

    # ---- the attempt --------------------------------------------------------------------------------------------------------------

    def _root(self) -> SpanRecord:
        context, trace = self._context, self._trace
        job, final = object_of(trace.get("job")), object_of(trace.get("final"))
        environment = object_of(object_of(trace.get("provenance")).get("environment"))
        tokens = self._tokens()
        prices = context.prices
        detail = object_of(final.get("reward_detail"))
        ended = final.get("termination_reason") or detail.get("termination_reason")
        failures = [object_of(s.get("policy_failure")).get("code") for s in self._steps]
        found: dict[str, Any] = {
            names.OPERATION_NAME: names.OPERATION_AGENT,
            names.PROVIDER_NAME: context.provider,
            names.AGENT_NAME: context.agent_name,
            names.AGENT_ID: context.agent_id,
            names.AGENT_VERSION: context.agent_version,
            names.CONVERSATION_ID: trace["episode_id"],
            names.REQUEST_MODEL: self._model_name,
            names.USAGE_INPUT: tokens["prompt_tokens"],
            names.USAGE_OUTPUT: tokens["completion_tokens"],
            names.RUN_ID: context.run_id,
            names.RUN_NAME: context.name,
            names.PLAN_FINGERPRINT: context.fingerprint,
            names.EPISODE_ID: trace["episode_id"],
            names.EPISODE_SEED: self._seed,
            names.EPISODE_STATUS: word_of(trace.get("status")),
            names.ATTEMPT: whole_of(trace.get("attempt")),
            names.SPLIT: word_of(job.get("split")),
            names.TASK_ID: whole_of(job.get("task_id")),
            names.SAMPLE_ID: whole_of(job.get("sample_id")),
            names.STEPS: len(self._steps),
            names.PROTOCOL_ERRORS: sum(1 for s in self._steps if s.get("protocol_error")),
            names.COST: None if prices is None else number_of(prices.of(tokens)),
            names.COST_CURRENCY: None if prices is None else prices.currency,
            names.ENVIRONMENT_URL: word_of(environment.get("base_url")),
            names.ENVIRONMENT_VERSION: word_of(environment.get("environment_version")),
            names.CLEANUP_FAILED: True if self._stage == "cleanup" or self._error.get("cleanup_errors") else None,
            names.TIMING: "measured" if self._timed and self._total else "derived",  # the driver's own lines are moments
        }
        if self._failed:
            found[names.ERROR_TYPE] = self._kind
            found[names.ERROR_STAGE] = self._stage or None
            found[names.ERROR_RETRYABLE] = flag_of(self._error.get("retryable"))
        else:
            found[names.REWARD] = number_of(final.get("reward"))
            found[names.TERMINATION] = "context_overflow" if "context_overflow" in failures else word_of(ended)
        ready: JsonObject = {}
        if self._content is not None:
            ready[names.SYSTEM_INSTRUCTIONS] = self._content.system_instructions(self._conversation)
            ready[names.INPUT_MESSAGES], _ = self._content.input_messages(self._conversation[:2])
            if self._steps:
                ready[names.OUTPUT_MESSAGES] = self._content.output_messages(object_of(self._steps[-1].get("model")))
        end = self._start + self._total
        return SpanRecord(
            f"{names.OPERATION_AGENT} {context.short(context.agent_name)}",
            "internal",
            self._trace_id,
            self._root_id,
            None,
            self._start,
            end,
            context.attributes(found, ready),
            self._failure_events(end) if self._failed else self._rewards(final, detail, end),
            context.span,
            self._error_words() if self._failed else None,
        )

    def _tokens(self) -> dict[str, int]:
        sums = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        for step in self._steps:
            usage = object_of(object_of(step.get("model")).get("usage"))
            for name in ("prompt_tokens", "completion_tokens"):
                sums[name] += whole_of(usage.get(name)) or 0
            sums["cached_tokens"] += whole_of(object_of(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0
        return sums

    def _rewards(self, final: Mapping[str, Any], detail: Mapping[str, Any], at: int) -> tuple[EventRecord, ...]:
        """The reward and every ``r_*`` of its detail."""
        figures = {"reward": number_of(final.get("reward"))}
        figures |= {name: number_of(value) for name, value in detail.items() if name.startswith("r_")}
        events = []
        for name, value in figures.items():
            if value is None:
                continue
            label = None if name != "r_success" else "pass" if value == 1 else "fail"
            found = {names.EVALUATION_NAME: name, names.EVALUATION_VALUE: value, names.EVALUATION_LABEL: label}
            events.append(EventRecord(names.EVENT_EVALUATION, at, self._context.attributes(found)))
        return tuple(events)

    def _failure_events(self, at: int) -> tuple[EventRecord, ...]:
        found = {names.EXCEPTION_TYPE: word_of(self._error.get("type"))}
        attributes = self._context.attributes(found, {names.EXCEPTION_MESSAGE: self._error_words()})
        return (EventRecord(names.EVENT_EXCEPTION, at, attributes),)

    def _error_words(self) -> str:
        message = self._error.get("message")
        return self._context.message(message if isinstance(message, str) and message else self._kind)

    def _span_id(self, key: str) -> int:
        return id_of(8, "span", f"{self._trace_id:032x}", key)
