"""``doctor``: a look at everything an experiment needs, before it costs anything much."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayeval.cli.options import ConfigArgument, JsonOption, SetOption
from rayeval.cli.output import table, write_json, write_out
from rayeval.exceptions import EnvironmentCallError, RayevalError
from rayeval.schemas import ExitCode, JsonObject, Lease

if TYPE_CHECKING:
    from rayeval.config import Config, LoadedConfig
    from rayeval.environments import Environment
    from rayeval.models import ChatModel
    from rayeval.plan import Plan
    from rayeval.schemas import ModelOutput

SCHEMA = "rayeval-doctor-v1"
BYTES_AN_EPISODE = 60_000
"""Of ``traces.jsonl``: 30 steps with pages of a real shop."""
SHARDS_SHARE = 0.2
"""What zstd Parquet adds."""
CLOCK_S = 5.0
"""A server's clock may differ by so much; dates in headers are whole seconds."""
_CLOCK_GRAIN_S = 2.0
"""A Date header has whole seconds, and takes a moment to arrive."""
_ENVIRONMENT_S, _MODEL_S, _CLOCK_S, _CLOSE_S = 6.0, 8.0, 2.0, 2.0


@dataclass
class Examination:
    """What was looked at, and what that cost."""

    checks: list[JsonObject] = field(default_factory=list)
    model_calls: int = 0
    environment_calls: int = 0
    tokens: int = 0

    def note(self, name: str, ok: bool | None, text: str) -> None:
        """``ok``: None is a thing to know, not a fault."""
        self.checks.append({"check": name, "ok": ok, "text": text})


def doctor(config: ConfigArgument, set_: SetOption = None, as_json: JsonOption = False) -> int:
    """Ask the model for one tool call, open and release one episode, look at slots, disk and clock. Takes 20 s at most."""
    from rayeval.config import load_config
    from rayeval.plan import make_plan

    began = time.monotonic()
    loaded = load_config(config, set_ or ())
    plan = make_plan(loaded)
    found = Examination()
    found.note("plan", True, f"{plan.job_count} episodes of {len(plan.task_ids)} tasks, fingerprint {plan.fingerprint[:12]}")
    _check_disk(found, loaded.config, plan)
    with_demo = "demo" in loaded.config.environment.base_urls or "demo" in loaded.config.model.base_urls
    if with_demo:
        from rayeval.demo import start_demo

        demo = start_demo()
        try:
            asyncio.run(_examine(found, loaded, plan, demo.shop_url, demo.model_url))
        finally:
            demo.close()
    else:
        asyncio.run(_examine(found, loaded, plan, None, None))
    return _report(found, time.monotonic() - began, as_json)


def _report(found: Examination, seconds: float, as_json: bool) -> int:
    good = all(check["ok"] is not False for check in found.checks)
    cost = {"model_calls": found.model_calls, "environment_calls": found.environment_calls, "tokens": found.tokens}
    if as_json:
        write_json({"schema": SCHEMA, "ok": good, "checks": found.checks, "cost": cost, "seconds": round(seconds, 2)})
    else:
        words = {True: "ok", False: "FAULT", None: "note"}
        write_out(table(("", "check", ""), [(words[c["ok"]], c["check"], c["text"]) for c in found.checks]))
        write_out(
            f"cost: {found.model_calls} model calls, {found.tokens} tokens, {found.environment_calls} environment calls, {seconds:.1f} s"
        )
    return ExitCode.OK if good else ExitCode.REFUSED


def disk_needed(jobs: int) -> int:
    """Bytes a run of so many episodes may take, shards included."""
    return round(jobs * BYTES_AN_EPISODE * (1 + SHARDS_SHARE))


