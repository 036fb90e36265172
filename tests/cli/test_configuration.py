import json


def test_show_says_where_each_value_comes_from(rayeval, config):
    answer = rayeval("config", "show", config, "--set", "model.temperature=0")
    lines = {line.split(":")[0].strip(): line for line in answer.out.splitlines()}
    assert lines["temperature"].endswith("# --set")
    assert lines["seed"].endswith(f"# {config}:1")
    assert lines["max_steps"].endswith("# default")


def test_what_show_prints_can_be_loaded_and_means_the_same(rayeval, config, tmp_path):
    shown = tmp_path / "shown.yaml"
    shown.write_text(rayeval("config", "show", config).out)
    before, after = (rayeval("plan", path, "--json").json["fingerprint"] for path in (config, shown))
    assert before == after


def test_show_semantic_leaves_out_what_the_fingerprint_does_not_see(rayeval, config):
    keys = rayeval("config", "show", config, "--semantic", "--json").json["keys"]
    assert "model.temperature" in keys
    assert not {"execution.concurrency", "model.base_url", "experiment.output_dir", "tasks.split_file"} & set(keys)
    assert keys["experiment.seed"] == {"value": 7, "origin": f"{config}:1"}


def test_schema_is_a_json_schema(rayeval):
    schema = json.loads(rayeval("config", "schema").out)
    assert schema["$schema"].startswith("http://json-schema.org/draft-07")
    assert rayeval("config", "schema", "--json").json["json_schema"] == schema


def test_diff_names_each_key_and_whether_it_matters(rayeval, config, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text().replace("repeats: 2", "repeats: 3") + "execution: {concurrency: 2}\n")
    rows = rayeval("config", "diff", config, other, "--json").json["differences"]
    assert rows == [
        {"key": "tasks.repeats", "a": 2, "b": 3, "semantic": True},
        {"key": "execution.concurrency", "a": 64, "b": 2, "semantic": False},
    ]
    text = rayeval("config", "diff", config, other).out
    assert "tasks.repeats" in text and "semantic" in text


def test_diff_below_an_open_key_is_semantic(rayeval, config, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text().replace("name: scripted,", "name: scripted, extra_body: {top_k: 20},"))
    rows = rayeval("config", "diff", config, other, "--json").json["differences"]
    assert any(row["semantic"] and row["key"].startswith("model.extra_body") for row in rows)


def test_equal_configurations_do_not_differ(rayeval, config):
    assert rayeval("config", "diff", config, config).out == "no difference\n"
