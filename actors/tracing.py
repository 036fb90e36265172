"""A run's side of OpenTelemetry tracing: whether it is asked for, what its spans say of the run, and where they go."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from rayeval.config import Config
from rayeval.costs import prices_from
from rayeval.exceptions import InputError
from rayeval.hashing import fingerprint
from rayeval.otel.content import content_wanted
from rayeval.otel.names import CONTENT_VARIABLE
from rayeval.otel.records import RunContext
from rayeval.otel.sender import TraceSender
from rayeval.plan import Plan
from rayeval.scrub import Scrub
from rayeval.store import RunDirectory
from rayeval.tasks import Split

_DISTRIBUTIONS = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check_extra(config: Config) -> None:
    """Raises InputError when tracing is asked for and its extra is not installed. Imports nothing."""
    if config.tracing.enabled and not all(map(_installed, _DISTRIBUTIONS)):
        raise InputError("tracing.enabled", True, "needs OpenTelemetry: pip install 'rayeval[otel]'")


def start_tracing(
    config: Config, plan: Plan, run_dir: RunDirectory, invocation: int, note: Callable[[str, str], None]
) -> TraceSender | None:
    """The sender of this invocation, running; None where none is asked for. ``invocation``: the epoch of the run's lock.

    Raises ConfigurationError for OTEL_* variables that cannot be used.
    """
    settings = config.tracing
    if not settings.enabled:
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        note("info", "tracing: OTEL_SDK_DISABLED is true, so nothing is exported")
        return None
    from rayeval import __version__
    from rayeval.otel.sink import otlp_sink

    sink = otlp_sink(endpoint=settings.endpoint, service_name=settings.service_name, version=__version__)
    context = _context(config, plan, run_dir, invocation, note)
    return TraceSender(context, sink, one_in=settings.sample_completed).start()


def _context(config: Config, plan: Plan, run_dir: RunDirectory, invocation: int, note: Callable[[str, str], None]) -> RunContext:
    model, key = config.model, config.model.api_key_env
    secret = os.environ.get(key) if key else None
    agent = {name: plan.semantic[name] for name in ("model", "prompt", "skills", "runtime")}
    return RunContext(
        name=run_dir.name,
        experiment=plan.experiment,
        fingerprint=plan.fingerprint,
        created_at=str(run_dir.read_manifest().get("created_at")),
        invocation=invocation,
        agent_name=model.name,
        agent_id=fingerprint(agent)[:16],
        agent_version=model.checkpoint_id,
        provider=config.tracing.provider_name or ("openai" if model.provider == "openai_chat" else model.provider),
        prices=prices_from(config.execution.prices.model_dump() if config.execution.prices else None),
        scrub=Scrub([secret] if secret else ()),
        content=_with_content(config, plan, note),
    )


def _with_content(config: Config, plan: Plan, note: Callable[[str, str], None]) -> bool:
    """Content takes two yeses, and never leaves a test split."""
    if not config.tracing.content:
        return False
    if not content_wanted(os.environ.get(CONTENT_VARIABLE)):
        note("info", f"tracing.content has no effect: {CONTENT_VARIABLE}=true says so too")
        return False
    if Split(plan.split, plan.role, None, (), None, "").is_test:
        note("warning", "tracing.content has no effect: the content of a test split is not exported")
        return False
    return True


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
