from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayeval.config import load_config
from rayeval.exceptions import ConfigurationError, InputError, PlanMismatchError, SkillBankError, SplitError, TestSplitGuardError
from rayeval.hashing import fingerprint
from rayeval.plan import Plan, check_manifest, make_plan, manifest_of, plan_of_manifest, record_test_access
from rayeval.schemas import EpisodeJob
from rayeval.selection import Selection

SMOKE = Path(__file__).parents[1] / "configs/smoke.yaml"
BANK = {"schema_version": "shopsimrl-skillbank-v1", "skills": [{"skill_id": "s1", "content": "Check the size."}]}


def project(root: Path, entry: dict[str, Any] | None = None, name: str = "val") -> Path:
    """A configuration with its split, prompt and bank in ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    splits = {name: entry or {"task_ids": [2, 11, 7], "persona": True}}
    (root / "split.json").write_text(json.dumps({"version": "v1", "splits": splits}))
    (root / "prompt.txt").write_text("Buy what is asked for.\n")
    (root / "bank.json").write_text(json.dumps(BANK))
    (root / "c.yaml").write_text(
        f"experiment: {{name: e, seed: 42}}\ntasks: {{split_file: split.json, split: {name}}}\n"
        "environment: {base_url: http://shop:5700}\nprompt: {system_prompt_file: prompt.txt}\n"
        "model: {name: m, base_url: http://model/v1}\n"
    )
    return root / "c.yaml"


def plan_of(path: Path, *overrides: str, selection: Selection | None = None) -> Plan:
    return make_plan(load_config(path, overrides), selection)


def manifest(path: Path, *overrides: str, urls: dict[str, list[str]] | None = None) -> dict[str, Any]:
    loaded = load_config(path, overrides)
    out: dict[str, Any] = json.loads(json.dumps(manifest_of(make_plan(loaded), loaded, urls)))
    return out


def v4_manifest(jobs: list[tuple[int, int, int]]) -> dict[str, Any]:
    rows = [{"task_id": t, "sample_id": s, "seed": seed, "split": "val"} for t, s, seed in jobs]
    split = {"name": "val", "source_path": "/elsewhere/s.json", "split_version": None, "persona": True, "task_count": 2}
    plan = {"pipeline_version": "shopsimrl-v0.4", "experiment": "old", "task_split": split, "jobs": rows, "skills": {"provider": "none"}}
    return {"schema_version": "shopsimrl-run-manifest-v1", "plan_fingerprint": fingerprint(plan), "plan": plan}


@pytest.mark.parametrize(
    ("seed", "task_id", "sample_id", "expected"),
    [
        (20260830, 19, 0, 2694671387),
        (20260830, 20, 1, 3915785806),
        (42, 2, 0, 601474708),
        (42, 11, 2, 1228260246),
        (20260829, 1234, 0, 4008453968),
    ],
)
def test_job_seeds_are_the_vectors(tmp_path: Path, seed: int, task_id: int, sample_id: int, expected: int) -> None:
    path = project(tmp_path, {"task_ids": [task_id]})
    plan = plan_of(path, f"experiment.seed={seed}", f"tasks.repeats={sample_id + 1}")
    assert plan.job_at(sample_id) == EpisodeJob(task_id, sample_id, expected, "val")


def test_jobs_go_task_by_task_in_split_order(tmp_path: Path) -> None:
    jobs = list(plan_of(project(tmp_path), "tasks.repeats=2").jobs())
    assert [j.episode_id for j in jobs[:3]] == ["task-000002__sample-000", "task-000002__sample-001", "task-000011__sample-000"]
    assert [(j.task_id, j.sample_id) for j in jobs] == [(2, 0), (2, 1), (11, 0), (11, 1), (7, 0), (7, 1)]


def test_sampling_follows_the_experiment_seed(tmp_path: Path) -> None:
    plan = plan_of(project(tmp_path, {"start": 0, "end": 100}), "tasks.sample_size=5")
    assert plan.task_ids == tuple(random.Random(42).sample(range(100), 5))


def test_the_hash_of_the_jobs_is_that_of_their_list(tmp_path: Path) -> None:
    plan = plan_of(project(tmp_path, name='"中 val"'), "tasks.repeats=3", "tasks.split='\"中 val\"'")
    assert plan.jobs_sha256 == fingerprint([j._asdict() for j in plan.jobs()])


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 2_000_000), min_size=1, max_size=12, unique=True),
    repeats=st.integers(1, 1200),
    limit=st.none() | st.integers(1, 200),
    data=st.data(),
)
def test_index_and_job_are_inverse(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], repeats: int, limit: int | None, data: Any
) -> None:
    path = project(tmp_path_factory.mktemp("p"), {"task_ids": ids})
    plan = plan_of(path, f"tasks.repeats={repeats}", selection=Selection(limit=limit))
    jobs = list(plan.jobs())
    assert len(jobs) == plan.job_count == min(len(ids) * repeats, limit or len(ids) * repeats)
    i = data.draw(st.integers(0, plan.job_count - 1))
    assert plan.job_at(i) == jobs[i]
    assert plan.index_of(jobs[i].episode_id) == i
    past = EpisodeJob(ids[-1], repeats, 0, "val")
    assert plan.index_of(past.episode_id) is None


def test_strange_episode_ids_are_not_of_the_plan(tmp_path: Path) -> None:
    plan = plan_of(project(tmp_path))
    for strange in (
        "",
        "task-2__sample-0",
        "task-0000002__sample-000",
        "task-000002__sample-0000",
        "task-000003__sample-000",
        "task-000002__sample-000 ",
    ):
        assert plan.index_of(strange) is None
    for outside in (-1, 3):
        with pytest.raises(IndexError):
            plan.job_at(outside)


_EXECUTION = {
    "concurrency": st.integers(1, 5000),
    "actors": st.just("auto") | st.integers(1, 64),
    "attempts": st.integers(1, 9),
    "resume": st.booleans(),
    "fsync": st.sampled_from(["batch", "episode"]),
    "order": st.sampled_from(["longest_first", "plan"]),
    "max_failed": st.integers(0, 9) | st.just("5%"),
    "model_timeout_s": st.floats(0.1, 1e4),
    "trust_env": st.booleans(),
}


@settings(max_examples=40, deadline=None)
@given(execution=st.fixed_dictionaries({}, optional=_EXECUTION))
def test_no_execution_setting_changes_plan_or_jobs(execution: dict[str, Any]) -> None:
    overrides = [f"execution.{key}={json.dumps(value)}" for key, value in execution.items()]
    changed, plain = plan_of(SMOKE, *overrides), plan_of(SMOKE)
    assert changed.fingerprint == plain.fingerprint
    assert list(changed.jobs()) == list(plain.jobs())


def test_place_addresses_and_secrets_stay_outside_the_fingerprint(tmp_path: Path) -> None:
    plain = plan_of(project(tmp_path / "a"))
    moved = plan_of(
        project(tmp_path / "b # 中文 % 20"),
        "experiment.output_dir=/elsewhere",
        "environment.base_url=[http://x, http://y]",
        "model.base_url=demo",
        "model.api_key_env=SOME_KEY",
        "tasks.unlock_test=reason",
    )
    assert moved.fingerprint == plain.fingerprint
    assert str(tmp_path) not in json.dumps(moved.semantic)
    assert "SOME_KEY" not in json.dumps(moved.semantic)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("experiment.name=f", "experiment.name"),
        ("experiment.seed=43", "experiment.seed"),
        ("tasks.repeats=2", "tasks.repeats"),
        ("tasks.sample_size=3", "tasks.sample_size"),
        ("tasks.task_ids=[2, 11, 7]", "tasks.task_ids"),
        ("runtime.max_steps=31", "runtime.max_steps"),
        ("runtime.tool_schema=static", "runtime.tool_schema"),
        ("skills.path=bank.json", "skills.provider"),
        ("model.provider=my.Model", "model.provider"),
        ("model.name=n", "model.name"),
        ("model.checkpoint_id=c", "model.checkpoint_id"),
        ("model.temperature=0.7", "model.temperature"),
        ("model.top_p=0.9", "model.top_p"),
        ("model.max_tokens=1", "model.max_tokens"),
        ("model.send_seed=false", "model.send_seed"),
        ("model.tool_choice=required", "model.tool_choice"),
        ("model.extra_body={top_k: 20}", "model.extra_body.top_k"),
        ("environment.kind=my.Env", "environment.kind"),
    ],
)
def test_each_semantic_key_changes_the_fingerprint_and_is_named(tmp_path: Path, override: str, key: str) -> None:
    path = project(tmp_path)
    with pytest.raises(PlanMismatchError) as caught:
        check_manifest(manifest(path), manifest(path, override))
    assert key in [row[0] for row in caught.value.differences]
    assert f"\n  {key}: " in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("file", ["prompt.txt", "split.json", "bank.json"])
def test_the_content_of_each_file_enters(tmp_path: Path, file: str) -> None:
    path = project(tmp_path)
    before = plan_of(path, "skills.path=bank.json").fingerprint
    changed = {"prompt.txt": ("Buy", "Get"), "split.json": ("2,", "3,"), "bank.json": ("size", "colour")}[file]
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(*changed))
    assert plan_of(path, "skills.path=bank.json").fingerprint != before


def test_options_of_a_class_of_ones_own_enter(tmp_path: Path) -> None:
    path = project(tmp_path)
    one, two = (plan_of(path, "environment.kind=my.Env", f"environment.options.level={n}") for n in (1, 2))
    assert one.fingerprint != two.fingerprint


def test_line_ends_of_the_prompt_do_not_matter(tmp_path: Path) -> None:
    path = project(tmp_path)
    (tmp_path / "prompt.txt").write_bytes("一\n二\n".encode())
    before = plan_of(path)
    (tmp_path / "prompt.txt").write_bytes(b"\xef\xbb\xbf" + "一\r\n二".encode())
    assert plan_of(path).fingerprint == before.fingerprint
    assert before.system_prompt == "一\n二"


@pytest.mark.parametrize("data", [None, b" \n", b"\xff"])
def test_a_prompt_that_cannot_be_used_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = project(tmp_path)
    (tmp_path / "prompt.txt").unlink()
    if data is not None:
        (tmp_path / "prompt.txt").write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"prompt\.system_prompt_file"):
        plan_of(path)


def test_missing_split_and_bank_are_named(tmp_path: Path) -> None:
    path = project(tmp_path)
    with pytest.raises(SplitError, match=r"tasks\.split_file"):
        plan_of(path, "tasks.split_file=none.json")
    with pytest.raises(SkillBankError, match=r"skills\.path"):
        plan_of(path, "skills.path=none.json")


def test_a_selection_is_semantic_and_in_words(tmp_path: Path) -> None:
    path = project(tmp_path)
    whole = plan_of(path)
    part = plan_of(path, selection=Selection(limit=2, where="task_id != 11"))
    assert [j.task_id for j in part.jobs()] == [2, 7]
    assert part.words == "where task_id != 11, the first 2 episodes"
    assert part.semantic["tasks"]["selection"] == {"limit": 2, "task": None, "where": "task_id != 11"}
    assert part.fingerprint != whole.fingerprint
    assert whole.words == ""


def test_a_limit_counts_episodes_in_job_order(tmp_path: Path) -> None:
    plan = plan_of(project(tmp_path), "tasks.repeats=2", selection=Selection(limit=3))
    assert [(j.task_id, j.sample_id) for j in plan.jobs()] == [(2, 0), (2, 1), (11, 0)]
    assert plan.task_ids == (2, 11)
    assert plan.index_of("task-000011__sample-001") is None


@pytest.mark.parametrize("selection", [Selection(), Selection(limit=1)])
def test_a_plan_survives_json_and_pickle(tmp_path: Path, selection: Selection) -> None:
    plan = plan_of(project(tmp_path), "skills.path=bank.json", selection=selection)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_an_actor_s_plan_has_no_task_list(tmp_path: Path) -> None:
    plan = plan_of(project(tmp_path, {"start": 0, "end": 100_000}))
    sent = json.dumps(plan.to_json(tasks=False))
    assert len(sent) < 10_000
    assert Plan.from_json(json.loads(sent)).fingerprint == plan.fingerprint


def test_two_hundred_thousand_jobs_are_quick_and_lazy(tmp_path: Path) -> None:
    path = project(tmp_path, {"start": 0, "end": 100_000})
    began = time.monotonic()
    plan = plan_of(path, "tasks.repeats=2")
    assert plan.job_count == 200_000
    assert plan.job_at(199_999).episode_id == "task-099999__sample-001"
    assert plan.index_of("task-099999__sample-001") == 199_999
    assert next(plan.jobs()).task_id == 0
    assert time.monotonic() - began < 30  # a hang guard; about one second


def test_a_manifest_leads_back_to_its_plan(tmp_path: Path) -> None:
    path = project(tmp_path, {"task_ids": [5, 3], "role": "val", "persona": True})
    loaded = load_config(path, ["skills.path=bank.json", "skills.max_skills=1", "tasks.repeats=2"])
    plan = make_plan(loaded, Selection(limit=3))
    read = plan_of_manifest(json.loads(json.dumps(manifest_of(plan, loaded))))
    assert list(read.jobs()) == list(plan.jobs())
    left_out = {"system_prompt": "", "skill_bank": None}
    assert read.to_json() == {**plan.to_json(), **left_out}


def test_a_v4_manifest_is_read_with_its_own_jobs() -> None:
    plan = plan_of_manifest(v4_manifest([(3, 0, 11), (3, 1, 12), (8, 0, 13)]))
    assert (plan.experiment, plan.split, plan.job_count, plan.repeats, plan.persona) == ("old", "val", 3, 2, True)
    assert list(plan.jobs()) == [EpisodeJob(3, 0, 11, "val"), EpisodeJob(3, 1, 12, "val"), EpisodeJob(8, 0, 13, "val")]
    assert plan.job_at(2).seed == 13
    assert plan.index_of("task-000008__sample-000") == 2
    assert plan.index_of("task-000008__sample-001") is None
    assert plan.jobs_sha256 == fingerprint([j._asdict() for j in plan.jobs()])
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"schema_version": "x"},
        {"schema_version": "rayeval-run-manifest-v1"},
        v4_manifest([(1, 0, 1), (1, 0, 2)]),
        {**v4_manifest([]), "plan": None},
    ],
)
def test_a_damaged_manifest_is_one_line(damaged: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        plan_of_manifest(damaged)
    assert "\n" not in str(caught.value)


def test_a_manifest_whose_tasks_do_not_fit_its_count_is_damaged(tmp_path: Path) -> None:
    damaged = manifest(project(tmp_path))
    damaged["jobs"]["task_ids"].pop()
    with pytest.raises(InputError, match=r"manifest\.jobs"):
        plan_of_manifest(damaged)


def test_equal_plans_may_go_on(tmp_path: Path) -> None:
    path = project(tmp_path)
    check_manifest(manifest(path), manifest(path, "execution.concurrency=9", "environment.base_url=http://other"), False)


def test_other_urls_need_a_checkpoint_or_a_word(tmp_path: Path) -> None:
    path = project(tmp_path)
    old, new = manifest(path), manifest(path, "model.base_url=http://other/v1")
    with pytest.raises(PlanMismatchError, match="--same-weights") as caught:
        check_manifest(old, new, False)
    assert caught.value.differences == (("model.base_url", ["http://model/v1"], ["http://other/v1"]),)
    check_manifest(old, new, True)
    named = "model.checkpoint_id=step-900"
    check_manifest(manifest(path, named), manifest(path, named, "model.base_url=http://other/v1"), False)


def test_the_order_of_urls_does_not_matter(tmp_path: Path) -> None:
    path = project(tmp_path)
    check_manifest(manifest(path, "model.base_url=[http://a, http://b]"), manifest(path, "model.base_url=[http://b, http://a]"), False)


def test_demo_compares_as_demo_whatever_its_port() -> None:
    first, second = (
        manifest(SMOKE, urls={"model": [f"http://127.0.0.1:{port}/v1"], "environment": [f"http://127.0.0.1:{port + 1}"]})
        for port in (4000, 5000)
    )
    assert first["urls"] == {"model": ["demo"], "environment": ["demo"]}
    check_manifest(first, second, False)
    with pytest.raises(PlanMismatchError):
        check_manifest(first, manifest(SMOKE, "model.base_url=http://127.0.0.1:4000/v1"), False)


def test_urls_in_use_stand_in_the_manifest(tmp_path: Path) -> None:
    assert manifest(project(tmp_path), urls={"model": ["http://m2/v1"]})["urls"] == {
        "model": ["http://m2/v1"],
        "environment": ["http://shop:5700"],
    }


@pytest.mark.parametrize("edit", ["plan", "jobs", "schema_version"])
def test_an_edited_manifest_is_not_resumed(tmp_path: Path, edit: str) -> None:
    path = project(tmp_path)
    old = manifest(path)
    if edit == "plan":
        old["plan"]["model"]["temperature"] = 0
    elif edit == "jobs":
        old["jobs"]["task_ids"] = [1]
    else:
        old["schema_version"] = "shopsimrl-run-manifest-v1"
    with pytest.raises(PlanMismatchError, match=r"experiment\.name|job list"):
        check_manifest(old, manifest(path), True)


def test_a_test_split_is_refused_until_unlocked(tmp_path: Path) -> None:
    path = project(tmp_path, {"task_ids": [1, 2], "role": "test"})
    with pytest.raises(TestSplitGuardError, match="unlock_test"):
        plan_of(path)
    plan = plan_of(path, "tasks.unlock_test=final")
    assert plan.role == "test"
    assert plan.fingerprint == plan_of(path, "tasks.unlock_test=another reason").fingerprint
    with pytest.raises(TestSplitGuardError, match=r"skills\.path"):
        plan_of(path, "tasks.unlock_test=final", "skills.path=bank.json")
    with pytest.raises(TestSplitGuardError, match="--limit"):
        plan_of(path, "tasks.unlock_test=final", selection=Selection(limit=1))


def test_planning_a_test_split_writes_nothing_and_running_it_is_recorded(tmp_path: Path) -> None:
    path = project(tmp_path, {"task_ids": [1, 2], "role": "test"})
    loaded = load_config(path, ["tasks.unlock_test=最终评测"])
    plan = make_plan(loaded)
    log = tmp_path / "test_access.jsonl"
    assert not log.exists()
    assert record_test_access(plan, loaded) == log
    log.write_text(log.read_text() + '{"torn')
    record_test_access(plan, loaded)
    first, torn, second = log.read_text().splitlines()
    assert torn == '{"torn'
    for row in map(json.loads, (first, second)):
        assert (row["fingerprint"], row["reason"], row["split"]) == (plan.fingerprint, "最终评测", "val")
        assert row["who"]
        assert row["at"].endswith("+00:00")


def test_other_splits_are_not_recorded(tmp_path: Path) -> None:
    loaded = load_config(project(tmp_path))
    assert record_test_access(make_plan(loaded), loaded) is None
    assert not (tmp_path / "test_access.jsonl").exists()


def test_an_access_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    loaded = load_config(project(tmp_path, {"task_ids": [1]}, "test"), ["tasks.unlock_test=final"])
    (tmp_path / "test_access.jsonl").mkdir()
    with pytest.raises(TestSplitGuardError, match="make it writable"):
        record_test_access(make_plan(loaded), loaded)


def test_reading_manifests_does_not_load_the_configuration() -> None:
    code = "import sys, rayeval.plan; sys.exit('pydantic' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_smoke_plan_is_eighty_episodes() -> None:
    plan = plan_of(SMOKE)
    assert (plan.job_count, plan.persona, plan.task_ids) == (80, True, tuple(range(40)))
    demo = plan_of(SMOKE, "tasks.split=test", "tasks.repeats=1", "tasks.unlock_test=trying it out")
    assert demo.task_ids == tuple(range(40, 48))


def test_the_demo_splits_are_the_demo_s_tasks() -> None:
    catalogue = json.loads((SMOKE.parents[1] / "rayeval/demo/data/catalogue.json").read_text(encoding="utf-8"))
    tasks = {t["task_id"] for product in catalogue for t in product["instructions"] if t.get("attributes")}
    splits = json.loads((SMOKE.parent / "splits/demo.json").read_text(encoding="utf-8"))["splits"]
    assert sorted(t for split in splits.values() for t in split["task_ids"]) == sorted(tasks)
