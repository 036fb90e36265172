"""cluster/launcher.yaml as Ray's cluster launcher reads it."""

import copy
import re

import pytest
from jsonschema import ValidationError

from tests.cluster.files import JsonObject, ray_start_options, read, simple_commands

LAUNCHER = read("launcher.yaml")


def prepared(config: JsonObject) -> JsonObject:
    """Filled with defaults and validated, by Ray's own code and its ray-schema.json."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    whole: JsonObject = prepare_config(copy.deepcopy(config))
    validate_config(whole)
    return whole


def starts(kind: str) -> tuple[list[str], JsonObject, str]:
    """-> (words, options, line) of the one `ray start` of a kind of node."""
    found = [(words, line) for line in LAUNCHER[f"{kind}_start_ray_commands"] for words in simple_commands(line) if words[1] == "start"]
    ((words, line),) = found
    return words, ray_start_options(words), line


def test_ray_takes_it() -> None:
    (node_type,) = prepared(LAUNCHER)["available_node_types"].values()
    assert node_type["min_workers"] == node_type["max_workers"] == len(LAUNCHER["provider"]["worker_ips"]) == LAUNCHER["min_workers"]


@pytest.mark.parametrize(("key", "value"), [("provder", {}), ("max_workers", "two"), ("setup_commands", "pip install ray")])
def test_a_mistake_would_be_found(key: str, value: object) -> None:
    from ray.autoscaler._private.util import validate_config

    with pytest.raises(ValidationError):
        validate_config({**prepared(LAUNCHER), key: value})


def test_the_head_offers_no_cpu_and_the_workers_all_of_theirs() -> None:
    assert starts("head")[1]["num_cpus"] == 0
    assert starts("worker")[1]["num_cpus"] is None
    assert starts("head")[1]["dashboard_host"] == "127.0.0.1", "whoever reaches the dashboard runs code"


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_a_node_starts_with_explicit_settings(kind: str) -> None:
    _, options, line = starts(kind)
    for setting in ("RAY_AUTH_MODE=token", "RAY_worker_niceness=0", "RAY_USAGE_STATS_ENABLED=0"):
        assert setting in line.split(), setting
    assert options["metrics_export_port"] == 8080
    assert re.search(r"ulimit -n \d{5}", line)


def test_the_token_goes_to_every_node_and_stays_out_of_the_file() -> None:
    assert LAUNCHER["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "chmod 600 ~/.ray/auth_token" in LAUNCHER["setup_commands"]
    assert "RAY_AUTH_TOKEN" not in str(LAUNCHER)
