"""``concurrency: auto`` against the best fixed setting, on a model server that refuses what passes its slots.

    python -m benchmarks.adaptive [--latency fixed:0.2 mean:0.5,1.0] [--settings 24,28,32,36,48] [--seconds 60]
                                  [--mock-command COMMAND] [--json FILE]

Each setting runs on a fresh server, for ``--seconds`` from its first answer on; the time in which ``auto`` finds its level counts. A share
of refusals is refused calls over all calls, in the same time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import alone
from benchmarks.experiment import table, write_experiment
from benchmarks.live import limited, live_run
from benchmarks.servers import load_average

THROUGHPUT_LEAST = 0.9
REFUSED_MOST = 0.03
_START_S = 180.0
_EPISODES = 20_000
_SHOP_SLOTS = 1024


def one(options: argparse.Namespace, latency: str, concurrency: int | str) -> dict[str, Any]:
    """Throughput and refusals of one setting."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        limited(options.mock_command, _SHOP_SLOTS, model_slots=options.slots, model_full=options.full, model_latency=latency) as fresh,
    ):
        directory = Path(temporary)
        config = write_experiment(directory, fresh, episodes=_EPISODES, concurrency=1, grace_s=0)
        written = json.loads(config.read_text())
        written["execution"]["concurrency"] = concurrency
        config.write_text(json.dumps(written))
        levels: list[list[int]] = []
        with live_run(config, directory / "run") as run:

            def answered() -> dict[str, Any] | None:
                counts = fresh.stats()["model"]
                return counts if counts.get("ok", 0) else None

            before = run.wait_for(answered, _START_S)
            began = time.monotonic()
            while time.monotonic() - began < options.seconds:
                time.sleep(1.0)
                counts = fresh.stats()["model"]
                levels.append([counts["in_flight"], run.status().get("in_flight", 0)])
            after, ended = fresh.stats()["model"], time.monotonic()
    calls = after["requests"] - before["requests"]
    return {
        "latency": latency,
        "concurrency": concurrency,
        "answers_per_s": (after["ok"] - before["ok"]) / (ended - began),
        "refused_share": (after.get("refused_full", 0) - before.get("refused_full", 0)) / max(1, calls),
        "calls": calls,
        "levels": levels,
        "load": load_average(),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All settings at all latencies."""
    rows: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    for latency in options.latency:
        fixed = [one(options, latency, int(n)) for n in options.settings.split(",")]
        adaptive = one(options, latency, "auto")
        best = max(fixed, key=lambda row: float(row["answers_per_s"]))
        share = adaptive["answers_per_s"] / best["answers_per_s"]
        rows += [*fixed, adaptive]
        verdicts.append(
            {
                "latency": latency,
                "best": best["concurrency"],
                "of_best": share,
                "refused_share": adaptive["refused_share"],
                "within_limits": share >= THROUGHPUT_LEAST and adaptive["refused_share"] < REFUSED_MOST,
            }
        )
    return {"rows": rows, "verdicts": verdicts, "within_limits": all(v["within_limits"] for v in verdicts)}


def show(result: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("latency", "concurrency", "answers/s", "refused", "load")]
    for row in result["rows"]:
        figures = (f"{row['answers_per_s']:.1f}", f"{row['refused_share']:.2%}", f"{row['load']:.1f}")
        rows.append((row["latency"], str(row["concurrency"]), *figures))
    said = [
        f"{v['latency']}: auto reaches {v['of_best']:.3f} of the best fixed setting ({v['best']}; limit {THROUGHPUT_LEAST}), "
        f"{v['refused_share']:.2%} refused (limit {REFUSED_MOST:.0%})"
        for v in result["verdicts"]
    ]
    return "\n".join([table(rows), *said])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--latency", nargs="+", default=["fixed:0.2", "mean:0.5,1.0"])
    parser.add_argument("--settings", default="24,28,32,36,48")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--full", choices=("429", "queue"), default="429")
    parser.add_argument("--seconds", type=float, default=60.0)


if __name__ == "__main__":
    raise SystemExit(alone.main(sys.modules[__name__]))
