from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayeval.config import Config, load_config, origins_table
from rayeval.exceptions import ConfigurationError

MINIMAL = """\
experiment:
  name: run 1
tasks:
  split_file: split.json
  split: val
environment:
  base_url: http://shop:5700/
prompt:
  system_prompt: Buy what is asked for.
model:
  name: m
  base_url: [http://a:8000/v1/, http://b:8000/v1]
"""


def write(tmp_path: Path, text: str | bytes, name: str = "c.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path, *overrides: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load_config(path, overrides)
    assert "\n" not in str(caught.value)
    return caught.value


def test_left_out_sections_take_their_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL)).config
    assert config.runtime.max_steps == 30
    assert config.execution.concurrency == 64
    assert config.skills.path is None
    assert config.experiment.seed == 20260828


def test_an_empty_section_is_a_left_out_one(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, MINIMAL + "skills:\nexecution:\n")).config.execution.attempts == 3


def test_urls_lose_their_trailing_slash(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL)).config
    assert config.environment.base_urls == ("http://shop:5700",)
    assert config.model.base_urls == ("http://a:8000/v1", "http://b:8000/v1")


def test_a_config_survives_json(tmp_path: Path) -> None:
    overrides = ["tasks.task_ids=[3, 1]", "model.extra_body={a: [1, null]}", "execution.max_failed=2%"]
    config = load_config(write(tmp_path, MINIMAL), overrides).config
    assert Config.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config


def test_paths_are_taken_from_the_file_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a b#c?d%20 中文"
    odd.mkdir()
    write(odd, MINIMAL)
    monkeypatch.chdir(tmp_path)
    loaded = load_config(Path(odd.name) / "c.yaml", ["experiment.output_dir=../out", "skills.path=s/bank.json"])
    assert loaded.config.tasks.split_file == odd / "split.json"
    assert loaded.config.experiment.output_dir == tmp_path / "out"
    assert loaded.config.skills.path == odd / "s/bank.json"
    assert loaded.path == odd / "c.yaml"


def test_two_dots_behind_a_link_are_kept(tmp_path: Path) -> None:
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/away")
    (tmp_path / "far/split.json").write_text("{}")
    path = load_config(write(tmp_path, MINIMAL), ["tasks.split_file=link/../split.json"]).config.tasks.split_file
    assert path.read_text() == "{}"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_byte_order_mark_and_line_ends_do_not_matter(tmp_path: Path, end: str) -> None:
    plain = load_config(write(tmp_path, MINIMAL))
    marked = load_config(write(tmp_path, b"\xef\xbb\xbf" + MINIMAL.replace("\n", end).encode()))
    assert marked.config == plain.config
    assert marked.origins == plain.origins


def test_variables_are_never_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "secret")
    config = load_config(write(tmp_path, MINIMAL), ["model.name=${WORD}", "tasks.split=$WORD"]).config
    assert (config.model.name, config.tasks.split) == ("${WORD}", "$WORD")


def test_origins_name_line_override_and_default(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    origins = load_config(path, ["model.temperature=0", "model.extra_body.top_k=20"]).origins
    assert origins["tasks.split"] == f"{path}:5"
    assert origins["model.temperature"] == "--set"
    assert origins["model.extra_body"] == "--set"
    assert origins["model.top_p"] == "default"


def test_an_override_inside_an_object_of_the_file_names_both(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "  extra_body: {top_k: 5, keep: 1}\n")
    loaded = load_config(path, ["model.extra_body.top_k=20", "model.extra_body.top_k=30"])
    assert loaded.config.model.extra_body == {"top_k": 30, "keep": 1}
    assert loaded.origins["model.extra_body"] == f"{path}:13, --set"


def test_the_table_of_origins_has_every_key_once(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, MINIMAL))
    rows = origins_table(loaded)
    assert [key for key, _, _ in rows] == list(loaded.origins)
    assert ("tasks.split", "val", f"{loaded.path}:5") in rows


