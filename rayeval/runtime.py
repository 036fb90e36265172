"""One episode, from reset to a finished trace.

    reset -> skills -> first messages -> [ model -> action -> environment ]* -> done, or an end by the runtime -> close

Invariants:

* ``run`` gives a trace for everything that can go wrong, and raises only CancelledError and FencedError. After any reset that was
  sent it calls ``close``, shielded and under a deadline, before it returns or lets CancelledError out. On FencedError it makes no
  call at all: this process may not act, and its actor releases by a path of its own.
* Every await has a deadline: the reset its caller's wait, everything between the reset's answer and the end of the episode
  ``episode_timeout_s`` together, each environment call ``step_timeout_s`` beside it, the close ``close_timeout_s``.
* Each turn of the model costs one step, whatever came of it. The environment alone says ``done``; the page is never asked.
* What was sent is appended as bytes, once, and the trace holds those bytes.
* One ``AgentRuntime`` serves many episodes at once and keeps nothing of any of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

import orjson

from rayeval.encoding import encode
from rayeval.environments.base import EnvironmentEpisode
from rayeval.environments.pages import reset_fault, step_fault, terminal_fault
from rayeval.exceptions import ConfigurationError, EnvironmentCallError, EpisodeDeadlineError, FencedError
from rayeval.hashing import step_seed
from rayeval.models.base import ChatModel, ModelRequest
from rayeval.prompts import PromptBuilder
from rayeval.schemas import (
    ACTION_PROTOCOL,
    EnvironmentIdentity,
    EpisodeJob,
    ErrorKind,
    FinishedTrace,
    JsonObject,
    ModelOutput,
    ProtocolError,
    Termination,
)
from rayeval.skills import SkillProvider
from rayeval.stages import EpisodeMark
from rayeval.tools import (
    PageWithoutToolsError,
    ToolSchema,
    ToolSet,
    action_of,
    protocol_error_of,
    protocol_feedback,
    sent_form,
    tools_for,
)
from rayeval.trace_building import TraceBuilder, assistant_message, fault_record, tool_message
from rayeval.transport import public_url

_log = logging.getLogger(__name__)

EventListener = Callable[[str, JsonObject], None]
"""Called with ``reset``, ``model``, ``action``, ``environment``, ``protocol_error`` or ``end`` and a small object."""

PACKAGE = {"rayeval": version("rayeval")}

_STEP_GRACE_S = 1.0
"""How much later than the environment's own step time-out the runtime's fires: the adapter's error says more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Bounds of an episode. The first two are in the plan, the others are execution settings."""

    max_steps: int = 30
    tool_schema: ToolSchema = "dynamic"
    episode_timeout_s: float = 3600.0
    """From the reset's answer to the end."""
    step_timeout_s: float = 30.0
    """One step or terminate."""
    reset_timeout_s: float | None = None
    """Bound on a reset beside the environment's own; None: the environment keeps its own."""
    close_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigurationError("runtime.max_steps", self.max_steps, "give a whole number of at least 1")
        if self.tool_schema not in ("dynamic", "static"):
            raise ConfigurationError("runtime.tool_schema", self.tool_schema, "give 'dynamic' or 'static'")

    def identity(self) -> JsonObject:
        """What enters the plan and ``provenance.runtime``."""
        return {"max_steps": self.max_steps, "tool_schema": self.tool_schema, "action_protocol": ACTION_PROTOCOL}


