"""docs/cluster.md: its commands are ones that the programs take, its links and files are there."""

import re
from pathlib import Path

import pytest

from tests.cluster.files import ROOT, ray_start_options, rayeval_options, read, simple_commands

PAGE = ROOT / "docs" / "cluster.md"
TEXT = PAGE.read_text("utf-8")
COMMANDS = [
    words
    for block in re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
    for words in simple_commands(line[2:])
]
RAYEVAL = [words for words in COMMANDS if words[0] == "rayeval" or words[:3] == ["python", "-m", "rayeval"]]
INSIDE = [
    words[words.index("python") :] for words in COMMANDS if words[0] in ("docker", "kubectl") and "rayeval" in words and "python" in words
]
RAY_START = [words for words in COMMANDS if words[:2] == ["ray", "start"]]


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("words", [*RAYEVAL, *INSIDE], ids=" ".join)
def test_rayeval_takes_its_commands(words: list[str]) -> None:
    verb, _ = rayeval_options(words)
    assert verb


def test_every_verb_of_a_run_on_a_cluster_is_shown() -> None:
    shown = {rayeval_options(words)[0] for words in [*RAYEVAL, *INSIDE]}
    assert {"init", "plan", "submit", "logs", "status", "control", "summarize", "shards"} <= shown


def test_ray_takes_its_starts_with_the_ports_of_the_firewall() -> None:
    (ports,) = re.findall(r"^```text\n(--node-manager-port.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(RAY_START) == 2
    for words in RAY_START:
        options = ray_start_options([*words, *ports.split()])
        assert options["metrics_export_port"] == 8080
        assert 10_001 < options["min_worker_port"] < options["max_worker_port"]  # the client's port lies outside
    assert ray_start_options(RAY_START[0])["num_cpus"] == 0


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 5
    for link in links:
        name, _, anchor = link.partition("#")
        target = PAGE.parent / name if name else PAGE
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_files_that_it_names_are_there() -> None:
    for name in set(re.findall(r"\bcluster/[\w./-]+\w", TEXT)):
        assert (ROOT / name).exists(), name


def test_names_are_those_of_the_files() -> None:
    job, cluster = read("kuberay/rayjob.yaml"), read("kuberay/raycluster.yaml")
    assert f"job/{job['metadata']['name']}" in TEXT
    assert f"service/{cluster['metadata']['name']}-head-svc" in TEXT and f"get secret {cluster['metadata']['name']} " in TEXT
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (items,) = (v["configMap"]["items"] for v in pod["volumes"] if "configMap" in v)
    for item in items:
        assert f"--from-file=my-eval/{item['path']}" in TEXT
    assert f"{pod['terminationGracePeriodSeconds']} s" in TEXT
    secret = next(e["valueFrom"]["secretKeyRef"] for e in pod["containers"][0]["env"] if "valueFrom" in e)
    assert f"generic {secret['name']} --from-literal={secret['key']}=" in TEXT