def test_the_text_is_kept_as_it_was(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, MINIMAL)).text == MINIMAL


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("model.temperature=1e-1", 0.1),
        ("model.name='5'", "5"),
        ("model.name=no", "no"),
        ("model.checkpoint_id=null", None),
        ("model.checkpoint_id=", None),
        ("model.checkpoint_id=a=b", "a=b"),
        ("model.extra_body={chat: {on: true}}", {"chat": {"on": True}}),
        ("tasks.task_ids=[3, 1]", (3, 1)),
        ("execution.max_failed=2.5%", "2.5%"),
        ("execution.actors=auto", "auto"),
        ("execution.exclusive_environment=false", False),
    ],
)
def test_override_values_are_yaml(tmp_path: Path, override: str, value: object) -> None:
    config = load_config(write(tmp_path, MINIMAL), [override]).config
    section, key = override.partition("=")[0].split(".")
    assert getattr(getattr(config, section), key) == value


def test_the_last_of_a_repeated_override_counts_and_is_noted(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, MINIMAL), ["model.temperature=1", "model.temperature=0"])
    assert loaded.config.model.temperature == 0
    assert loaded.notes == ["--set model.temperature is given more than once: the last one counts"]


def test_max_skills_without_a_bank_is_noted(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, MINIMAL), ["skills.max_skills=3"]).notes == ["skills.max_skills does nothing without skills.path"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("  temperatur: 1", "model.temperature"),
        ("  concurrency: 4", "execution.concurrency"),
        ("  timeout: 4", "execution.model_timeout_s"),
        ("modle:\n  x: 1", "did you mean model?"),
        ("models: []", "one configuration is for one model"),
        ("concurrency: 4", "execution.concurrency"),
    ],
)
def test_unknown_keys_name_the_nearest_and_the_line(tmp_path: Path, line: str, hint: str) -> None:
    path = write(tmp_path, MINIMAL + line + "\n")
    error = refused(path)
    assert hint in error.hint
    assert f"{path}:13" in error.hint


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("model.temperatur=1", "did you mean model.temperature?"),
        ("modle.name=x", "did you mean model.name?"),
        ("zzz=1", "known here are experiment, tasks"),
        ("model=1", "model.provider=value"),
        ("model.extra_body..a=1", "a name after each dot"),
        ("model.temperature", "section.key=value"),
        ("=1", "section.key=value"),
    ],
)
def test_override_keys_are_checked(tmp_path: Path, override: str, hint: str) -> None:
    assert hint in str(refused(write(tmp_path, MINIMAL), override))


def test_an_override_does_not_replace_a_value_by_an_object(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "  extra_body: {a: 1}\n")
    assert "model.extra_body.a is no object" in str(refused(path, "model.extra_body.a.b=1"))


