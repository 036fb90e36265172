"""The frozen meaning of a run: what is hashed, and the jobs that follow from it.

A plan is made from a configuration without any call to a model or an environment. Its jobs depend on the task ids,
``repeats`` and the seed alone and are generated when asked for, so a plan of any size is small. ``semantic`` is
everything the fingerprint sees; of the prompt, the skill bank and the split it holds hashes, never a path.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rayeval.encoding import read_bounded
from rayeval.exceptions import ConfigurationError, InputError, PlanMismatchError, TestSplitGuardError
from rayeval.hashing import episode_seed, fingerprint
from rayeval.prompts import PromptBuilder
from rayeval.schemas import ACTION_PROTOCOL, MANIFEST_SCHEMA, PIPELINE_VERSION, EpisodeJob, JsonObject
from rayeval.selection import Selection
from rayeval.skills import load_skill_bank, make_skill_provider
from rayeval.tasks import Split, guard_test_split, load_split, resolve_persona, select_tasks

if TYPE_CHECKING:  # pydantic takes longer to import than a summary takes to print
    from rayeval.config import Config, LoadedConfig

FOREIGN_MANIFEST_SCHEMAS = frozenset({"shopsimrl-run-manifest-v1"})
"""Manifests that are read, with their job list, but never resumed."""
TEST_ACCESS_FILE = "test_access.jsonl"

_EPISODE_ID = re.compile(r"task-([0-9]{6,})__sample-([0-9]{3,})", re.ASCII)
_JOB_KEYS = ("task_id", "sample_id", "seed", "split")


_MAX_PROMPT_BYTES = 4 << 20


@dataclass(frozen=True)
class Plan:
    """See the module. Made by ``make_plan``, ``plan_of_manifest`` or ``from_json``."""

    semantic: JsonObject = field(repr=False)
    """Everything hashed."""
    fingerprint: str
    """``hashing.fingerprint(semantic)``."""
    experiment: str
    split: str
    task_ids: tuple[int, ...] = field(repr=False)
    """In job order; each has ``repeats`` jobs one after the other, the last perhaps fewer (``--limit``)."""
    repeats: int
    seed: int
    """The experiment's seed."""
    job_count: int
    jobs_sha256: str
    """``hashing.fingerprint`` of the list of ``{task_id, sample_id, seed, split}`` in job order."""
    persona: bool
    system_prompt: str = field(repr=False)
    """Empty when the plan was read from a manifest, which holds the hash alone."""
    skill_bank: JsonObject | None = field(repr=False)
    max_skills: int | None
    split_version: str | None
    role: str | None
    words: str
    """The selection as a sentence, or empty."""
    listed: tuple[EpisodeJob, ...] | None = field(default=None, repr=False)
    """The jobs of a foreign manifest, which lists them in place of what they follow from."""

    def jobs(self) -> Iterator[EpisodeJob]:
        """All jobs in order, lazily."""
        if self.listed is not None:
            yield from self.listed
            return
        yield from _generate(self.task_ids, self.repeats, self.seed, self.split, self.job_count)

    def job_at(self, i: int) -> EpisodeJob:
        """The job at 0 <= i < job_count. Raises IndexError."""
        if not 0 <= i < self.job_count:
            raise IndexError(f"job {i} of {self.job_count}")
        if self.listed is not None:
            return self.listed[i]
        position, sample_id = divmod(i, self.repeats)
        task_id = self.task_ids[position]
        return EpisodeJob(task_id, sample_id, episode_seed(self.seed, task_id, sample_id), self.split)

    def index_of(self, episode_id: str) -> int | None:
        """Where the episode stands in job order; None when it is not of this plan."""
        if self.listed is not None:
            return self._listed_positions.get(episode_id)
        match = _EPISODE_ID.fullmatch(episode_id)
        if match is None:
            return None
        task_id, sample_id = int(match[1]), int(match[2])
        position = self._positions.get(task_id)
        if position is None or sample_id >= self.repeats or EpisodeJob(task_id, sample_id, 0, "").episode_id != episode_id:
            return None
        i = position * self.repeats + sample_id
        return i if i < self.job_count else None

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {task_id: i for i, task_id in enumerate(self.task_ids)}

    @cached_property
    def _listed_positions(self) -> dict[str, int]:
        return {job.episode_id: i for i, job in enumerate(self.listed or ())}

    def to_json(self, tasks: bool = True) -> JsonObject:
        """A JSON object for ``from_json``. ``tasks=False`` leaves the tasks out: actors are sent their jobs."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["task_ids"] = list(self.task_ids) if tasks else []
        out["listed"] = None if self.listed is None or not tasks else [list(job) for job in self.listed]
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        listed = value.get("listed")
        jobs = None if listed is None else tuple(EpisodeJob(*row) for row in listed)
        return cls(**{**value, "task_ids": tuple(value["task_ids"]), "listed": jobs})


def make_plan(loaded: LoadedConfig, selection: Selection | None = None) -> Plan:
    """Read prompt, bank and split, choose the tasks, hash. Makes no call and writes nothing.

    Raises ConfigurationError, SplitError, SkillBankError, and TestSplitGuardError for a test split without its unlock.
    """
    selection = selection or Selection()
    config = loaded.config
    split = load_split(config.tasks.split_file, config.tasks.split)
    guard_test_split(split, config.tasks, config.skills.path, selection)
    persona = resolve_persona(config.environment.persona, split)
    system_prompt = _system_prompt(config)
    bank = None if config.skills.path is None else load_skill_bank(config.skills.path)
    max_skills = config.skills.max_skills if bank is not None else None
    seed, repeats = config.experiment.seed, config.tasks.repeats
    task_ids = select_tasks(split, config.tasks, seed, selection)
    job_count = len(task_ids) * repeats
    if selection.limit is not None and selection.limit < job_count:
        job_count = selection.limit
        task_ids = task_ids[: -(-job_count // repeats)]
    jobs_sha256 = _jobs_sha256(_generate(task_ids, repeats, seed, split.name, job_count))
    semantic: JsonObject = {
        "pipeline_version": PIPELINE_VERSION,
        "experiment": {"name": config.experiment.name, "seed": seed},
        "tasks": _tasks_semantic(config, split, selection, job_count, jobs_sha256),
        "environment": {"kind": config.environment.kind, "persona": persona, "options": config.environment.options},
        "runtime": {**config.runtime.model_dump(mode="json"), "action_protocol": ACTION_PROTOCOL},
        "prompt": PromptBuilder(system_prompt).identity(),
        "skills": make_skill_provider(bank, max_skills).identity(),
        "model": config.model.model_dump(mode="json", exclude={"base_url", "api_key_env"}),
    }
    return Plan(
        semantic=semantic,
        fingerprint=fingerprint(semantic),
        experiment=config.experiment.name,
        split=split.name,
        task_ids=task_ids,
        repeats=repeats,
        seed=seed,
        job_count=job_count,
        jobs_sha256=jobs_sha256,
        persona=persona,
        system_prompt=system_prompt,
        skill_bank=bank,
        max_skills=max_skills,
        split_version=split.version,
        role=split.role,
        words=selection.words,
    )


def manifest_of(plan: Plan, loaded: LoadedConfig, resolved_urls: Mapping[str, Sequence[str]] | None = None) -> JsonObject:
    """What ``manifest.json`` holds. ``resolved_urls``: URLs in use by ``model`` and ``environment``.

    A configured ``demo`` is written as ``demo``: the ports of bundled servers change with each start.
    """
    configured = {"model": loaded.config.model.base_urls, "environment": loaded.config.environment.base_urls}
    urls = {name: list(own if "demo" in own else (resolved_urls or {}).get(name, own)) for name, own in configured.items()}
    return {
        "schema_version": MANIFEST_SCHEMA,
        "created_at": datetime.now(UTC).isoformat(),
        "plan_fingerprint": plan.fingerprint,
        "plan": plan.semantic,
        "jobs": {
            "task_ids": list(plan.task_ids),
            "repeats": plan.repeats,
            "seed": plan.seed,
            "job_count": plan.job_count,
            "jobs_sha256": plan.jobs_sha256,
        },
        "urls": urls,
    }


def check_manifest(old: JsonObject, new: JsonObject, same_weights: bool = False) -> None:
    """Whether the run of ``old`` may be continued by ``new``.

    Raises PlanMismatchError with every key that differs, or for other model URLs while ``checkpoint_id`` is null.
    """
    from rayeval.config import differences

    schema = old.get("schema_version")
    if schema in FOREIGN_MANIFEST_SCHEMAS:
        raise PlanMismatchError(f"another program wrote the run ({schema}): it is read but not resumed; give another experiment.name")
    if schema != MANIFEST_SCHEMA or not isinstance(old.get("plan"), dict):
        raise PlanMismatchError(f"the run's manifest has the schema {schema!r}, not {MANIFEST_SCHEMA!r}; give another experiment.name")
    if fingerprint(old["plan"]) != old.get("plan_fingerprint"):
        raise PlanMismatchError("the run's manifest was changed by hand: plan_fingerprint is not its plan's; give another experiment.name")
    rows = differences(old["plan"], new["plan"])
    if rows or old["plan_fingerprint"] != new["plan_fingerprint"]:
        raise PlanMismatchError("the run directory holds another plan; give another experiment.name, or the same settings:", rows)
    rows = differences({"jobs": old.get("jobs") or {}}, {"jobs": new["jobs"]})
    if rows:
        raise PlanMismatchError("the run's manifest was changed by hand: its job list is not the plan's:", rows)
    before, now = (sorted((m.get("urls") or {}).get("model") or ()) for m in (old, new))
    if before != now and new["plan"]["model"].get("checkpoint_id") is None and not same_weights:
        raise PlanMismatchError(
            "the model's URL differs and model.checkpoint_id is null, so nothing says that the weights are the same; "
            "give --same-weights if they are, or another experiment.name:",
            [("model.base_url", before, now)],
        )


def plan_of_manifest(manifest: JsonObject) -> Plan:
    """The plan of a run on disk, ours or ``shopsimrl-run-manifest-v1``. Raises InputError."""
    schema = manifest.get("schema_version")
    try:
        if schema == MANIFEST_SCHEMA:
            return _own_plan(manifest)
        if schema in FOREIGN_MANIFEST_SCHEMAS:
            return _foreign_plan(manifest)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("manifest.json", None, f"is damaged ({type(error).__name__}: {error}); give an intact run") from None
    known = ", ".join(sorted({MANIFEST_SCHEMA, *FOREIGN_MANIFEST_SCHEMAS}))
    raise InputError("manifest.schema_version", schema, f"give a run whose manifest is one of {known}")


def record_test_access(plan: Plan, loaded: LoadedConfig) -> Path | None:
    """Append who runs a test split, when and why, beside the split file. -> the log; None for any other split.

    Durable on return. Raises TestSplitGuardError when it cannot be written: an access that leaves no record is refused.
    """
    tasks = loaded.config.tasks
    if not Split(plan.split, plan.role, None, (), None, "").is_test:
        return None
    row = {
        "at": datetime.now(UTC).isoformat(),
        "who": _who(),
        "experiment": plan.experiment,
        "fingerprint": plan.fingerprint,
        "split_file": tasks.split_file.name,
        "split": plan.split,
        "reason": tasks.unlock_test,
    }
    path = tasks.split_file.parent / TEST_ACCESS_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            line = ("\n" if torn else "") + json.dumps(row, ensure_ascii=False) + "\n"
            data = line.encode("utf-8", "backslashreplace")
            if os.write(handle, data) != len(data):
                raise OSError("the line was written in part")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise TestSplitGuardError(
            f"a run of a test split must be recorded, and {path} cannot be written ({error}); make it writable"
        ) from error
    return path


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose uid has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _generate(task_ids: Sequence[int], repeats: int, seed: int, split: str, count: int) -> Iterator[EpisodeJob]:
    left = count
    for task_id in task_ids:
        for sample_id in range(min(repeats, left)):
            yield EpisodeJob(task_id, sample_id, episode_seed(seed, task_id, sample_id), split)
        left -= repeats


def _jobs_sha256(jobs: Iterator[EpisodeJob]) -> str:
    """Equal to ``fingerprint([{...} for job in jobs])`` without holding the list (tested)."""
    total = hashlib.sha256()
    opening = b"["
    tails: dict[str, str] = {}
    for task_id, sample_id, seed, split in jobs:
        name = tails.get(split)
        if name is None:
            name = tails[split] = json.dumps(split, ensure_ascii=False)
        total.update(opening + f'{{"sample_id":{sample_id},"seed":{seed},"split":{name},"task_id":{task_id}}}'.encode())
        opening = b","
    total.update(b"]" if opening == b"," else b"[]")
    return total.hexdigest()


def _tasks_semantic(config: Config, split: Split, selection: Selection, job_count: int, jobs_sha256: str) -> JsonObject:
    return {
        "split": split.name,
        "role": split.role,
        "split_version": split.version,
        "split_sha256": split.sha256,
        "task_ids": None if config.tasks.task_ids is None else list(config.tasks.task_ids),
        "sample_size": config.tasks.sample_size,
        "repeats": config.tasks.repeats,
        "selection": selection.to_json(),
        "job_count": job_count,
        "jobs_sha256": jobs_sha256,
    }


def _system_prompt(config: Config) -> str:
    """Without byte order mark, carriage returns and outer blank space: a checkout on Windows hashes the same."""
    text, path = config.prompt.system_prompt, config.prompt.system_prompt_file
    key = "prompt.system_prompt"
    if path is not None:
        key = "prompt.system_prompt_file"
        try:
            text = read_bounded(path, _MAX_PROMPT_BYTES).decode("utf-8-sig")
        except FileNotFoundError:
            raise ConfigurationError(key, str(path), "no such file; give the path of a text file") from None
        except OSError as error:
            raise ConfigurationError(key, str(path), f"cannot be read ({error.strerror}); give a readable file") from None
        except UnicodeDecodeError:
            raise ConfigurationError(key, str(path), "not UTF-8; save the file as UTF-8") from None
    text = (text or "").replace("\r\n", "\n").strip()
    if not text:
        raise ConfigurationError(key, None if path is None else str(path), "is blank; give a text")
    return text


def _own_plan(manifest: JsonObject) -> Plan:
    semantic, jobs = manifest["plan"], manifest["jobs"]
    tasks = semantic["tasks"]
    task_ids, repeats, job_count = tuple(jobs["task_ids"]), int(jobs["repeats"]), int(jobs["job_count"])
    if len(task_ids) != -(-job_count // repeats):
        hint = f"has {len(task_ids)} tasks for {job_count} jobs of {repeats} repeats; give an intact run"
        raise InputError("manifest.jobs", None, hint)
    selection = tasks.get("selection")
    return Plan(
        semantic=semantic,
        fingerprint=manifest["plan_fingerprint"],
        experiment=semantic["experiment"]["name"],
        split=tasks["split"],
        task_ids=task_ids,
        repeats=repeats,
        seed=jobs["seed"],
        job_count=job_count,
        jobs_sha256=jobs["jobs_sha256"],
        persona=semantic["environment"]["persona"],
        system_prompt="",
        skill_bank=None,
        max_skills=semantic["skills"].get("max_skills"),
        split_version=tasks.get("split_version"),
        role=tasks.get("role"),
        words=Selection(**selection).words if selection else "",
    )


def _foreign_plan(manifest: JsonObject) -> Plan:
    semantic = manifest["plan"]
    listed = tuple(EpisodeJob(*(job[key] for key in _JOB_KEYS)) for job in semantic["jobs"])
    if len({job.episode_id for job in listed}) < len(listed):
        raise InputError("manifest.plan.jobs", None, "lists an episode twice; give an intact run")
    split = semantic.get("task_split") or {}
    experiment = semantic.get("experiment")
    named = experiment if isinstance(experiment, dict) else {"name": experiment}
    return Plan(
        semantic=semantic,
        fingerprint=manifest["plan_fingerprint"],
        experiment=str(named.get("name") or ""),
        split=str(split.get("name") or (listed[0].split if listed else "")),
        task_ids=tuple(dict.fromkeys(job.task_id for job in listed)),
        repeats=max((job.sample_id for job in listed), default=0) + 1,
        seed=int(named.get("seed") or 0),
        job_count=len(listed),
        jobs_sha256=_jobs_sha256(iter(listed)),
        persona=bool(split.get("persona")),
        system_prompt="",
        skill_bank=None,
        max_skills=(semantic.get("skills") or {}).get("max_skills"),
        split_version=split.get("split_version"),
        role=split.get("role"),
        words="",
        listed=listed,
    )


__all__ = [
    "FOREIGN_MANIFEST_SCHEMAS",
    "TEST_ACCESS_FILE",
    "Plan",
    "Selection",
    "check_manifest",
    "make_plan",
    "manifest_of",
    "plan_of_manifest",
    "record_test_access",
]
