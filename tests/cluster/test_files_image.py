"""cluster/Dockerfile, .dockerignore, and the versions that all cluster files must agree on."""

import fnmatch
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import ray
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.cluster.files import CLUSTER, ROOT, read

DOCKERFILE = (CLUSTER / "Dockerfile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


def argument(name: str) -> str:
    (value,) = set(re.findall(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE))
    return str(value)


def stages() -> list[str]:
    return re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    said = subprocess.run([HADOLINT, CLUSTER / "Dockerfile"], capture_output=True, text=True, timeout=60.0)
    assert said.returncode == 0, said.stdout
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.replace("# hadolint ignore=DL3008\n", ""))
    assert subprocess.run([HADOLINT, tmp_path / "Dockerfile"], capture_output=True, timeout=60.0).returncode == 1


def test_one_ray_everywhere_and_one_that_the_project_takes() -> None:
    (wanted,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "ray")
    image = argument("RAY_VERSION")
    assert wanted.specifier.contains(image)
    found = {
        "raycluster": read("kuberay/raycluster.yaml")["spec"]["rayVersion"],
        "rayjob": read("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"],
    }
    for path in (*CLUSTER.glob("*.yaml"), *CLUSTER.glob("kuberay/*.yaml"), ROOT / "docs" / "cluster.md"):
        text = path.read_text("utf-8")
        found |= {f"{path.name}: {hit}": hit for hit in re.findall(r"ray\[[a-z,]+\]==(\S+?)['\"`\s]", text)}
        found |= {f"{path.name}: tag {hit}": hit for hit in re.findall(r"rayeval:\S*-ray([\d.]+)-py", text)}
    assert len(found) >= 6 and set(found.values()) == {image}, found


def test_the_image_is_of_the_ray_that_this_suite_runs_on() -> None:
    """What is measured and promised here is said of that version."""
    assert argument("RAY_VERSION").split(".")[:2] == ray.__version__.split(".")[:2]


def test_python_is_one_that_the_project_takes() -> None:
    version = argument("PYTHON_VERSION")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.0")
    for spec in re.findall(r"rayeval:\S*-py(\d)(\d+)", (CLUSTER / "kuberay" / "rayjob.yaml").read_text()):
        assert ".".join(spec) == version


def test_the_image_is_not_root_and_has_what_kuberay_calls() -> None:
    last = stages()[-1]
    assert re.search(r"^USER 1000:1000$", last, re.MULTILINE)
    assert re.search(r"apt-get install.* wget\b", last), "the probes of KubeRay call wget"
    assert "/opt/venv" not in DOCKERFILE and "COPY --from=build /usr/local /usr/local" in last, "a login shell finds /usr/local/bin alone"
    assert re.search(r"install --directory --owner=1000 .*/runs", last)
    assert "[default,data]" in DOCKERFILE, "without `default` there is no dashboard to submit jobs to, and no metrics"


def test_no_secret_and_no_auth_mode_is_baked_in() -> None:
    baked = " ".join(re.findall(r"^(?:ENV|ARG) (.*)$", DOCKERFILE, re.MULTILINE))
    assert not re.search(r"(?i)key|token|secret|password|auth", baked), baked


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("rayeval/cli/app.py", True),
        ("actors/pool.py", True),
        ("pyproject.toml", True),
        ("configs/smoke.yaml", True),
        ("runs/smoke/leases.jsonl", False),
        (".env", False),
        ("rayeval/.env.local", False),
        (".git/config", False),
        (".venv/bin/python", False),
        ("tests/conftest.py", False),
        ("rayeval/__pycache__/x.pyc", False),
    ],
)
def test_what_goes_into_the_image(path: str, sent: bool) -> None:
    assert _sent(path) is sent


def test_what_is_copied_is_sent() -> None:
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists() and _sent(source), source


def _sent(path: str) -> bool:
    """``.dockerignore`` as Docker reads it: the last pattern that matches the path or a directory above it decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        back = pattern.startswith("!")
        pattern = pattern.lstrip("!")
        above = [Path(path), *Path(path).parents][:-1]
        tail = pattern.removeprefix("**/")
        if any(fnmatch.fnmatch(p.name if pattern.startswith("**/") else p.as_posix(), tail) for p in above):
            sent = back
    return sent


def test_the_interpreter_of_this_suite_is_that_of_the_image() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" >= argument("PYTHON_VERSION")