class AgentRuntime:
    """Plays episodes. ``provenance`` is laid over what the parts say of themselves; it brings at least ``plan_fingerprint``."""

    def __init__(
        self,
        model: ChatModel,
        prompts: PromptBuilder,
        skills: SkillProvider,
        settings: RuntimeSettings,
        provenance: JsonObject,
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._skills = skills
        self._settings = settings
        transport: Callable[[], JsonObject] | None = getattr(model, "transport_identity", None)
        self._provenance: JsonObject = {
            "model": model.identity() if transport is None else {**model.identity(), "transport": transport()},
            "environment": {},
            "prompt": prompts.identity(),
            "skills": skills.identity(),
            "runtime": settings.identity(),
            "package": PACKAGE,
            **provenance,
        }
        self._closing: set[asyncio.Task[None]] = set()

    async def run(
        self,
        job: EpisodeJob,
        attempt: int,
        episode: EnvironmentEpisode,
        *,
        endpoint: str | None,
        server: str,
        environment_identity: JsonObject,
        pinned: EnvironmentIdentity,
        on_event: EventListener | None = None,
        mark: EpisodeMark | None = None,
    ) -> FinishedTrace:
        """Play one attempt of ``job`` on a fresh ``episode``, with the model at ``endpoint``.

        ``pinned``: the versions the run began with; a server of other versions fails the attempt as ``environment_changed``.
        ``mark`` says all along where the attempt stands. Raises CancelledError and FencedError, nothing else.
        """
        mark = mark if mark is not None else EpisodeMark()
        mark.stage = "reset"
        provenance = self._episode_provenance(endpoint, server, environment_identity)
        trace = TraceBuilder(job, attempt, provenance, server)
        play = _Play(self._model, self._prompts, self._skills, self._settings, trace, episode, endpoint, pinned, on_event, mark)
        try:
            await play.run()
        except FencedError:
            raise
        except Exception as error:
            trace.fail(mark.stage, error)
        except asyncio.CancelledError:
            mark.stage = "release"
            failure = await self._close(episode)
            if failure is not None:
                _log.warning("%s: cancelled, and its release failed: %s", job.episode_id, failure)
            raise
        mark.stage = "release"
        cleanup = await self._close(episode)
        if cleanup is not None:
            trace.note_cleanup_error(cleanup)
        play.complete_provenance()
        finished = trace.finish()
        play.emit("end", {"status": finished.status, "final": trace.final, "error": trace.error})
        return finished

    def _episode_provenance(self, endpoint: str | None, server: str, environment_identity: JsonObject) -> JsonObject:
        model = self._provenance["model"]
        if endpoint is not None:
            model = {**model, "base_url": public_url(endpoint)}
        base = {**self._provenance["environment"], **environment_identity, "base_url": public_url(server)}
        return {**self._provenance, "model": model, "environment": base}

    async def _close(self, episode: EnvironmentEpisode) -> BaseException | None:
        """Close under a deadline, whatever happens to the caller; -> what went wrong.

        The close runs as a task that a second cancellation does not reach; that one ends the wait only.
        """
        limit = self._settings.close_timeout_s
        task = asyncio.get_running_loop().create_task(_closed(episode))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(lambda t: None if t.cancelled() else t.exception())
        await asyncio.wait({task}, timeout=limit)
        if not task.done():
            task.cancel()
            text = f"close did not end within {limit:g} s; the lease may still be held"
            return EnvironmentCallError(text, ErrorKind.ENVIRONMENT_UNAVAILABLE, True)
        if task.cancelled():
            return EnvironmentCallError("close was cancelled", ErrorKind.ENVIRONMENT_UNAVAILABLE, True)
        return task.exception()


async def _closed(episode: EnvironmentEpisode) -> None:
    await episode.close()


class _Play:
    """The state of one attempt. The mark's ``stage`` is what the trace says when something is raised."""

    def __init__(
        self,
        model: ChatModel,
        prompts: PromptBuilder,
        skills: SkillProvider,
        settings: RuntimeSettings,
        trace: TraceBuilder,
        episode: EnvironmentEpisode,
        endpoint: str | None,
        pinned: EnvironmentIdentity,
        on_event: EventListener | None,
        mark: EpisodeMark,
    ) -> None:
        self._mark = mark
        self._model = model
        self._prompts = prompts
        self._skills = skills
        self._settings = settings
        self._trace = trace
        self._episode = episode
        self._endpoint = endpoint
        self._pinned = pinned
        self._on_event = on_event
        self._deadline = 0.0
        self._bound = asyncio.timeout(None)
        self._call = ""
        self._call_until: float | None = None
        self._overdue: str | None = None
        self._watch: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()  # asked for once: each time it is a call of the kernel
        reset = await self._reset()
        limit = self._settings.episode_timeout_s
        self._deadline = time.monotonic() + limit
        self._bound = bound = asyncio.timeout(limit)
        self._look_after_calls()
        try:
            async with bound:
                await self._play(reset)
        except TimeoutError as error:
            if not bound.expired():
                raise
            if self._overdue is not None:
                raise EnvironmentCallError(self._overdue, ErrorKind.ENVIRONMENT_UNAVAILABLE, True) from error
            text = f"the episode did not end within episode_timeout_s = {limit:g} s"
            raise EpisodeDeadlineError(text, ErrorKind.EPISODE_TIMEOUT, True) from error
        finally:
            if self._watch is not None:
                self._watch.cancel()

    def _look_after_calls(self) -> None:
        """End a call of the environment's that is past its time. One timer for the whole episode, which finds out when it fires what
        there is to look after: a time-out of its own for each call costs more than the call's other bookkeeping."""
        now, limit = self._loop.time(), self._settings.step_timeout_s + _STEP_GRACE_S
        if self._call_until is not None and now >= self._call_until:
            self._overdue = f"{self._call}: the environment did not answer within {limit:g} s"
            self._bound.reschedule(now)
            return
        self._watch = self._loop.call_at(self._call_until if self._call_until is not None else now + limit, self._look_after_calls)

    async def _reset(self) -> JsonObject:
        reset = await _bounded(self._episode.reset(), self._settings.reset_timeout_s, "reset", ErrorKind.RESET_TIMEOUT)
        _check("reset", reset_fault(reset))
        self._trace.reset = reset
        self.emit("reset", {"task_instruction": reset["task_instruction"], "observation": reset["observation"]})
        environment_version = reset.get("environment_version")
        self._see(EnvironmentIdentity(_text(environment_version), reset["observation_state"]["observation_version"]))
        return reset

    async def _play(self, reset: JsonObject) -> None:
        observation = self._open_conversation(reset)
        state: JsonObject = reset["observation_state"]
        for index in range(1, self._settings.max_steps + 1):
            result = await self._turn(index, observation, state)
            if result is not None:
                if result["done"]:
                    self._end(result)
                    return
                observation, state = result["observation"], result["observation_state"]
        self._mark.stage = "action_limit_termination"
        self._end(await self._terminated(Termination.ACTION_LIMIT))

    def _open_conversation(self, reset: JsonObject) -> str:
        """Choose skills and write the first two messages; -> the user message, which is the first step's observation."""
        self._mark.stage = "skill_selection"
        job, persona = self._trace.job, reset.get("user_persona") or {}
        skills = self._skills.select(
            {
                "task_id": job.task_id,
                "sample_id": job.sample_id,
                "split": job.split,
                "task_instruction": reset["task_instruction"],
                "user_persona": persona,
                "observation_state": reset["observation_state"],
                "task_mode": reset.get("task_mode"),
            }
        )
        self._trace.add_skills(skills)
        # The server sends a persona in its standard mode too; there the task does not depend on it, and the model does not see it.
        shown = persona if reset.get("task_mode", "persona") == "persona" else {}
        first = self._prompts.first_user_message(reset["task_instruction"], reset["observation"])
        self._trace.add_message({"role": "system", "content": self._prompts.system_message(shown, skills)})
        self._trace.add_message({"role": "user", "content": first})
        return first

    async def _turn(self, index: int, observation: str, state: JsonObject) -> JsonObject | None:
        """One turn; -> the environment's result, or None when the page stays because the tool protocol was broken."""
        self._mark.stage = f"model_step_{index}"
        trace = self._trace
        try:
            offered = tools_for(state, self._settings.tool_schema)
        except PageWithoutToolsError as error:
            raise EnvironmentCallError(str(error), ErrorKind.ENVIRONMENT_ERROR, True) from error
        output = await self._model.generate(
            ModelRequest(
                messages=trace.messages,
                tools=offered.tools,
                seed=step_seed(trace.job.seed, index),
                deadline=self._deadline,
                tools_json=offered.encoded,
                context={"job": trace.job, "step_index": index, "observation_state": state},
            ),
            self._endpoint,
        )
        step = trace.add_step(index, observation, orjson.Fragment(offered.encoded), output)
        if self._on_event is not None:
            self.emit("model", {"step_index": index, **step["model"]})
        if output.policy_failure is not None:
            step["policy_failure"] = fault_record(output.policy_failure)
            self._mark.stage = f"policy_termination_step_{index}"
            return await self._terminated(Termination.GENERATION_LENGTH)
        fault = protocol_error_of(output, offered)
        action = fault or action_of(output.tool_calls[0])
        if isinstance(action, ProtocolError):
            self._answer_fault(step, output, action, offered)
            return None
        return await self._act(index, step, output, action)

    async def _act(self, index: int, step: JsonObject, output: ModelOutput, action: str) -> JsonObject:
        self._mark.stage = f"environment_step_{index}"
        step["action"] = action
        sent = sent_form(action)
        if sent != action:
            step["sent_action"] = sent
        if self._on_event is not None:
            self.emit("action", {"step_index": index, "action": action})
        result = await self._timed("step", self._episode.step(sent))
        _check("step", step_fault(result))
        step["environment"] = result
        call = output.tool_calls[0]
        self._trace.add_message(assistant_message(output.content, (call,)))
        self._trace.add_message(tool_message(call, result["observation"]))
        if self._on_event is not None:
            feedback = result.get("action_feedback")
            self.emit(
                "environment",
                {
                    "step_index": index,
                    "done": result["done"],
                    "action_feedback": feedback,
                    "observation": result["observation"],
                },
            )
        version = result["observation_state"]["observation_version"]
        if version != self._trace.identity.observation_version:
            self._see(self._trace.identity._replace(observation_version=version))
        return result

    def _answer_fault(self, step: JsonObject, output: ModelOutput, fault: ProtocolError, offered: ToolSet) -> None:
        """Tell the model what was wrong, in the form that its answer allows."""
        feedback = protocol_feedback(fault, offered)
        step["protocol_error"] = fault_record(fault)
        step["protocol_feedback"] = feedback
        body = encode(feedback).decode()
        if output.tool_calls:
            self._trace.add_message(assistant_message(output.content, output.tool_calls))
            for call in output.tool_calls:
                self._trace.add_message(tool_message(call, body))
        else:
            if output.content is not None and output.content.strip():
                self._trace.add_message(assistant_message(output.content, ()))
            self._trace.add_message({"role": "user", "content": body})
        self.emit("protocol_error", {"step_index": step["step_index"], **fault._asdict()})

    async def _terminated(self, reason: Termination) -> JsonObject:
        result = await self._timed("terminate", self._episode.terminate(reason.value))
        _check("terminate", terminal_fault(result))
        return result

    def _end(self, result: JsonObject) -> None:
        self._trace.final = result
        reward_version = (result.get("reward_detail") or {}).get("reward_version")
        self._see(self._trace.identity._replace(reward_version=_text(reward_version)))

    def _see(self, identity: EnvironmentIdentity) -> None:
        """Note what the server says it is. Raises when that is not what the run began with, or what it said before."""
        before, self._trace.identity = self._trace.identity, identity
        changed = identity.differs_from(self._pinned) or identity.differs_from(before)
        if changed is not None:
            text = f"{public_url(self._trace.server)} is of another version than the run began with: {changed}"
            raise EnvironmentCallError(text, ErrorKind.ENVIRONMENT_CHANGED, True)

    def complete_provenance(self) -> None:
        seen = self._trace.identity._asdict()
        environment = self._trace.provenance["environment"]
        self._trace.provenance["environment"] = {**environment, **seen}

    async def _timed(self, name: str, call: Awaitable[T]) -> T:
        """A call of the environment's; ``_look_after_calls`` ends it in time."""
        self._call = name
        self._call_until = self._loop.time() + self._settings.step_timeout_s + _STEP_GRACE_S
        began = time.monotonic()
        try:
            answer = await call
        finally:
            self._call_until = None
        self._trace.environment_s.append(time.monotonic() - began)
        return answer

    def emit(self, kind: str, what: JsonObject) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(kind, what)
        except Exception:  # a broken display must not cost an episode
            _log.exception("the event listener failed on %s", kind)


async def _bounded(call: Awaitable[T], limit: float | None, name: str, kind: ErrorKind) -> T:
    bound = asyncio.timeout(limit)
    try:
        async with bound:
            return await call
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise EnvironmentCallError(f"{name}: the environment did not answer within {limit:g} s", kind, True) from error


def _check(call: str, fault: str | None) -> None:
    if fault is not None:
        raise EnvironmentCallError(f"{call}: {fault}", ErrorKind.ENVIRONMENT_ERROR, True)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
