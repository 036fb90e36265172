"""A real Prometheus reads a real run: every query of the dashboard and of the alerts finds series, and counters say what the summary says.

    python -m tests.acceptance.prometheus [--picture FILE] [--repeats N]

Starts a Ray head of its own with its metrics agent (``pip install 'rayeval[cluster]'``), the demo servers with faults, and Debian's
prometheus with ``cluster/prometheus.yml``, only its targets given; runs the smoke configuration on that cluster. Prints one JSON line a
row and exits 1 when one does not hold. ``--picture`` draws the dashboard from what was scraped (needs matplotlib).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from rayeval.demo import DemoServers, start_demo
from tests.acceptance.dashboard_picture import draw, range_query
from tests.acceptance.ray_nodes import RayNodes
from tests.cluster.queries import CLUSTER, alert_queries, filled, panel_queries, selectors
from tests.cluster.test_monitoring import promtool
from tests.helpers.ports import free_ports

JsonObject = dict[str, Any]
ROOT = Path(__file__).parents[2]
_START_S, _RUN_S, _END_S = 60.0, 420.0, 30.0
_REPORT_S = 10.0
"""How often Ray's processes report."""
_GONE_S = 20.0 + 2 * _REPORT_S
"""After this long no gauge of an ended run is exported any more."""


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        content: bytes = answer.read()
        return content