@pytest.mark.parametrize(
    "key", ["experiment.name", "tasks.split_file", "tasks.split", "environment.base_url", "model.name", "model.base_url"]
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    name = key.partition(".")[2]
    section = key.partition(".")[0]
    lines = MINIMAL.splitlines()
    start = lines.index(f"{section}:")
    gone = next(i for i in range(start, len(lines)) if lines[i].strip().startswith(f"{name}:"))
    path = write(tmp_path, "\n".join(lines[:gone] + lines[gone + 1 :]) + "\n")
    error = refused(path)
    assert (error.field, error.hint.startswith("required")) == (key, True)


def test_a_missing_section_is_reported_by_its_key(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL.replace("prompt:\n  system_prompt: Buy what is asked for.\n", ""))
    assert refused(path).field == "prompt.system_prompt_file"


def test_prompt_text_and_file_exclude_each_other(tmp_path: Path) -> None:
    assert "not both" in refused(write(tmp_path, MINIMAL), "prompt.system_prompt_file=p.txt").hint


@pytest.mark.parametrize(
    ("override", "field", "hint"),
    [
        ("execution.concurrency=0", "execution.concurrency", "give 1 or more"),
        ("execution.concurrency=true", "execution.concurrency", "give a whole number"),
        ("execution.concurrency=1.5", "execution.concurrency", "give a whole number"),
        ("execution.attempts=0", "execution.attempts", "give 1 or more"),
        ("execution.actors=0", "execution.actors", "1 or more or 'auto'"),
        ("execution.actors=many", "execution.actors", "give a whole number or 'auto'"),
        ("execution.max_failed=101%", "execution.max_failed", "a share"),
        ("execution.max_failed=-1", "execution.max_failed", "0 or more"),
        ("execution.max_failed=true", "execution.max_failed", "0 or more"),
        ("execution.reset_timeout_s=0", "execution.reset_timeout_s", "give more than 0"),
        ("execution.grace_s=-1", "execution.grace_s", "give 0 or more"),
        ("execution.fence_s=9.9", "execution.fence_s", "give 10 or more"),
        ("execution.fence_s=1e-9", "execution.fence_s", "give 10 or more"),
        ("execution.fsync=never", "execution.fsync", "give 'batch' or 'episode'"),
        ("execution.resume=1", "execution.resume", "give true or false"),
        ("model.temperature=-0.1", "model.temperature", "give 0 or more"),
        ("model.temperature=hot", "model.temperature", "give a number"),
        ("model.top_p=0", "model.top_p", "give more than 0"),
        ("model.top_p=1.1", "model.top_p", "give 1 or less"),
        ("model.provider=openai", "model.provider", "dotted path"),
        ("model.extra_body={Stream: true}", "model.extra_body", "give no Stream"),
        ("model.extra_body=[]", "model.extra_body", "give an object"),
        ("environment.kind=shop", "environment.kind", "dotted path"),
        ("environment.options={a: 1}", "environment.options", "class of your own"),
        ("environment.persona=maybe", "environment.persona", "give true or false"),
        ("tasks.task_ids=[1, a]", "tasks.task_ids[1]", "give a whole number"),
        ("tasks.task_ids=[1, 1]", "tasks.task_ids", "once"),
        ("tasks.task_ids=[]", "tasks.task_ids", "at least one"),
        ("tasks.task_ids=[-1]", "tasks.task_ids[0]", "give 0 or more"),
        ("tasks.split=5", "tasks.split", "give a text"),
        ("tasks.unlock_test=' '", "tasks.unlock_test", "not blank"),
        ("tasks.split_file=~/s.json", "tasks.split_file", "not expanded"),
        ("tasks.split_file=''", "tasks.split_file", "give a path"),
        ("experiment.seed=9223372036854775808", "--set experiment.seed", "smaller"),
        ("runtime.tool_schema=loose", "runtime.tool_schema", "'dynamic' or 'static'"),
    ],
)
def test_wrong_values_say_field_and_what_to_give(tmp_path: Path, override: str, field: str, hint: str) -> None:
    error = refused(write(tmp_path, MINIMAL), override)
    assert error.field == field
    assert hint in error.hint


@pytest.mark.parametrize("word", [".nan", ".inf", "-.INF", "1e999", "{a: [.nan]}"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, word: str) -> None:
    assert "not finite" in str(refused(write(tmp_path, MINIMAL), f"model.extra_body={word}"))


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("shop:5700", "http://"),
        ("ftp://shop", "http://"),
        ("http://", "http://"),
        ("http://shop:99999", "http://"),
        ("'http://sh op'", "http://"),
        ("5", "http://"),
        ("[]", "at least one"),
        ("[demo, http://a]", "not both"),
        ("[http://a, http://a/]", "each URL once"),
        ("http://user:word1@shop", "without a user"),
        ("http://shop?key=word1", "without a query"),
        ("'http://shop#word1'", "without a query"),
    ],
)
@pytest.mark.parametrize("section", ["model", "environment"])
def test_urls_are_checked_and_no_secret_is_repeated(tmp_path: Path, section: str, url: str, hint: str) -> None:
    error = refused(write(tmp_path, MINIMAL), f"{section}.base_url={url}")
    assert error.field == f"{section}.base_url"
    assert hint in error.hint
    assert "word1" not in str(error)


