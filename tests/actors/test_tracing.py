import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.engine import RunOutcome, RunRequest, run
from actors.tracing import check_extra, start_tracing
from rayeval.config import load_config
from rayeval.display import NoDisplay
from rayeval.exceptions import ConfigurationError, EndpointsOutError, InputError
from rayeval.otel import names, sender
from rayeval.plan import make_plan, manifest_of
from rayeval.schemas import ExitCode
from rayeval.store import RunDirectory
from tests.actors.plans import write_config
from tests.otel.collector import Collector, attributes, collector

FINGERPRINTS = {"smoke.yaml": "9fff004e3359ad7244c11e5aa54bc91728a6f142852f4b29a1b931c49c46bcd5"}
"""As they were before there was a section ``tracing``."""


class Notes(NoDisplay):
    """Keeps what was told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def note(self, level: str, text: str) -> None:
        self.notes.append((level, text))

    def of_tracing(self) -> list[str]:
        return [text for _, text in self.notes if text.startswith("tracing")]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def taken() -> Iterator[Collector]:
    with collector() as made:
        yield made


def play(root: Path, display: NoDisplay | None = None, *, tasks: int = 4, **overrides: Any) -> RunOutcome:
    """A run without Ray against the fakes. ``overrides``: ``section__key``."""
    dotted: Mapping[str, Any] = {key.replace("__", ".", 1): value for key, value in overrides.items()}
    (root / "c").mkdir(parents=True, exist_ok=True)
    path = write_config(root / "c", tasks=tasks)
    loaded = load_config(path, [f"{key}={json.dumps(value)}" for key, value in dotted.items()])
    return run(RunRequest(loaded, make_plan(loaded), root / "run", show=True), display or NoDisplay())


def lines(root: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (root / "run" / "traces.jsonl").read_bytes().splitlines()]


def test_a_run_exports_its_episodes_linked_to_itself(tmp_path: Path, taken: Collector) -> None:
    display = Notes()
    outcome = play(tmp_path, display, tracing__enabled=True, tracing__endpoint=taken.url, tracing__sample_completed=1)
    assert outcome.exit_code == ExitCode.OK and display.of_tracing() == []
    (workflow,) = taken.named("invoke_workflow")
    agents, chats, tools = taken.named("invoke_agent"), taken.named("chat"), taken.named("execute_tool")
    written = lines(tmp_path)
    assert len(agents) == len(written) == 4
    assert len(chats) == sum(len(line["steps"]) for line in written)
    assert len(tools) == sum(1 for line in written for step in line["steps"] if step["action"])
    assert len({s.trace_id for s in taken.spans}) == 5 and len({s.span_id for s in taken.spans}) == len(taken.spans)
    assert workflow.name == "invoke_workflow small" and attributes(workflow.attributes)[names.RUN_EXIT_CODE] == 0
    by_id = {a.trace_id: a for a in agents}
    for agent in agents:
        ((trace_id, span_id),) = [(link.trace_id, link.span_id) for link in agent.links]
        assert (trace_id, span_id) == (workflow.trace_id, workflow.span_id) and not agent.parent_span_id
    for child in (*chats, *tools):
        parent = by_id[child.trace_id]
        assert child.parent_span_id == parent.span_id
        assert parent.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano <= parent.end_time_unix_nano
    told = {attributes(a.attributes)[names.EPISODE_ID]: attributes(a.attributes) for a in agents}
    for line in written:
        assert told[line["episode_id"]][names.REWARD] == line["final"]["reward"]
    assert {r["service.name"] for r in taken.resources} == {"rayeval"}
    status = json.loads((tmp_path / "run/status.json").read_bytes())["tracing"]
    assert status["exported"] == status["chosen"] == 4 and status["dropped"] == 0 and status["spans"] == len(taken.spans) - 1
    assert json.loads((tmp_path / "run/summary.json").read_bytes())["tracing"] == status


def test_failed_attempts_are_exported_and_completed_ones_by_choice_alone(tmp_path: Path, taken: Collector) -> None:
    none = {"tracing__enabled": True, "tracing__endpoint": taken.url, "tracing__sample_completed": 0}
    assert play(tmp_path / "fine", **none).exit_code == ExitCode.OK and taken.named("invoke_agent") == []
    with collector(status=404) as broken:
        play(tmp_path, model__provider="openai_chat", model__base_url=broken.url, execution__attempts=2, **none)
    written = lines(tmp_path)
    agents = taken.named("invoke_agent")
    assert len(agents) == len(written) >= 4 and {line["status"] for line in written} == {"failed"}
    for agent in agents:
        assert agent.status.code == 2 and attributes(agent.attributes)[names.ERROR_TYPE] == "model_refused"
    assert {s.status.code for s in taken.named("chat")} == {2}
    assert attributes(taken.named("invoke_workflow")[-1].attributes)[names.ERROR_TYPE] == "exit_1"


def test_a_resume_meets_no_id_that_was_used(tmp_path: Path, taken: Collector) -> None:
    settings = {"tracing__enabled": True, "tracing__endpoint": taken.url, "tracing__sample_completed": 1}
    with collector(status=404) as broken:
        away = {"model__provider": "openai_chat", "model__base_url": broken.url, "model__checkpoint_id": "c", "execution__attempts": 1}
        first = play(tmp_path, **away, **settings)
        again = play(tmp_path, **away, **settings)
    assert first.exit_code == again.exit_code == ExitCode.FAILED_EPISODES
    spans = taken.spans
    assert len({s.span_id for s in spans}) == len(spans)
    assert len(taken.named("invoke_agent")) == len(lines(tmp_path)) == 8
    runs = [attributes(w.attributes) for w in taken.named("invoke_workflow")]
    assert len(runs) == 2 and len({w.trace_id for w in taken.named("invoke_workflow")}) == 2
    assert len({r[names.RUN_ID] for r in runs}) == 1 and len({r[names.RUN_INVOCATION] for r in runs}) == 2


def test_a_collector_that_is_away_costs_one_warning_and_no_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_S", 0.5)
    display, began = Notes(), time.monotonic()
    outcome = play(tmp_path, display, tracing__enabled=True, tracing__endpoint="http://127.0.0.1:9", tracing__sample_completed=1)
    assert time.monotonic() - began < 10
    assert outcome.exit_code == ExitCode.OK and outcome.status["done"] == 4
    (said,) = display.of_tracing()
    assert "http://127.0.0.1:9/v1/traces" in said and "refused" in said
    assert outcome.status["tracing"]["dropped_by"] == {"not_sent": 4}
    assert outcome.summary is not None and outcome.summary["tracing"]["dropped"] == 4


def test_content_takes_the_setting_and_the_variable(tmp_path: Path, taken: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"tracing__enabled": True, "tracing__endpoint": taken.url, "tracing__sample_completed": 1, "tracing__content": True}
    display = Notes()
    play(tmp_path / "a", display, **settings)
    assert display.of_tracing() == [f"tracing.content has no effect: {names.CONTENT_VARIABLE}=true says so too"]
    assert not any(b"gen_ai.input.messages" in body for body in taken.bodies)
    monkeypatch.setenv(names.CONTENT_VARIABLE, "true")
    play(tmp_path / "b", display := Notes(), **settings)
    assert display.of_tracing() == [] and any(b"gen_ai.input.messages" in body for body in taken.bodies)


def test_the_content_of_a_test_split_is_not_exported(tmp_path: Path, taken: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.CONTENT_VARIABLE, "true")
    path = write_config(tmp_path, overrides={"tasks.unlock_test": "a look"})
    split = tmp_path / "split.json"
    split.write_text(split.read_text().replace('"role": "train"', '"role": "test"'))
    loaded = load_config(path, ["tracing.enabled=true", "tracing.content=true", f"tracing.endpoint={taken.url}"])
    run_dir = RunDirectory(tmp_path / "run").create()
    run_dir.write_manifest(manifest_of(plan := make_plan(loaded), loaded))
    notes: list[tuple[str, str]] = []
    made = start_tracing(loaded.config, plan, run_dir, 1, lambda level, text: notes.append((level, text)))
    assert made is not None and not made.context.content
    made.end({})
    assert notes == [("warning", "tracing.content has no effect: the content of a test split is not exported")]


def test_the_sdk_can_be_switched_off_from_outside(tmp_path: Path, taken: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    outcome = play(tmp_path, display := Notes(), tracing__enabled=True, tracing__endpoint=taken.url)
    assert outcome.exit_code == ExitCode.OK and taken.requests == [] and "tracing" not in outcome.status
    assert display.of_tracing() == ["tracing: OTEL_SDK_DISABLED is true, so nothing is exported"]


def test_without_tracing_nothing_of_it_is_loaded_or_written(tmp_path: Path) -> None:
    outcome = play(tmp_path)
    assert "tracing" not in outcome.status and outcome.summary is not None and "tracing" not in outcome.summary
    program = "import sys, rayeval.otel.sender; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_one_line_before_anything_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(InputError, match=r"tracing\.enabled = True: needs OpenTelemetry: pip install 'rayeval\[otel\]'") as raised:
        play(tmp_path, tracing__enabled=True)
    assert raised.value.exit_code == ExitCode.BAD_INPUT and not (tmp_path / "run").exists()
    check_extra(load_config(write_config(tmp_path / "off")).config)


def test_variables_that_ask_for_another_protocol_end_the_run_as_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        play(tmp_path, tracing__enabled=True)
    assert not lines(tmp_path) if (tmp_path / "run/traces.jsonl").exists() else True


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_fingerprints_are_what_they_were(name: str) -> None:
    loaded = load_config(Path(__file__).parents[2] / "configs" / name, ["tracing.enabled=true", "tracing.sample_completed=3"])
    assert make_plan(loaded).fingerprint == FINGERPRINTS[name]


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("tracing.endpoint=demo", "OTLP collector"),
        ("tracing.endpoint=localhost:4318", "http://"),
        ("tracing.endpoint=http://user:pw@c:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("tracing.sample_completed=-1", "0 or more"),
        ("tracing.headers=x", "unknown key"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, override: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match="tracing") as raised:
        load_config(write_config(tmp_path), [override])
    assert hint in str(raised.value) and "pw@" not in str(raised.value)


def test_an_error_that_leaves_the_run_ends_the_tracing(tmp_path: Path, taken: Collector) -> None:
    with pytest.raises(EndpointsOutError):
        play(
            tmp_path,
            tracing__enabled=True,
            tracing__endpoint=taken.url,
            model__provider="openai_chat",
            model__base_url="http://127.0.0.1:9/v1",
        )
    (workflow,) = taken.named("invoke_workflow")
    assert attributes(workflow.attributes)[names.ERROR_TYPE] == "exit_5" and workflow.status.code == 2
