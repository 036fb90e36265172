"""cluster/kuberay: no cluster is at hand, so the files are held against schemas, Ray's own reading of them, and our defaults."""

import copy
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from rayeval.config import load_config
from tests.cluster.files import CLUSTER, SECRET_WORDS, JsonObject, drain_s, rayeval_options, read, simple_commands
from tests.cluster.kuberay import RAYCLUSTER, RAYJOB

CLUSTER_FILE = read("kuberay/raycluster.yaml")
JOB_FILE = read("kuberay/rayjob.yaml")
JOB = JOB_FILE["spec"]
SPECS = {"raycluster": CLUSTER_FILE["spec"], "rayjob": JOB["rayClusterSpec"]}
PVC = read("kuberay/pvc.yaml")


def templates(spec: JsonObject) -> dict[str, JsonObject]:
    """The pod templates of a cluster by role."""
    return {"head": spec["headGroupSpec"]["template"], **{g["groupName"]: g["template"] for g in spec["workerGroupSpecs"]}}


PODS = [pytest.param(template, id=f"{name}-{role}") for name, spec in SPECS.items() for role, template in templates(spec).items()]


def container_of(template: JsonObject) -> JsonObject:
    (container,) = template["spec"]["containers"]
    return dict(container)


def env_of(template: JsonObject) -> dict[str, JsonObject]:
    return {entry["name"]: entry for entry in container_of(template)["env"]}


# ---- schemas ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resource", "schema"), [(CLUSTER_FILE, RAYCLUSTER), (JOB_FILE, RAYJOB)], ids=["raycluster", "rayjob"])
def test_fields_are_those_of_the_documented_api(resource: JsonObject, schema: JsonObject) -> None:
    jsonschema.Draft202012Validator(schema).validate(resource)
    for name, value in (("backofLimit", 1), ("headGroupSpec", [])):
        wrong = copy.deepcopy(resource)
        wrong["spec"][name] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate(wrong)


@pytest.mark.parametrize("template", PODS)
def test_pod_templates_are_pods_to_kubernetes(template: JsonObject) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template["metadata"]}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, "1.33", strict=True)
    wrong = copy.deepcopy(pod)
    wrong["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_the_volume_is_one_that_many_machines_write() -> None:
    kubernetes_validate.validate(PVC, "1.33", strict=True)
    assert PVC["spec"]["accessModes"] == ["ReadWriteMany"]


def test_ray_reads_the_cluster_as_a_head_without_cpus_and_workers_with() -> None:
    """By the code that Ray's autoscaler has for KubeRay."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    for spec in SPECS.values():
        config = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "x", "namespace": "y"}, "spec": spec})
        types = config["available_node_types"]
        assert types["headgroup"]["resources"]["CPU"] == 0
        assert types["rollout"]["resources"]["CPU"] == 4 and types["rollout"]["min_workers"] == 2


# ---- ends -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", PODS)
def test_a_pod_ends_after_the_drain_and_not_before(template: JsonObject) -> None:
    (script,) = container_of(template)["lifecycle"]["preStop"]["exec"]["command"][2:]
    drain, stop = list(simple_commands(script))
    assert drain[:4] == ["python", "-m", "actors.drain", "--within"] and stop[:3] == ["ray", "stop", "--grace-period"]
    within, ray_s = float(drain[4]), float(stop[3])
    grace_s = load_config(CLUSTER.parent / "configs" / "smoke.yaml").config.execution.grace_s
    assert grace_s < drain_s() <= within < within + ray_s < template["spec"]["terminationGracePeriodSeconds"]
    with subprocess.Popen(["sleep", "30"]) as idle:
        words = [sys.executable, "-m", *drain[2:], "--root", str(idle.pid)]
        subprocess.run(words, check=True, timeout=30.0)  # nothing to wait for: at once
        idle.kill()


def test_ray_lets_a_stopped_job_drain() -> None:
    env = yaml.safe_load(JOB["runtimeEnvYAML"])["env_vars"]
    assert int(env["RAY_JOB_STOP_WAIT_TIME_S"]) >= drain_s()
    assert env["RAY_AUTH_MODE"] == JOB["rayClusterSpec"]["authOptions"]["mode"]


@pytest.mark.parametrize(
    "field", ["submissionMode", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "activeDeadlineSeconds"]
)
def test_what_ends_or_repeats_a_job_is_set_on_purpose(field: str) -> None:
    assert field in JOB
    lines = (CLUSTER / "kuberay" / "rayjob.yaml").read_text().splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith(f"  {field}:"))
    assert lines[at - 1].startswith("  # "), f"{field}: no comment says why"


def test_retries_resume_and_are_few() -> None:
    assert 1 <= JOB["backoffLimit"] <= 3, "KubeRay does not look at exit codes: refused runs are retried as often"
    assert "clusterSelector" not in JOB, "retries need a cluster of the job's own"
    assert JOB["shutdownAfterJobFinishes"] or not JOB["ttlSecondsAfterFinished"]
    assert JOB["activeDeadlineSeconds"] > 10 * drain_s()
    assert "suspend" not in JOB and "jobId" not in JOB


# ---- places -----------------------------------------------------------------------------------------------------------------------


def test_the_run_directory_lies_on_the_volume_that_every_pod_mounts() -> None:
    words = next(iter(simple_commands(JOB["entrypoint"])))
    verb, options = rayeval_options(words)
    assert verb == "run"
    for template in templates(SPECS["rayjob"]).values():
        mounts = {m["mountPath"]: m["name"] for m in container_of(template)["volumeMounts"]}
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        claim = volumes[mounts[str(options["runs_dir"])]]["persistentVolumeClaim"]["claimName"]
        assert claim == PVC["metadata"]["name"]


def test_the_config_map_lays_out_what_init_writes(tmp_path: Path) -> None:
    head = SPECS["rayjob"]["headGroupSpec"]["template"]
    (volume,) = (v for v in head["spec"]["volumes"] if v["name"] == "config")
    (mount,) = (m for m in container_of(head)["volumeMounts"] if m["name"] == "config")
    config = shlex.split(JOB["entrypoint"])[5]
    subprocess.run([sys.executable, "-m", "rayeval", "init", "my-eval"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    for item in volume["configMap"]["items"]:
        assert item["key"] == Path(item["path"]).name, "kubectl names a key after its file"
        target = tmp_path / "mounted" / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((tmp_path / "my-eval" / item["path"]).read_bytes())
    load_config(tmp_path / "mounted" / Path(config).relative_to(mount["mountPath"]))


def test_the_job_brings_the_cluster_of_the_other_file() -> None:
    """Two files, one cluster: they differ in the configuration that the job's head mounts."""
    job = copy.deepcopy(SPECS["rayjob"])
    pod = job["headGroupSpec"]["template"]["spec"]
    pod["volumes"] = [v for v in pod["volumes"] if v["name"] != "config"]
    pod["containers"][0]["volumeMounts"] = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] != "config"]
    assert job == SPECS["raycluster"]