@pytest.mark.parametrize("key", ["sk-abcdef", "hf_AbCdEf0123456789AbCdEf", "a b", "1KEY", "0123456789abcdef0123456789abcdef", "$KEY"])
def test_a_key_in_place_of_a_variable_name_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    error = refused(write(tmp_path, MINIMAL), f"model.api_key_env={key}")
    assert "NAME" in error.hint
    assert key not in str(error)


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "_k", "MY_VERY_LONG_VARIABLE_NAME_FOR_THE_KEY_2"])
def test_names_of_variables_pass(tmp_path: Path, name: str) -> None:
    assert load_config(write(tmp_path, MINIMAL), [f"model.api_key_env={name}"]).config.model.api_key_env == name


@pytest.mark.parametrize("both", [("demo", "demo"), ("demo", "http://a/v1"), ("http://a", "demo")])
def test_demo_may_stand_for_either_server(tmp_path: Path, both: tuple[str, str]) -> None:
    environment, model = both
    config = load_config(write(tmp_path, MINIMAL), [f"environment.base_url={environment}", f"model.base_url={model}"]).config
    assert (config.environment.base_urls, config.model.base_urls) == ((environment,), (model,))


def test_classes_of_ones_own_need_no_url_and_take_options(tmp_path: Path) -> None:
    overrides = [
        "environment.kind=my.Env",
        "environment.base_url=null",
        "environment.options.a=1",
        "model.provider=my.Model",
        "model.base_url=null",
    ]
    config = load_config(write(tmp_path, MINIMAL), overrides).config
    assert (config.environment.base_urls, config.model.base_urls) == ((), ())
    assert config.environment.options == {"a": 1}


@pytest.mark.parametrize(("limit", "planned", "allowed"), [(0, 80, 0), (3, 80, 3), ("2%", 80, 1), ("29%", 100, 29), ("100%", 7, 7)])
def test_a_share_of_failures_is_rounded_down(tmp_path: Path, limit: int | str, planned: int, allowed: int) -> None:
    execution = load_config(write(tmp_path, MINIMAL), [f"execution.max_failed={limit}"]).config.execution
    assert execution.allowed_failures(planned) == allowed


def test_a_frozen_config_stays_as_it_is(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL)).config
    with pytest.raises(ValueError, match="frozen"):
        config.model.temperature = 1.0  # type: ignore[misc]


PRICES = "execution.prices={prompt_per_million: 1, completion_per_million: 2}"


def test_prices_may_be_set_one_by_one_and_stay_outside_the_plan(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    config = load_config(path, [PRICES, "execution.prices.currency=EUR", "execution.max_cost=2.5"]).config
    assert config.execution.prices is not None and config.execution.max_cost == 2.5
    assert config.execution.prices.model_dump() == {
        "prompt_per_million": 1.0,
        "completion_per_million": 2.0,
        "cached_prompt_per_million": None,
        "currency": "EUR",
    }
    assert Config.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("overrides", "field", "hint"),
    [
        (["execution.max_cost=3"], "execution.max_cost", "needs execution.prices"),
        (["execution.max_cost=0", PRICES], "execution.max_cost", "more than 0"),
        (["execution.max_tokens_total=0"], "execution.max_tokens_total", "1 or more"),
        (["execution.max_wall_s=0"], "execution.max_wall_s", "more than 0"),
        (["execution.prices=5"], "execution.prices", "an object"),
        (["execution.prices={prompt_per_million: 1}"], "execution.prices.completion_per_million", "required; give a number"),
        ([PRICES, "execution.prices.per_image=1"], "execution.prices.per_image", "unknown key; known here are prompt_per_million"),
        ([PRICES, "execution.prices.prompt_per_million=-1"], "execution.prices.prompt_per_million", "0 or more"),
        ([PRICES, "execution.prices.currency=pounds and shillings"], "execution.prices.currency", "at most 12"),
    ],
)
def test_caps_and_prices_that_do_not_fit_are_named(tmp_path: Path, overrides: list[str], field: str, hint: str) -> None:
    error = refused(write(tmp_path, MINIMAL), *overrides)
    assert error.field == field and hint in error.hint
