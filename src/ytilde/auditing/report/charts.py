"""The charts of the report: lines, points and bars in a box of WIDTH x HEIGHT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...engine import History
from ...metrics import Reliability
from ..pages import percent as percent_of
from ..pages import plural, text_of
from ..totals import BARS, Totals

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 12, 34


class Axis(NamedTuple):
    """From values to places on the page; ticks at round numbers."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, percent: bool = False) -> list[tuple[float, str]]:
        step = 10 ** math.floor(math.log10((self.high - self.low) or 1.0))
        step = next(s for s in (step / 5, step / 2, step, 2 * step) if self._number(s) <= 6)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [k * step for k in range(first, last + 1)]
        return [(self.at(v), f"{100 * v:g} %" if percent else f"{v:g}") for v in values]

    def _number(self, step: float) -> float:
        return (self.high - self.low) / step + 1


def _axes(x: tuple[float, float], y: tuple[float, float]) -> tuple[Axis, Axis]:
    return Axis(*x, LEFT, WIDTH - RIGHT), Axis(*y, HEIGHT - BOTTOM, TOP)


def _chart(title: str, across: Axis, up: Axis, percent: bool, **parts: Any) -> dict[str, Any]:
    empty = {"lines": [], "bars": [], "points": [], "xlabel": "", "note": "", "ideal": ""}
    ticks = {"xticks": across.ticks(), "yticks": up.ticks(percent)}
    return empty | ticks | {"title": title} | parts


CURVES = {
    "loss": "Training loss",
    "val_accuracy": "Accuracy on held-out given labels",
    "test_accuracy": "Accuracy on test data",
}


def curves(history: History | Mapping[str, History] | None) -> list[dict[str, Any]]:
    """A chart for each figure that the records hold, with a line for each run."""
    runs = history if isinstance(history, Mapping) else {"this run": history or []}
    charts = []
    for key, title in CURVES.items():
        lines = {name: [r[key] for r in run if _known(r, key)] for name, run in runs.items()}
        lines = {name: values for name, values in lines.items() if values}
        if not lines:
            continue
        values = [v for line in lines.values() for v in line]
        longest = max(len(line) for line in lines.values())
        percent = key != "loss"
        around = _around_share if percent else _around
        across, up = _axes((1, max(2, longest)), around(min(values), max(values)))
        drawn = [
            {
                "name": text_of(name),
                "points": [(across.at(k), up.at(v)) for k, v in enumerate(line, 1)],
                "last": percent_of(line[-1]) if percent else f"{line[-1]:.3g}",
            }
            for name, line in lines.items()
        ]
        charts.append(_chart(title, across, up, percent, lines=drawn, xlabel="epoch"))
    return charts


def _known(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), (int, float)) and math.isfinite(record[key])


def _around(low: float, high: float) -> tuple[float, float]:
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room


def _around_share(low: float, high: float) -> tuple[float, float]:
    """Ten points of a hundred at least, or a row more or less would look like a leap."""
    middle = (low + high) / 2
    low, high = _around(low, high)
    return max(0.0, min(low, middle - 0.05, 0.9)), min(1.0, max(high, middle + 0.05, 0.1))


def histograms(totals: Totals) -> list[dict[str, Any]]:
    told = {
        "p_wrong": ("How likely each label is wrong", "p_wrong; flagged above 0.5"),
        "ambiguity": ("How ambiguous each item is", "ambiguity; 1: two classes tie"),
    }
    charts, edges = [], np.linspace(0, 1, BARS + 1)
    for column, (title, label) in told.items():
        number = getattr(totals, column)
        across, up = _axes((0, 1), (0, float(number.max()) * 1.05))
        bars = [
            {
                "x": across.at(edges[k]) + 0.5,
                "width": round(across.at(edges[k + 1]) - across.at(edges[k]) - 1, 1),
                "y": up.at(n),
                "height": round(up.at(0) - up.at(n), 1),
                "marked": column == "p_wrong" and edges[k] >= 0.5,
                "told": f"{edges[k]:.2f} to {edges[k + 1]:.2f}: {plural(n, 'row')}",
            }
            for k, n in enumerate(number)
        ]
        charts.append(_chart(title, across, up, False, bars=bars, xlabel=label))
    return charts


def reliability(curve: Reliability | None) -> dict[str, Any] | None:
    if curve is None or not len(curve.size):
        return None
    across, up = _axes((0, 1), (0, 1))
    largest = float(np.max(curve.size))
    points = [
        {
            "x": across.at(float(c)),
            "y": up.at(float(a)),
            "r": round(3 + 7 * math.sqrt(float(n) / largest), 1),
            "told": f"promised {c:.2f}, came true {a:.2f}, {plural(int(n), 'row')}",
        }
        for c, a, n in zip(curve.confidence, curve.accuracy, curve.size, strict=True)
    ]
    line = {"name": "", "points": [(p["x"], p["y"]) for p in points], "last": ""}
    gap = np.abs(np.asarray(curve.confidence) - np.asarray(curve.accuracy))
    ece = float((gap * curve.size).sum() / np.sum(curve.size))
    title = "Can p_wrong be believed?"
    ideal = f"{across.at(0)},{up.at(0)} {across.at(1)},{up.at(1)}"
    note = f"Calibration error {ece:.3f} (0 is perfect). On the dashed line promises come true."
    parts = {"lines": [line], "points": points, "ideal": ideal, "note": note}
    return _chart(title, across, up, False, xlabel="promised p_wrong", **parts)
