"""cluster/compose.yaml against the Compose specification, and what it promises."""

import copy
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pydantic
import pytest
from compose_spec import PyCompose
from compose_spec.models import ComposeSpecification, Service

from tests.cluster.files import CLUSTER, SECRET_WORDS, JsonObject, drain_s, ray_start_options, rayeval_options, read

COMPOSE = read("compose.yaml")
SERVICES: JsonObject = COMPOSE["services"]
NEWER = {"pre_stop"}
"""Keys of the specification that its strict parser does not know yet; the model of the specification checks what they hold."""


def strict(compose: JsonObject) -> None:
    """Unknown keys, ports, durations, volumes that are not declared. Raises ValueError."""
    assert set(Service.model_fields) >= NEWER
    known = copy.deepcopy(compose)
    for service in known["services"].values():
        for key in NEWER:
            service.pop(key, None)
    known.pop("x-ray")
    PyCompose.from_json(json.dumps(known))


def test_it_is_a_compose_file() -> None:
    strict(COMPOSE)
    ComposeSpecification.model_validate({**COMPOSE, "services": {name: _lists(service) for name, service in SERVICES.items()}})


def _lists(service: JsonObject) -> JsonObject:
    """The model takes the mapping form of ``depends_on`` only in its own class."""
    return {key: list(value) if key == "depends_on" else value for key, value in service.items()}


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [("head", "helthcheck", {}), ("head", "stop_grace_period", "soon"), ("worker", "ports", ["a:b"]), ("worker", "pre_stopp", [])],
)
def test_a_mistake_would_be_found(service: str, key: str, value: Any) -> None:
    wrong = copy.deepcopy(COMPOSE)
    wrong["services"][service][key] = value
    with pytest.raises(ValueError):
        strict(wrong)


def test_a_wrong_hook_would_be_found() -> None:
    wrong = copy.deepcopy(SERVICES["head"])
    wrong["pre_stop"] = [{"command": 5}]
    with pytest.raises(pydantic.ValidationError):
        Service.model_validate(wrong)


def test_nothing_listens_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 3 and all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports), ports


def test_every_service_says_whether_it_is_well_and_who_needs_it_waits() -> None:
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"} and needed in SERVICES
    assert "head" in SERVICES["worker"]["depends_on"]


def test_images_are_pinned_and_ours_is_built() -> None:
    for service in SERVICES.values():
        if service["image"] == "rayeval:local":
            assert (CLUSTER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]


def test_mounted_files_are_there_and_volumes_are_declared() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert (CLUSTER / source).exists(), source
                assert mount.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_grafana_finds_prometheus_and_the_dashboards_and_prometheus_finds_the_nodes() -> None:
    (provider,) = read("grafana/provisioning/dashboards/rayeval.yml")["providers"]
    assert any(mount.startswith(f"./grafana:{provider['options']['path']}:") for mount in SERVICES["grafana"]["volumes"])
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    url = urlsplit(source["url"])
    assert url.hostname in SERVICES and f"127.0.0.1:{url.port}:{url.port}" in SERVICES[url.hostname]["ports"]
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    (found,) = scrape["dns_sd_configs"]
    assert found["names"] == ["head", "worker"] and found["port"] == ray_start_options(SERVICES["head"]["command"])["metrics_export_port"]


@pytest.mark.parametrize("node", ["head", "worker"])
def test_a_node_is_explicit_drains_and_shares_the_runs(node: str) -> None:
    service = SERVICES[node]
    assert service["environment"]["RAY_AUTH_MODE"] == "token"
    for name, value in service["environment"].items():
        if any(word in name for word in SECRET_WORDS):
            assert re.fullmatch(r"\$\{" + name + r"(:\?.*|:-)\}", value), f"{name} is written into the file"
    assert service["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?"), "without a token it must not start"
    (hook,) = service["pre_stop"]
    assert hook["command"][:4] == ["python", "-m", "actors.drain", "--within"]
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert drain_s() <= float(hook["command"][4]) < grace
    assert "runs:/runs" in service["volumes"] and service["init"] is True
    options = ray_start_options(service["command"])
    assert options["block"] and options["metrics_export_port"] == 8080
    assert options["object_store_memory"] <= 512 << 20 == int(service["shm_size"].removesuffix("m")) << 20
    assert options["num_cpus"] == (0 if node == "head" else 2)
    assert (options["address"] or "").split(":")[0] == ("" if node == "head" else "head")


def test_the_demo_listens_where_the_page_says() -> None:
    verb, _ = rayeval_options(SERVICES["demo"]["command"])
    assert verb == "demo"
    page = (CLUSTER.parent / "docs" / "cluster.md").read_text("utf-8")
    words = SERVICES["demo"]["command"]
    shop, model = (words[words.index(f"--{side}-port") + 1] for side in ("shop", "model"))
    assert f"http://demo:{shop}" in page and f"http://demo:{model}/v1" in page
