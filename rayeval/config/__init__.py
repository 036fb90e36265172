"""Configuration: one YAML file and ``--set`` overrides in, one frozen and typed ``Config`` out.

Everything above ``execution`` is semantic and enters the plan's fingerprint, except what ``NOT_SEMANTIC`` names;
``execution`` and ``tracing`` never do.
"""

from rayeval.config._diff import config_differences, differences, dotted
from rayeval.config._load import LoadedConfig, load_config, origins_table
from rayeval.config._models import (
    MIN_FENCE_S,
    NOT_SEMANTIC,
    NOT_SEMANTIC_SECTIONS,
    Config,
    EnvironmentSection,
    ExecutionSection,
    ExperimentSection,
    ModelSection,
    PromptSection,
    RuntimeSection,
    SkillsSection,
    TasksSection,
    TracingSection,
)
from rayeval.config._names import check_run_name
from rayeval.config._schema import config_keys, config_schema

__all__ = [
    "MIN_FENCE_S",
    "NOT_SEMANTIC",
    "NOT_SEMANTIC_SECTIONS",
    "Config",
    "EnvironmentSection",
    "ExecutionSection",
    "ExperimentSection",
    "LoadedConfig",
    "ModelSection",
    "PromptSection",
    "RuntimeSection",
    "SkillsSection",
    "TasksSection",
    "TracingSection",
    "check_run_name",
    "config_differences",
    "config_keys",
    "config_schema",
    "differences",
    "dotted",
    "load_config",
    "origins_table",
]
