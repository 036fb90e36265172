import argparse
import json
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import alone, report
from benchmarks.experiment import Figure
from benchmarks.report import BEGIN, END
from rayeval.exceptions import InputError


class Measurement(ModuleType):
    """A benchmark that takes no time."""

    def __init__(self, name: str, within: bool = True, error: Exception | None = None) -> None:
        super().__init__(name, f"Measures {name}.")
        self._within, self._error = within, error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(f"--{self.__name__}-size", type=int, default=1)

    def measure(self, options: argparse.Namespace) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        return {"size": getattr(options, f"{self.__name__}_size"), "within_limits": self._within}

    def show(self, result: dict[str, Any]) -> str:
        return f"{self.__name__} of {result['size']}"

    def figures(self, result: dict[str, Any]) -> list[Figure]:
        return [Figure(f"{self.__name__}: size", str(result["size"]), "", "", "2", self._within)]


class Terminated(Measurement):
    """One during which SIGTERM comes."""

    def measure(self, options: argparse.Namespace) -> dict[str, Any]:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not heard")


def options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"good_size": 1, "bad_size": 1, **changes})


def test_one_that_fails_is_a_row_and_the_next_one_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    parts, results = zip(
        *(
            bench.measured(m.__name__, m, options(), sys.stdout)
            for m in (Measurement("bad", error=RuntimeError("no server\nat /secret/path")), Measurement("good"))
        ),
        strict=True,
    )
    assert [(part.name, part.within_limits, part.failed) for part in parts] == [("bad", False, "RuntimeError"), ("good", True, None)]
    assert results == (None, {"size": 1, "within_limits": True})
    said = capsys.readouterr()
    assert said.out == "good of 1\n\n" and "no server" in said.err
    assert "path" not in report.markdown(parts, [])


def test_a_whole_run_writes_and_a_named_one_does_not() -> None:
    parsed = bench.parse([])
    assert parsed.write and parsed.names == list(bench.ALL) and "peers" not in parsed.names
    assert (len(parsed.wave), parsed.tail_pairs, parsed.seconds) == (2, 1, 30.0)
    assert bench.parse(["--peer-command", "x"]).names[-1] == "peers"
    for argv in (["startup"], ["--json"], ["--no-write"], ["startup", "--json"]):
        assert not bench.parse(argv).write, argv
    assert bench.parse(["tail"]).wave is None and bench.parse(["tail"]).tail_pairs is None


@pytest.mark.parametrize("argv", [["nothing"], ["peers"]])
def test_wrong_names_are_refused_before_anything_is_measured(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.parse(argv)
    assert ended.value.code == 2
    assert "peers" in capsys.readouterr().err


def test_every_benchmark_offers_the_same(tmp_path: Path) -> None:
    for name, module in bench.MEASURED.items():
        assert all(callable(getattr(module, f)) for f in ("add_arguments", "measure", "show", "figures")), name
        assert module.__doc__
    assert set(bench.ALL) < set(bench.MEASURED)


def test_alone_it_shows_writes_its_json_and_exits_by_its_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert alone.main(Measurement("good"), ["--good-size", "7", "--json", str(file)]) == 0
    assert capsys.readouterr().out == "good of 7\n"
    assert json.loads(file.read_text()) == {"size": 7, "within_limits": True}
    assert alone.main(Measurement("good", within=False), []) == 1
    with pytest.raises(SystemExit) as ended:
        alone.main(Measurement("good", error=InputError("--good-size", 0, "give more")), [])
    assert ended.value.code == 2
    assert "--good-size = 0: give more" in capsys.readouterr().err


def whole(**changes: Any) -> argparse.Namespace:
    return options(**{"names": ["good", "bad"], "json": False, "write": True, "mock_command": None, "peer_servers": None, **changes})


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [
        (Measurement("bad"), 0, "| bad: size | 1 |"),
        (Measurement("bad", within=False), 1, "| bad: size | 1 **beyond its limit** |"),
        (Measurement("bad", error=OSError("full")), 1, "| bad | failed **OSError** |"),
    ],
)
def test_a_whole_run_writes_every_row_whatever_became_of_it(tmp_path: Path, bad: Measurement, code: int, said: str) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    assert bench.run(whole(names=["bad", "good"]), {"good": Measurement("good"), "bad": bad}, document) == code
    text = document.read_text()
    assert text.startswith(f"above\n{BEGIN}\n") and text.endswith(f"\n{END}\nbelow\n")
    assert "\nold\n" not in text and "the bundled demo" in text
    assert said in text and "| good: size | 1 |" in text


def test_what_was_measured_before_an_interruption_is_shown_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "performance.md"
    document.write_text("as it was")
    handler = signal.getsignal(signal.SIGTERM)
    assert bench.run(whole(), {"good": Measurement("good"), "bad": Terminated("bad")}, document) == 130
    assert "good: size" in capsys.readouterr().err
    assert document.read_text() == "as it was"
    assert signal.getsignal(signal.SIGTERM) is handler


def test_json_is_one_object_on_stdout_and_the_document_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "performance.md"
    benchmarks = {"good": Measurement("good"), "bad": Measurement("bad", error=OSError("full"))}
    assert bench.run(whole(json=True, write=False), benchmarks, document) == 1
    assert json.loads(capsys.readouterr().out) == {"good": {"size": 1, "within_limits": True}, "bad": None}
    assert not document.exists()