def _until(what: str, holds: Callable[[], Any], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(0.2)


@contextlib.contextmanager
def process(place: Path, name: str, command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its log in ``place``; it and its descendants end with the block."""
    with (place / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **environment})
    try:
        yield started
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(started.pid).children(recursive=True)
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(10.0)
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
        started.kill()
        started.wait(10.0)


@contextlib.contextmanager
def prometheus(place: Path, dashboard: str) -> Iterator[str]:
    """-> its URL. ``cluster/prometheus.yml`` as it is, with the way to find the nodes that stands there as a comment: by the dashboard."""
    content = yaml.safe_load((CLUSTER / "prometheus.yml").read_text("utf-8"))
    (job,) = content["scrape_configs"]
    del job["dns_sd_configs"], job["file_sd_configs"]
    job["http_sd_configs"] = [{"url": f"{dashboard}/api/prometheus/sd", "refresh_interval": "5s"}]
    content["rule_files"] = [str(CLUSTER / file) for file in content["rule_files"]]
    (place / "prometheus.yml").write_text(yaml.safe_dump(content))
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    options = [f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'tsdb'}"]
    with process(place, "prometheus", ["prometheus", *options, f"--web.listen-address={url.removeprefix('http://')}"]):
        _until("prometheus", lambda: _get(f"{url}/-/ready"), _START_S)
        _until("its targets", lambda: b'"health":"up"' in _get(f"{url}/api/v1/targets"), _START_S)
        yield url


def run_smoke(place: Path, address: str, demo: DemoServers, repeats: int) -> JsonObject:
    """``rayeval run configs/smoke.yaml`` on the cluster. -> its summary, and when it ran."""
    settings = {
        "experiment.output_dir": str(place / "runs"),
        "tasks.repeats": repeats,
        "environment.base_url": demo.shop_url,
        "model.base_url": demo.model_url,
        "execution.concurrency": 24,
        "execution.actors": 2,
        "execution.attempts": 1,
        "execution.max_failed": "50%",
        "execution.prices": json.dumps({"prompt_per_million": 0.15, "completion_per_million": 0.6}),
    }
    command = [sys.executable, "-m", "rayeval", "run", str(ROOT / "configs" / "smoke.yaml"), "--address", address, "--display", "plain"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    began = time.time()
    with process(place, "run", command, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0") as driver:
        code = driver.wait(_RUN_S)
    assert code == 0, f"exit code {code}:\n{(place / 'run.log').read_text()[-3000:]}"
    summary: JsonObject = json.loads((place / "runs" / "smoke" / "summary.json").read_bytes())
    return {"summary": summary, "began": began, "ended": time.time(), "traces": (place / "runs" / "smoke" / "traces.jsonl").stat().st_size}


class Asked:
    """The rows: each returns figures or raises AssertionError."""

    def __init__(self, url: str, run: JsonObject) -> None:
        self.url, self.run = url, run

    def now(self, expression: str) -> dict[frozenset[tuple[str, str]], float]:
        """An instant query: labels -> value."""
        found = json.loads(_get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))["data"]["result"]
        return {frozenset(s["metric"].items()): float(s["value"][1]) for s in found}

    def series(self, expression: str) -> int:
        """Series with a value while the run lived and shortly after."""
        return len(range_query(self.url, filled(expression), self.run["began"], self.run["ended"] + _END_S))

    def dashboard(self) -> JsonObject:
        """Every query of every panel and variable."""
        found = {query.place: self.series(query.expression) for query in panel_queries()}
        empty = [place for place, n in found.items() if not n]
        assert not empty, f"no series for {empty}"
        return {"queries": len(found), "series": sum(found.values())}

    def alerts(self) -> JsonObject:
        """Every selector of every alert, and Prometheus evaluates each rule without an error."""
        asked = {selector for query in alert_queries() for selector in selectors(query.expression)}
        empty = [selector for selector in sorted(asked) if not self.series(selector)]
        assert not empty, f"no series for {empty}"
        groups = json.loads(_get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        bad = {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}
        assert len(rules) == len(list(alert_queries())) and not bad, bad
        return {"rules": len(rules), "selectors": len(asked), "firing": sorted(r["name"] for r in rules if r["state"] == "firing")}

    def exact(self) -> JsonObject:
        """What the last scrape says is what the summary says: nothing was lost at the end of the run."""
        counts, attempts = self.run["summary"]["counts"], self.run["summary"]["attempts"]
        expected: dict[str, float] = {
            'ray_rayeval_episodes_total{status="completed"}': counts["completed"],
            'ray_rayeval_episodes_total{status="failed"}': counts["failed"],
            "ray_rayeval_steps_total": attempts["model_steps"],
            "ray_rayeval_actions_total": attempts["total_actions"],
            "ray_rayeval_protocol_errors_total": attempts["protocol_errors"],
            'ray_rayeval_tokens_total{type="input"}': attempts["tokens"]["prompt_tokens"],
            'ray_rayeval_tokens_total{type="output"}': attempts["tokens"]["completion_tokens"],
            "ray_rayeval_model_latency_seconds_count_total": attempts["model_steps"],
            'ray_rayeval_model_latency_seconds_bucket_total{le="+Inf"}': attempts["model_steps"],
            "ray_rayeval_episode_duration_seconds_count_total": attempts["lines"],
            "ray_rayeval_trace_bytes_total": self.run["traces"],
            "ray_rayeval_cost_total": self.run["summary"]["cost"]["amount"],
            "ray_rayeval_episode_failures_total": counts["failed"],
            "ray_rayeval_model_retries_total": sum(attempts["model_retries"].values()),
        }
        seen = {name: sum(self.now(f"sum({name})").values()) for name in expected}
        wrong = {name: (seen[name], value) for name, value in expected.items() if not math.isclose(seen[name], value, rel_tol=1e-5)}
        assert not wrong, f"(scraped, summary): {wrong}"
        assert counts["failed"] > 0 and attempts["model_retries"], "the faults of the demo did not show: nothing was compared"
        return seen

    def over(self) -> JsonObject:
        """The last words of an ended run are that nothing runs; later its gauges are gone, and the driver is not missed."""
        last = self.now("last_over_time(ray_rayeval_run_active[10m])")
        running = self.now("last_over_time(ray_rayeval_episodes_in_flight[10m])")
        assert set(last.values()) == {0.0} == set(running.values()), (last, running)
        _until("the end of its gauges", lambda: not self.now("ray_rayeval_run_active"), _GONE_S + _END_S)
        missed = self.now('ALERTS{alertname="RayevalDriverGone"}')
        assert not missed, missed
        return {"gone_after_s": round(time.time() - self.run["ended"], 1)}

    def tools(self) -> JsonObject:
        """promtool check and test."""
        for arguments in (("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml")):
            promtool(*arguments)
        promtool("test", "rules", str(ROOT / "tests" / "cluster" / "alerts_test.yml"))
        return {"promtool": "check config, check rules, test rules"}


PARTS = ("exact", "dashboard", "alerts", "over", "tools")


def missing() -> str | None:
    """What the row needs and this machine lacks."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        return "prometheus is missing (Debian: apt-get install prometheus)"
    if importlib.util.find_spec("aiohttp_cors") is None:
        return "Ray's metrics agent is missing: pip install 'rayeval[cluster]'"
    return None


@contextlib.contextmanager
def row(repeats: int = 15) -> Iterator[Asked]:
    """A run that has been scraped to its end, and the server to ask. ``repeats``: episodes of each of the 40 tasks."""
    servers = {"slots": 32, "model_latency": "mean:0.5,0.5", "env_latency": "mean:0.05,0.5"}
    faults = {"fault_429": 0.03, "fault_malformed": 0.02, "env_fault_500": 0.005, "env_fault_lease_lost": 0.01}
    with tempfile.TemporaryDirectory(prefix="rp") as temporary, RayNodes(cpus=3, nodes=1) as nodes:
        place = Path(temporary)
        with prometheus(place, nodes.url) as url, start_demo(**servers, **faults) as demo:
            asked = Asked(url, run_smoke(place, nodes.gcs, demo, repeats))
            time.sleep(_REPORT_S + 5.0)  # one more scrape
            yield asked


def main() -> int:
    """-> 1 when a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--repeats", type=int, default=15, help="episodes of each of the 40 tasks")
    args = parser.parse_args()
    if lacks := missing():
        sys.exit(lacks)
    wrong = 0
    with row(args.repeats) as asked:
        if args.picture is not None:
            draw(asked.url, asked.run["began"], asked.run["ended"] + _REPORT_S, args.picture)
        for part in PARTS:
            try:
                print(json.dumps({"row": part, "holds": True, "figures": getattr(asked, part)()}), flush=True)
            except Exception as error:
                wrong += 1
                traceback.print_exc()
                print(json.dumps({"row": part, "holds": False, "why": str(error)}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
