"""The runtime without Ray: ``python -m benchmarks.runtime_only CONFIG [--concurrency 64]``.

The same jobs with the same clients as an actor builds, in one process on one loop, with no driver, no leases reported and nothing written:
what an actor needs beyond this is the price of being an actor. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from rayeval.config import LoadedConfig, load_config
from rayeval.environments import load_environment
from rayeval.models import load_model
from rayeval.models.gate import EndpointGate, http_probe
from rayeval.plan import make_plan
from rayeval.prompts import PromptBuilder
from rayeval.runtime import AgentRuntime, RuntimeSettings
from rayeval.schemas import EnvironmentIdentity, EpisodeJob, EpisodeStatus
from rayeval.skills import NoSkills
from rayeval.transport import AiohttpTransport


async def play(loaded: LoadedConfig, concurrency: int) -> dict[str, Any]:
    """All jobs of the plan. Raises RuntimeError when an episode fails."""
    config, plan = loaded.config, make_plan(loaded)
    (server,), (endpoint,) = config.environment.base_urls, config.model.base_urls
    transport = AiohttpTransport(trust_env=False)
    model = load_model(config, (endpoint,), transport, EndpointGate((endpoint,), http_probe(transport)))
    environment = load_environment(config, plan.persona, (server,))
    identity = environment.identity()
    settings = RuntimeSettings(max_steps=config.runtime.max_steps, tool_schema=config.runtime.tool_schema)
    runtime = AgentRuntime(model, PromptBuilder(plan.system_prompt), NoSkills(), settings, {"plan_fingerprint": plan.fingerprint})
    done = {"episodes": 0, "steps": 0}

    async def worker(jobs: Iterator[EpisodeJob]) -> None:
        for job in jobs:
            episode = environment.open(job, server, lambda event, lease: None, lambda: None)
            trace = await runtime.run(
                job, 1, episode, endpoint=endpoint, server=server, environment_identity=identity, pinned=EnvironmentIdentity()
            )
            if trace.status != EpisodeStatus.COMPLETED:
                raise RuntimeError(f"{job.episode_id} failed: {trace.line[-1000:]!r}")
            done["episodes"] += 1
            done["steps"] += int(trace.figures["steps"])

    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)  # as an actor does
    jobs = plan.jobs()
    wall, cpu = time.monotonic(), _cpu()
    await asyncio.gather(*(worker(jobs) for _ in range(concurrency)))
    measured = {"wall_s": time.monotonic() - wall, "cpu_s": _cpu() - cpu, **done}
    await environment.aclose()
    await model.aclose()
    return measured


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()
    print(json.dumps(uvloop.run(play(load_config(options.config), options.concurrency))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
