"""The typed configuration. Field descriptions are the documentation of each key; docs/configuration.md has them all."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from rayeval.config._names import check_run_name

DEMO = "demo"
"""The ``base_url`` that starts the bundled servers for the run."""
NOT_SEMANTIC = frozenset(
    {
        "experiment.output_dir",
        "tasks.split_file",
        "tasks.unlock_test",
        "environment.base_url",
        "prompt.system_prompt_file",
        "skills.path",
        "model.base_url",
        "model.api_key_env",
    }
)
"""Keys above ``execution`` that stay outside the fingerprint. Of the three files the content enters, not the path."""
NOT_SEMANTIC_SECTIONS = ("execution", "tracing")
"""Sections of which no key enters the fingerprint."""
ENVIRONMENT_KINDS = ("shopsimulator",)
MODEL_PROVIDERS = ("openai_chat", "scripted")
RESERVED_BODY_KEYS = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "stream",
        "stream_options",
        "n",
        "seed",
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "api_key",
        "authorization",
    }
)
"""Keys of a request that have a setting of their own, that the engine owns, or that would put a secret on disk."""

MIN_FENCE_S = 10.0
"""Signs of life are due each 5 s and may take as long to arrive: two of them. With less an actor of a healthy run would take one that is
late for the end of its driver."""

_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_LIKE = re.compile(
    r"(sk|pk|rk|hf|gh[pousr]|xox[a-z]|api|key)_(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}|(?=.*[0-9])(?=.*[a-z])[A-Za-z0-9]{32,}"
)
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)%")


def _kind_of(known: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known and not _DOTTED_PATH.fullmatch(value):
            raise ValueError(f"give {', '.join(known)}, or the dotted path of a class (my_package.MyClass)")
        return value

    return AfterValidator(check)


def _url(value: str) -> str:
    if value == DEMO:
        return value
    try:
        parts = urlsplit(value)
        port_fits = parts.port is None or parts.port > 0
        host = parts.hostname
    except ValueError:
        port_fits, host = False, None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not port_fits or re.search(r"[\s\x00-\x1f\x7f]", value):
        raise ValueError("give an http:// or https:// URL, a list of them, or 'demo'")
    if "@" in parts.netloc:
        raise ValueError("give the URL without a user or password; a key belongs into the variable named by model.api_key_env")
    if "?" in value or "#" in value:
        raise ValueError("give the URL without a query or fragment: it stands in the manifest, and paths are appended to it")
    return value.rstrip("/")


def _urls(value: Any) -> Any:
    """One URL or a list -> the same shape, checked and trimmed."""
    if isinstance(value, str):
        return _url(value)
    if not isinstance(value, list | tuple) or not all(isinstance(u, str) for u in value):
        raise ValueError("give an http:// or https:// URL, a list of them, or 'demo'")
    trimmed = tuple(_url(u) for u in value)
    if not trimmed:
        raise ValueError("give at least one URL")
    if len(set(trimmed)) < len(trimmed):
        raise ValueError(f"give each URL once; {next(u for u in trimmed if trimmed.count(u) > 1)} is there twice")
    if DEMO in trimmed and len(trimmed) > 1:
        raise ValueError("give 'demo' alone or a list of URLs, not both")
    return trimmed


def _collector_url(value: str) -> str:
    if value == DEMO or not value.startswith(("http://", "https://")):
        raise ValueError("give the http:// or https:// URL of an OTLP collector")
    if "@" in value or "?" in value:
        raise ValueError("give the URL without user, password or query; a key belongs into the variable OTEL_EXPORTER_OTLP_HEADERS")
    return _url(value)


def _path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip() or "\0" in value:
        raise ValueError("give a path")
    if value.startswith("~"):
        raise ValueError("give the path written out: '~' is not expanded")
    return Path(value)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("give a text that is not blank")
    return value


def _variable_name(value: str) -> str:
    if not _VARIABLE.fullmatch(value) or _KEY_LIKE.fullmatch(value):
        raise ValueError("give the NAME of an environment variable, such as OPENAI_API_KEY; never the key itself")
    return value


def _max_failed(value: Any) -> Any:
    if isinstance(value, str):
        share = _SHARE.fullmatch(value)
        if not share or float(share[1]) > 100:
            raise ValueError('give a number of episodes (0 or more) or a share such as "2%"')
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('give a number of episodes (0 or more) or a share such as "2%"')
    return value


def _task_ids(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value:
        raise ValueError("give at least one task id, or null for the whole split")
    if len(set(value)) < len(value):
        raise ValueError("give each task id once")
    return value


def _extra_body(value: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(k for k in value if k.casefold() in RESERVED_BODY_KEYS)
    if taken:
        raise ValueError(f"give no {', '.join(taken)} here: the engine sets it, or it has a key of its own under model")
    return value


_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, AfterValidator(check_run_name)]
_Text = Annotated[str, AfterValidator(_not_blank)]
_FilePath = Annotated[Path, BeforeValidator(_path, json_schema_input_type=str)]
_Urls = Annotated[str | tuple[str, ...], BeforeValidator(_urls, json_schema_input_type=str | list[str])]
_Ids = Annotated[tuple[Annotated[int, Field(ge=0)], ...], AfterValidator(_task_ids), BeforeValidator(_tuple)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class ExperimentSection(_Section):
    """What the run is called and where it lies."""

    name: _Name = Field(description="Name of the run and of its directory. A changed plan needs a new name.")
    seed: int = Field(20260828, ge=-(2**63), lt=2**63, description="Every sampling and every episode seed comes from it.")
    output_dir: _FilePath = Field(Path("runs"), description="Directory that holds the run's directory.")


class TasksSection(_Section):
    """Which tasks, in which order, how often."""

    split_file: _FilePath = Field(description="Split manifest (JSON).")
    split: _Text = Field(description="Name of the split inside the manifest.")
    task_ids: _Ids | None = Field(None, description="These tasks of the split, in this order. Null: all, in the split's order.")
    sample_size: int | None = Field(None, ge=1, description="Draw so many tasks with experiment.seed. Null: no drawing.")
    repeats: int = Field(1, ge=1, le=100_000, description="Episodes of each task.")
    unlock_test: _Text | None = Field(None, description="The reason to run a test split; it is logged beside the split file.")


class EnvironmentSection(_Section):
    """Where episodes happen."""

    kind: Annotated[str, _kind_of(ENVIRONMENT_KINDS)] = Field(
        "shopsimulator", description="shopsimulator, or the dotted path of a class of your own."
    )
    base_url: _Urls | None = Field(
        None, description="URL of the server without the API path, a list of URLs, or demo. Required for shopsimulator."
    )
    persona: bool | None = Field(None, description="Whether tasks come with a user persona. Null: what the split says.")
    options: dict[str, Any] = Field(default_factory=dict, description="Handed to a class of your own as it is.")

    @property
    def base_urls(self) -> tuple[str, ...]:
        return _as_tuple(self.base_url)


class RuntimeSection(_Section):
    """How one episode runs."""

    max_steps: int = Field(30, ge=1, le=10_000, description="Model turns of an episode; protocol errors use them up too.")
    tool_schema: Literal["dynamic", "static"] = Field(
        "dynamic", description="dynamic: tools follow each page; static: one schema for the whole episode."
    )


class PromptSection(_Section):
    """The system prompt; exactly one of the two keys."""

    system_prompt: _Text | None = Field(None, description="The text itself.")
    system_prompt_file: _FilePath | None = Field(None, description="A UTF-8 text file.")


class SkillsSection(_Section):
    """Advice put into the system message."""

    path: _FilePath | None = Field(None, description="Skill bank (JSON). Null: no skills.")
    max_skills: int | None = Field(None, ge=1, description="The first so many that apply. Null: all.")


class ModelSection(_Section):
    """The policy and how it is sampled."""

    provider: Annotated[str, _kind_of(MODEL_PROVIDERS)] = Field(
        "openai_chat", description="openai_chat, scripted, or the dotted path of a class of your own."
    )
    name: _Text = Field(description="Model name as the server knows it.")
    base_url: _Urls | None = Field(None, description="URL with the /v1 prefix, a list of URLs, or demo. Required for openai_chat.")
    checkpoint_id: _Text | None = Field(None, description="Your name for the weights. With it, a run may be resumed on another URL.")
    api_key_env: Annotated[str, AfterValidator(_variable_name)] | None = Field(
        None, description="Name of the environment variable that holds the API key. Null: no key."
    )
    temperature: float = Field(0.6, ge=0, description="Sampling temperature.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling.")
    max_tokens: int = Field(4096, ge=1, description="Tokens of one turn, thinking included.")
    send_seed: bool = Field(True, description="Whether the step seed is sent.")
    tool_choice: Literal["auto", "required"] = Field("auto", description="tool_choice of the request.")
    extra_body: Annotated[dict[str, Any], AfterValidator(_extra_body)] = Field(
        default_factory=dict, description="More keys for the request body; none that the engine sets."
    )

    @property
    def base_urls(self) -> tuple[str, ...]:
        return _as_tuple(self.base_url)


class PricesSection(_Section):
    """What a million tokens cost."""

    prompt_per_million: float = Field(ge=0, description="Price of a million prompt tokens.")
    completion_per_million: float = Field(ge=0, description="Price of a million completion tokens.")
    cached_prompt_per_million: float | None = Field(
        None, ge=0, description="Price of a million prompt tokens that the server counts as cached. Null: as the others."
    )
    currency: _Text = Field("USD", max_length=12, description="Word shown behind amounts.")


class ExecutionSection(_Section):
    """How the work is done; never part of the fingerprint, free to change on a resume."""

    concurrency: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | Literal["auto"] = Field(
        64, description="Episodes in flight over all actors; auto: as many as the model endpoints turn out to bear."
    )
    actors: Annotated[StrictInt, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Ray actors; auto: one for about 256 episodes, at most the free CPUs, and one more while one is busy."
    )
    attempts: int = Field(3, ge=1, le=1000, description="Attempts of an episode in one invocation before it has failed for good.")
    resume: bool = Field(True, description="Reuse what the run directory holds; false: refuse one that holds completed episodes.")
    fsync: Literal["batch", "episode"] = Field(
        "batch", description="batch: traces that arrive together share one fsync; episode: one fsync each."
    )
    shards: StrictBool | Literal["auto"] = Field(
        "auto", description="Whether a run ends with Parquet shards; auto: when it completed on Ray and has 1,000 episodes or more."
    )
    order: Literal["longest_first", "plan"] = Field(
        "longest_first", description="longest_first: longest expected episodes start first; plan: the plan's order."
    )
    max_failed: Annotated[int | str, BeforeValidator(_max_failed, json_schema_input_type=int | str)] = Field(
        0, description='Episodes that may fail for good before the exit code is 1: a number, or a share such as "2%".'
    )
    exclusive_environment: StrictBool | Literal["auto"] = Field(
        "auto", description="Whether no one else uses the environment servers; auto: only for demo. Allows release_all."
    )
    reset_timeout_s: _Seconds = Field(120.0, description="Wait for a slot and the first page.")
    step_timeout_s: _Seconds = Field(30.0, description="One environment action.")
    model_timeout_s: _Seconds = Field(180.0, description="One HTTP attempt at the model.")
    episode_timeout_s: _Seconds = Field(3600.0, description="One episode, from the reset's answer on.")
    stall_timeout_s: _Seconds = Field(600.0, description="No reset answered for so long: drain, exit 5.")
    endpoint_outage_s: _Seconds = Field(600.0, description="No server reachable for so long: drain, exit 5.")
    fence_s: float = Field(30.0, ge=MIN_FENCE_S, description="An actor that hears nothing for so long stops acting.")
    grace_s: float = Field(60.0, ge=0, description="How long running episodes may go on after a stop signal.")
    model_attempts: int = Field(5, ge=1, le=1000, description="HTTP attempts of one model turn in total.")
    max_tokens_total: int | None = Field(None, ge=1, description="Tokens of the whole run, all attempts: then drain, exit 4. Null: no cap.")
    max_wall_s: float | None = Field(None, gt=0, description="Time of one invocation in seconds: then drain, exit 4. Null: no cap.")
    max_cost: float | None = Field(None, gt=0, description="Cost of the whole run by execution.prices: then drain, exit 4. Null: no cap.")
    prices: PricesSection | None = Field(
        None, description="prompt_per_million, completion_per_million, cached_prompt_per_million and currency. Null: no cost is counted."
    )
    trust_env: bool = Field(False, description="Use the proxy variables of the environment.")
    broker: StrictBool = Field(False, description="Share environment and model slots with the other jobs of the Ray cluster.")
    broker_weight: int = Field(1, ge=1, le=1000, description="This job's weight when slots are shared: 2 gets twice as many as 1.")
    model_slots: int | None = Field(
        None, ge=1, description="Episodes at one model endpoint; with broker, over all jobs of the cluster. Null: no limit."
    )

    def allowed_failures(self, planned: int) -> int:
        """How many of ``planned`` episodes may fail for good. A share is rounded down."""
        if isinstance(self.max_failed, int):
            return self.max_failed
        return math.floor(planned * float(self.max_failed.rstrip("%")) / 100 + 1e-9)


class TracingSection(_Section):
    """Spans of episodes for an OpenTelemetry backend; never part of the fingerprint, free to change on a resume."""

    enabled: bool = Field(False, description="Whether episodes are exported as OpenTelemetry traces. Needs the extra rayeval[otel].")
    endpoint: Annotated[str, AfterValidator(_collector_url)] | None = Field(
        None, description="URL of an OTLP collector over HTTP, with or without /v1/traces. Null: the OTEL_EXPORTER_OTLP_* variables."
    )
    sample_completed: int = Field(
        100, ge=0, description="One in so many completed episodes is exported; 1: all, 0: none. Failed attempts always are."
    )
    content: bool = Field(
        False,
        description="Whether prompts, answers and pages go along; OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT must say so too.",
    )
    service_name: _Text | None = Field(None, description="service.name of the spans. Null: OTEL_SERVICE_NAME, else rayeval.")
    provider_name: _Text | None = Field(
        None, description="gen_ai.provider.name, as vllm or sglang. Null: openai for openai_chat, else model.provider."
    )


class Config(_Section):
    """A whole configuration. Paths are absolute once ``load_config`` made it."""

    experiment: ExperimentSection
    tasks: TasksSection
    environment: EnvironmentSection
    runtime: RuntimeSection = Field(default_factory=RuntimeSection)
    prompt: PromptSection
    skills: SkillsSection = Field(default_factory=SkillsSection)
    model: ModelSection
    execution: ExecutionSection = Field(default_factory=ExecutionSection)
    tracing: TracingSection = Field(default_factory=TracingSection)

    @model_validator(mode="after")
    def _across_fields(self) -> Config:
        # Each message opens with the dotted key, which the loader reads back into the error's field.
        texts = (self.prompt.system_prompt, self.prompt.system_prompt_file)
        if texts.count(None) == 2:
            raise ValueError("prompt.system_prompt_file: required; give it, or prompt.system_prompt")
        if texts.count(None) == 0:
            raise ValueError("prompt.system_prompt_file: give it or prompt.system_prompt, not both")
        if self.environment.base_url is None and self.environment.kind in ENVIRONMENT_KINDS:
            raise ValueError("environment.base_url: required; give an http:// or https:// URL, a list of them, or 'demo'")
        if self.model.base_url is None and self.model.provider == "openai_chat":
            raise ValueError("model.base_url: required; give an http:// or https:// URL ending in /v1, a list of them, or 'demo'")
        if self.environment.options and self.environment.kind in ENVIRONMENT_KINDS:
            raise ValueError("environment.options: give none: they are for a class of your own in environment.kind")
        if self.execution.concurrency == "auto" and self.model.provider != "openai_chat":
            raise ValueError("execution.concurrency: auto watches the calls of openai_chat alone; give a number")
        if self.execution.max_cost is not None and self.execution.prices is None:
            raise ValueError("execution.max_cost: needs execution.prices: {prompt_per_million: .., completion_per_million: ..}")
        if self.execution.broker and self.execution.exclusive_environment is True:
            raise ValueError("execution.broker: give false, or execution.exclusive_environment: false: release_all ends other jobs' leases")
        return self


def _as_tuple(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value