def nearest_existing(path: Path) -> Path:
    """The path itself, or the first directory above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _check_disk(found: Examination, config: Config, plan: Plan) -> None:
    place = nearest_existing(config.experiment.output_dir)
    free, needed = shutil.disk_usage(place).free, disk_needed(plan.job_count)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        found.note("disk", False, f"{place} cannot be written; give another experiment.output_dir")
        return
    text = f"about {needed / 1e9:.2f} GB needed, {free / 1e9:.1f} GB free at {place}"
    found.note("disk", free > needed, text)


async def _examine(found: Examination, loaded: LoadedConfig, plan: Plan, shop: str | None, chat: str | None) -> None:
    from rayeval.environments import load_environment
    from rayeval.models import load_model
    from rayeval.transport import AiohttpTransport

    # One attempt each and short waits: what takes longer here is the finding.
    bounds = {"reset_timeout_s": 4.0, "step_timeout_s": 2.0, "model_timeout_s": _MODEL_S, "model_attempts": 1}
    config = loaded.config.model_copy(update={"execution": loaded.config.execution.model_copy(update=bounds)})
    servers = [shop if url == "demo" and shop else url for url in config.environment.base_urls]
    endpoints = [chat if url == "demo" and chat else url for url in config.model.base_urls]
    async with AsyncExitStack() as stack:
        transport = AiohttpTransport(trust_env=config.execution.trust_env)
        stack.push_async_callback(_closed, transport)
        page = None
        try:
            environment = load_environment(config, plan.persona, servers)
            stack.push_async_callback(_closed, environment)
            page = await asyncio.wait_for(_check_environment(found, environment, plan), _ENVIRONMENT_S)
        except TimeoutError:
            found.note("environment", False, f"no whole answer within {_ENVIRONMENT_S:g} s")
        except RayevalError as error:
            found.note("environment", False, str(error))
        try:
            model = load_model(config, endpoints, transport)
            stack.push_async_callback(_closed, model)
            await asyncio.wait_for(_check_model(found, model, config, plan, page), _MODEL_S)
        except TimeoutError:
            found.note("model", False, f"no whole answer within {_MODEL_S:g} s")
        except RayevalError as error:
            found.note("model", False, str(error))
        await _check_clock(found, transport, [*(f"{url.rstrip('/')}/healthz" for url in servers), *endpoints])


async def _closed(thing: Any) -> None:
    """Close a client; one that does not close is no finding of this examination."""
    try:
        await asyncio.wait_for(thing.aclose(), _CLOSE_S)
    except (TimeoutError, RayevalError):
        return


async def _check_environment(found: Examination, environment: Environment, plan: Plan) -> JsonObject | None:
    """Slots of each server, then one reset and its release on the first with a free slot. -> the first page."""
    found.environment_calls += 1
    capacities = await environment.capacity()
    for one in capacities:
        text = f"{one.server}: {one.free} of {one.slots} slots free"
        found.note("slots", True if one.free else None, text)
    free = next((c for c in capacities if c.free > 0), None)
    if free is None:
        found.note("environment", None, "no slot is free, so no episode was opened; see rayeval leases doctor")
        return None
    held: list[Lease] = []

    def on_lease(event: str, lease: Lease) -> None:
        held.append(lease) if event == "held" else held.remove(lease)

    job = plan.job_at(0)
    episode = environment.open(job, free.server, on_lease, lambda: None)
    found.environment_calls += 1
    try:
        page = await episode.reset()
    finally:
        found.environment_calls += 1
        try:
            await asyncio.wait_for(episode.close(), _CLOSE_S)
        except (TimeoutError, EnvironmentCallError) as error:
            found.note("release", False, f"the episode was opened and not released: {error or 'no answer in time'}")
    if held:
        found.note("release", False, "the server still counts the lease after the release")
    state = page.get("observation_state") or {}
    found.note("environment", True, f"task {job.task_id} opened and released; {state.get('observation_version', 'no version')}")
    return page


async def _check_model(found: Examination, model: ChatModel, config: Config, plan: Plan, page: JsonObject | None) -> None:
    """Two equal requests, one after the other: does it answer, does it call a tool, is the seed honoured."""
    from rayeval.encoding import encode
    from rayeval.models import ModelRequest
    from rayeval.prompts import PromptBuilder
    from rayeval.tools import tools_for

    page = page or {
        "task_instruction": "a desk lamp",
        "observation": "Search page.",
        "observation_state": {"search_available": True, "actions": []},
    }
    prompts = PromptBuilder(plan.system_prompt)
    persona = page.get("user_persona") if plan.persona else None
    texts = (
        ("system", prompts.system_message(persona, [])),
        ("user", prompts.first_user_message(page["task_instruction"], page["observation"])),
    )
    messages = [encode({"role": role, "content": text}) for role, text in texts]
    tools = tools_for(page["observation_state"], config.runtime.tool_schema)
    outputs = []
    for _ in range(2 if config.model.send_seed else 1):
        deadline = time.monotonic() + _MODEL_S
        request = ModelRequest(messages, tools.tools, seed=plan.job_at(0).seed, deadline=deadline, tools_json=tools.encoded)
        found.model_calls += 1
        output = await model.generate(request)
        found.tokens += int(output.usage.get("total_tokens") or 0)
        outputs.append(output)
    first = outputs[0]
    found.note("model", True, f"{config.model.name} answered in {first.latency_ms:.0f} ms")
    if first.tool_calls and first.protocol_error is None:
        found.note("tool call", True, f"called {first.tool_calls[0].name}")
    else:
        fault = first.protocol_error or first.policy_failure
        reason = f"{fault.code}: {fault.message}" if fault else "an answer without a tool call"
        found.note("tool call", False, f"{reason} (is tool calling switched on at the server?)")
    if len(outputs) < 2:
        found.note("seed", None, "not sent (model.send_seed is false)")
    elif _said(outputs[0]) == _said(outputs[1]):
        found.note("seed", True, "two equal requests gave equal answers")
    else:
        found.note("seed", None, "two equal requests gave different answers: the seed is not honoured")


def _said(output: ModelOutput) -> tuple[Any, ...]:
    return output.content, output.reasoning, [(c.name, c.raw_arguments) for c in output.tool_calls]


async def _check_clock(found: Examination, transport: Any, urls: list[str]) -> None:
    """Compare with the Date header of the first server that sends one."""
    for url in urls:
        try:
            response = await transport.request("GET", url, None, {}, _CLOCK_S, 1 << 20)
            stamp = parsedate_to_datetime(response.headers.get("Date") or "")
            away = time.time() - stamp.timestamp()
        except (RayevalError, ValueError, TypeError):
            continue
        text = f"this machine is {abs(away):.0f} s {'ahead of' if away > 0 else 'behind'} {url}"
        if abs(away) < _CLOCK_GRAIN_S:
            text = f"within {_CLOCK_GRAIN_S:g} s of that of {url}"
        found.note("clock", True if abs(away) <= CLOCK_S else None, text)
        return
    found.note("clock", None, "no server sends a date")
