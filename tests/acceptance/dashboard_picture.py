"""Draws the dashboard from a Prometheus server, where no Grafana is at hand: every query of every panel as a range query.

    python -m tests.acceptance.dashboard_picture http://127.0.0.1:9090 --start 1700000000 --end 1700000300 --out dashboard.png

Needs matplotlib. Panels lie in the dashboard's own grid, with its units, legends and stacking.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.queries import dashboard, filled

Series = tuple[Mapping[str, str], list[tuple[float, float]]]
_COLUMN_IN, _LINE_IN = 0.9, 0.42
_QUERY_S = 30.0


def range_query(url: str, expression: str, start: float, end: float, step: float = 5.0) -> list[Series]:
    """Series of labels and (time, value), values that are no number left out."""
    asked = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{asked}", timeout=_QUERY_S) as answer:
        found = json.load(answer)["data"]["result"]
    series = [(s["metric"], [(float(t), float(v)) for t, v in s["values"] if math.isfinite(float(v))]) for s in found]
    return [s for s in series if s[1]]


def named(legend: str, labels: Mapping[str, str]) -> str:
    """Grafana's legend format filled in."""
    for key, value in labels.items():
        legend = legend.replace("{{" + key + "}}", value)
    return legend


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value in the unit of a panel."""
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    if unit == "s":
        return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s" if value >= 1 or value == 0 else f"{1e3 * value:.3g} ms"
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}{'B/s' if unit == 'Bps' else ''}"
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.3g}"


def draw(url: str, start: float, end: float, out: Path, run: str = ".*") -> list[str]:
    """Write the picture. -> the panels without a single value."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    panels = dashboard()["panels"]
    lines = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
    figure = Figure(figsize=(24 * _COLUMN_IN, lines * _LINE_IN), facecolor="#f4f5f5")
    empty: list[str] = []
    for panel in panels:
        place, title = panel["gridPos"], panel["title"]
        top = 1 - place["y"] / lines
        if panel["type"] == "row":
            figure.text(0.01, top - 0.7 / lines, title, fontsize=14, weight="bold")
            continue
        left, bottom = place["x"] / 24 + 0.03, top - place["h"] / lines
        unit, decimals = panel["fieldConfig"]["defaults"]["unit"], panel["fieldConfig"]["defaults"].get("decimals")
        series = [
            (named(target["legendFormat"], labels), values)
            for target in panel["targets"]
            for labels, values in range_query(url, filled(target["expr"], run), start, end)
        ]
        if not series:
            empty.append(title)
        if panel["type"] == "stat":
            figure.text(left - 0.02, top - 0.8 / lines, title, fontsize=9)
            words = "  ".join(shown(values[-1][1], unit, decimals) for _, values in series) or "no data"
            figure.text(left, bottom + 1.4 / lines, words, fontsize=20, weight="bold")
            figure.text(left, bottom + 0.7 / lines, "  ".join(name for name, _ in series), fontsize=9)
            continue
        space = (1.2 + 0.45 * math.ceil(len(series) / 2)) / lines
        axes = figure.add_axes((left, bottom + space, place["w"] / 24 - 0.04, place["h"] / lines - space - 0.9 / lines))
        axes.set_title(title, fontsize=10, loc="left")
        if panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal" and series:
            times = sorted({t for _, values in series for t, _ in values})
            heights = [[dict(values).get(t, 0.0) for t in times] for _, values in series]
            axes.stackplot([(t - start) / 60 for t in times], heights, labels=[name for name, _ in series], alpha=0.5)
        else:
            for name, values in series:
                axes.plot([(t - start) / 60 for t, _ in values], [v for _, v in values], label=name, linewidth=1.2)
        axes.set_xlim(0, (end - start) / 60)
        if "min" in panel["fieldConfig"]["defaults"]:
            axes.set_ylim(bottom=0, top=panel["fieldConfig"]["defaults"].get("max"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, unit=unit: shown(value, unit)))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if series:
            axes.legend(fontsize=7, ncol=2, loc="upper left", bbox_to_anchor=(0, -0.12), frameon=False)
        else:
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center")
    figure.savefig(out, dpi=75)
    return empty


def main() -> int:
    """-> 1 when a panel is empty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--start", type=float, default=time.time() - 600)
    parser.add_argument("--end", type=float, default=time.time())
    parser.add_argument("--run", default=".*")
    parser.add_argument("--out", type=Path, default=Path("dashboard.png"))
    args = parser.parse_args()
    empty = draw(args.url, args.start, args.end, args.out, args.run)
    print(json.dumps({"picture": str(args.out), "empty": empty}))
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