# ---- pods -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", PODS)
def test_auth_is_explicit_and_secrets_come_by_reference(template: JsonObject) -> None:
    env = env_of(template)
    assert env["RAY_AUTH_MODE"]["value"] == "token" and env["RAY_worker_niceness"]["value"] == "0"
    for name, entry in env.items():
        if any(word in name for word in SECRET_WORDS):
            assert "value" not in entry and "secretKeyRef" in entry["valueFrom"], name
    assert {spec["authOptions"]["mode"] for spec in SPECS.values()} == {"token"}


@pytest.mark.parametrize("template", PODS)
def test_pods_run_as_the_user_of_the_image_and_claim_what_they_use(template: JsonObject) -> None:
    pod, container = template["spec"]["securityContext"], container_of(template)
    user = re.search(r"^USER (\d+):(\d+)$", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None and pod["runAsNonRoot"]
    assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]) == (int(user[1]), int(user[2]), int(user[2]))
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
    assert any(port == {"name": "metrics", "containerPort": 8080} for port in container["ports"])


def test_workers_offer_the_cpus_they_claim_and_the_head_none() -> None:
    for spec in SPECS.values():
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        for group in spec["workerGroupSpecs"]:
            assert group["rayStartParams"]["num-cpus"] == container_of(group["template"])["resources"]["requests"]["cpu"]
        for params in (spec["headGroupSpec"]["rayStartParams"], *(g["rayStartParams"] for g in spec["workerGroupSpecs"])):
            assert params["metrics-export-port"] == "8080"


def test_the_pod_monitor_finds_every_pod_and_its_port() -> None:
    """By its own rules alone: the schema of the Prometheus operator is in no package that can be installed here."""
    monitor = read("kuberay/podmonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for spec in SPECS.values():
        for template in templates(spec).values():
            assert wanted <= template["metadata"]["labels"].items()
            assert endpoint["port"] in {port["name"] for port in container_of(template)["ports"]}
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    assert endpoint["metricRelabelings"] == scrape["metric_relabel_configs"]
