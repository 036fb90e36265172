"""rayeval: runs LLM-agent episodes on Ray and says, with numbers that hold, which agent is better.

Names are imported when they are first used, so that ``import rayeval`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayeval.config import Config, LoadedConfig, load_config
    from rayeval.demo import DemoServers, start_demo
    from rayeval.display import NoDisplay, RunDisplay
    from rayeval.environments import Environment, EnvironmentEpisode, FakeEnvironment, ShopSimulator, load_environment
    from rayeval.exceptions import RayevalError
    from rayeval.figures import figures_of
    from rayeval.hashing import canonical_hash, canonical_trace
    from rayeval.models import ChatModel, ModelRequest, OpenAIChat, ScriptedModel, load_model
    from rayeval.plan import Plan, Selection, make_plan
    from rayeval.prompts import PromptBuilder
    from rayeval.runtime import AgentRuntime, RuntimeSettings
    from rayeval.schemas import EpisodeJob, ErrorKind, ExitCode, ModelOutput, Skill, Termination, ToolCall
    from rayeval.skills import AssignedSkills, JsonSkillBank, NoSkills, SkillProvider, load_skill_bank
    from rayeval.store import RunDirectory, iter_traces, list_runs, resolve_run
    from rayeval.summary import Aggregate, summarize_run
    from rayeval.transport import AiohttpTransport, FakeTransport, HttpTransport
    from rayeval.verification import compare_canonical, verify_run

__version__ = "0.1.0"

_HOMES = {
    "config": ("Config", "LoadedConfig", "load_config"),
    "demo": ("DemoServers", "start_demo"),
    "display": ("NoDisplay", "RunDisplay"),
    "environments": ("Environment", "EnvironmentEpisode", "FakeEnvironment", "ShopSimulator", "load_environment"),
    "exceptions": ("RayevalError",),
    "figures": ("figures_of",),
    "hashing": ("canonical_hash", "canonical_trace"),
    "models": ("ChatModel", "ModelRequest", "OpenAIChat", "ScriptedModel", "load_model"),
    "plan": ("Plan", "Selection", "make_plan"),
    "prompts": ("PromptBuilder",),
    "runtime": ("AgentRuntime", "RuntimeSettings"),
    "schemas": ("EpisodeJob", "ErrorKind", "ExitCode", "ModelOutput", "Skill", "Termination", "ToolCall"),
    "skills": ("AssignedSkills", "JsonSkillBank", "NoSkills", "SkillProvider", "load_skill_bank"),
    "store": ("RunDirectory", "iter_traces", "list_runs", "resolve_run"),
    "summary": ("Aggregate", "summarize_run"),
    "transport": ("AiohttpTransport", "FakeTransport", "HttpTransport"),
    "verification": ("compare_canonical", "verify_run"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AgentRuntime",
    "Aggregate",
    "AiohttpTransport",
    "AssignedSkills",
    "ChatModel",
    "Config",
    "DemoServers",
    "Environment",
    "EnvironmentEpisode",
    "EpisodeJob",
    "ErrorKind",
    "ExitCode",
    "FakeEnvironment",
    "FakeTransport",
    "HttpTransport",
    "JsonSkillBank",
    "LoadedConfig",
    "ModelOutput",
    "ModelRequest",
    "NoDisplay",
    "NoSkills",
    "OpenAIChat",
    "Plan",
    "PromptBuilder",
    "RayevalError",
    "RunDirectory",
    "RunDisplay",
    "RuntimeSettings",
    "ScriptedModel",
    "Selection",
    "ShopSimulator",
    "Skill",
    "SkillProvider",
    "Termination",
    "ToolCall",
    "__version__",
    "canonical_hash",
    "canonical_trace",
    "compare_canonical",
    "figures_of",
    "iter_traces",
    "list_runs",
    "load_config",
    "load_environment",
    "load_model",
    "load_skill_bank",
    "make_plan",
    "resolve_run",
    "start_demo",
    "summarize_run",
    "verify_run",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'rayeval' has no attribute {name!r}")
    value = getattr(import_module(f"rayeval.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
