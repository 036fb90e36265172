from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from rayeval.config import NOT_SEMANTIC, NOT_SEMANTIC_SECTIONS, Config, config_keys, config_schema, load_config
from rayeval.config._models import RESERVED_BODY_KEYS

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs").rglob("*.yaml"))


def test_the_shipped_schema_is_the_code_s() -> None:
    shipped = json.loads((ROOT / "configs/rayeval.schema.json").read_text(encoding="utf-8"))
    assert shipped == json.loads(json.dumps(config_schema()))


def test_the_schema_is_draft_7() -> None:
    schema = config_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in json.dumps(schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_shipped_configs_fit_schema_and_loader(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    modeline = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert modeline
    assert (path.parent / modeline[1]).resolve() == ROOT / "configs/rayeval.schema.json"
    jsonschema.Draft7Validator(config_schema()).validate(yaml.safe_load(text))
    load_config(path)


def test_there_are_shipped_configs() -> None:
    assert ROOT / "configs/smoke.yaml" in SHIPPED


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "temperatur", 1),
        ("model", "temperature", "hot"),
        ("execution", "concurrency", 0),
        ("execution", "actors", "many"),
        ("experiment", "name", 5),
        ("tasks", "task_ids", "3"),
        ("model", "base_url", 5),
        ("nosuch", "key", 1),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(section: str, key: str, value: object) -> None:
    document = yaml.safe_load((ROOT / "configs/smoke.yaml").read_text(encoding="utf-8"))
    document.setdefault(section, {})[key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(config_schema()).validate(document)


def test_a_defaults_only_dump_fits_the_schema() -> None:
    config = load_config(ROOT / "configs/smoke.yaml").config
    jsonschema.Draft7Validator(config_schema()).validate(config.model_dump(mode="json"))


def test_every_key_has_a_description_and_says_whether_it_is_semantic() -> None:
    schema = config_schema()
    for key, info in config_keys().items():
        section, name = key.split(".")
        model = Config.model_fields[section].annotation
        assert model is not None
        prop = schema["definitions"][model.__name__]["properties"][name]
        assert info.description, key
        assert prop["description"] == info.description, key
        assert prop["x-semantic"] is (section not in NOT_SEMANTIC_SECTIONS and key not in NOT_SEMANTIC), key


def test_the_document_has_every_key_with_its_default_and_kind() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    rows = {m[1]: m[2] for m in re.finditer(r"^\| `([a-z_]+\.[a-z_]+)` \|(.*)$", text, re.MULTILINE)}
    assert set(rows) == set(config_keys())
    for key, info in config_keys().items():
        cells = [c.strip() for c in rows[key].split("|")]
        if info.is_required():
            assert cells[1] == "required", key
        else:
            default = info.get_default(call_default_factory=True)
            assert yaml.safe_load(cells[1].strip("`")) == (str(default) if isinstance(default, Path) else default), key
        by_content = {"tasks.split_file", "prompt.system_prompt_file", "skills.path"}
        word = "by content" if key in by_content else "outside" if key in NOT_SEMANTIC else "semantic"
        section = key.partition(".")[0]
        assert cells[2] == (section if section in NOT_SEMANTIC_SECTIONS else word), key
        assert cells[3] == info.description, key


def test_the_document_names_every_key_that_extra_body_refuses() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    paragraph = text[text.index("`model.extra_body` may not hold") :].split("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", paragraph))
    assert named == RESERVED_BODY_KEYS
