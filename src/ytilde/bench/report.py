"""What was measured of a table: our runs beside the paper's figures, with the tests between rows.

An empty cell is in it as empty, and a reduced run is told from a full one. `render` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import stats
from .results import Line, best_point
from .tables import (
    METRICS,
    PROTOCOLS,
    Cell,
    PaperValue,
    Table,
    as_table,
    cells,
    experiment,
    inputs,
)

NAMES = {
    "accuracy": "accuracy",
    "ll": "log-likelihood",
    "noisy_accuracy": "noisy accuracy",
    "noisy_ll": "noisy log-likelihood",
    "miou": "mIoU",
}

Point = tuple[dict[str, Any], tuple[dict[str, Any], ...]]  # fields of a grid, lines of their runs


@dataclass(frozen=True)
class Measured:
    """One metric of one cell: our runs by seed, in the paper's unit, and the paper's figure."""

    values: dict[int, float]
    paper: PaperValue
    tolerance: float

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values())))

    @property
    def sd(self) -> float:
        return stats.mean_sd(list(self.values.values()))[1]

    @property
    def difference(self) -> float:
        return self.mean - self.paper.mean

    @property
    def within(self) -> bool:
        """Is the difference below the table's tolerance, or two sd of the paper?"""
        return abs(self.difference) <= max(self.tolerance, 2 * (self.paper.sd or 0.0))


@dataclass(frozen=True)
class Entry:
    """A cell of the report."""

    measured: tuple[Measured, ...]  # one a metric
    scale: str | None  # of the runs; None: there are none
    note: str | None  # why it is empty, or that its fields were tuned
    others: tuple[dict[str, float], ...]  # by metric: our mean by the other protocols
    runs: tuple[dict[str, Any], ...]  # the lines of the results files
    points: tuple[Point, ...] = ()  # of its grid, those that were run

    @property
    def tuned(self) -> bool:
        return bool(self.runs) and self.note == "tuned"


@dataclass(frozen=True)
class Report:
    table: Table
    entries: dict[tuple[str, str, str], Entry]  # group, column, row
    beside: Report | None = None  # the reduced runs, also of cells that have full ones

    def bold(self, group: str, column: str, k: int) -> set[str]:
        """Rows whose k-th metric is not significantly worse than the best; among equal scales."""
        of_column = {
            row.name: self.entries[group, column, row.name]
            for row in self.table.rows
            if self.entries[group, column, row.name].runs
        }
        marked: set[str] = set()
        for scale in {entry.scale for entry in of_column.values()}:
            series = {r: e.measured[k].values for r, e in of_column.items() if e.scale == scale}
            if len(series) > 1:
                marked |= _best(series, self.table.test)
        return marked

    def p_value(self, group: str, column: str, row: str, k: int) -> float | None:
        """Of the test against the best row of the column at the same scale.

        By Holm's method over the rows that are so tested; None: there is no test.
        """
        own = self.entries[group, column, row]
        if own.scale is None:
            return None
        rivals = {
            name.name: self.entries[group, column, name.name].measured[k].values
            for name in self.table.rows
            if self.entries[group, column, name.name].scale == own.scale
        }
        best = max(rivals, key=lambda name: float(np.mean(list(rivals[name].values()))))
        raw = [
            math.nan if name == best else _p(rivals[best], values, self.table.test)
            for name, values in rivals.items()
        ]
        p = float(stats.holm(raw)[list(rivals).index(row)])
        return None if math.isnan(p) else p


def _best(series: dict[str, dict[int, float]], test: str) -> set[str]:
    if test == "paired":  # only the seeds that all rows have
        common = set.intersection(*(set(values) for values in series.values()))
        series = {r: {s: v[s] for s in sorted(common)} for r, v in series.items()} if common else {}
    runs = {row: list(values.values()) for row, values in series.items()}
    if min(map(len, runs.values()), default=0) < 3:
        return set()  # with two runs a t-test tells nothing apart
    return stats.best_marks(runs, test="paired" if test == "paired" else "welch")


def _p(a: dict[int, float], b: dict[int, float], test: str) -> float:
    """Of two series of runs by seed; NaN where they are too short for a test."""
    if test == "paired":
        common = set(a) & set(b)
        a, b = ({seed: each[seed] for seed in sorted(common)} for each in (a, b))
    if min(len(a), len(b)) < 2:
        return math.nan
    compare = stats.paired_t if test == "paired" else stats.welch_t
    return compare(list(a.values()), list(b.values())).p


def entry(
    table: Table,
    cell: Cell,
    runs: Sequence[dict[str, Any]],
    scale: str | None,
    note: str | None,
    points: Sequence[Point] = (),
) -> Entry:
    """Collect the runs of a cell; every metric counts so that higher is better."""
    measured, others = [], []
    for metric, figure in zip(cell.metrics, cell.paper, strict=True):
        by_protocol = {
            name: {run["seed"]: value(run, name, metric, table.percent) for run in runs}
            for name in PROTOCOLS
            if all(name in run for run in runs)
        }
        values = by_protocol.get(cell.protocol, {})
        measured.append(Measured(dict(sorted(values.items())), figure, table.tolerance))
        others.append({n: float(np.mean(list(v.values()))) for n, v in by_protocol.items() if v})
    if runs and not measured[0].values:
        note, runs, scale = f"its runs have no figure by {cell.protocol}", [], None
    return Entry(tuple(measured), scale, note, tuple(others), tuple(runs), tuple(points))


def value(run: dict[str, Any], protocol: str, metric: str, percent: bool) -> float:
    """A run's figure in the paper's unit."""
    name, _, test_set = metric.partition("@")
    key, sign, share = METRICS[name]
    prefix = f"{test_set}/" if test_set else ""
    return run[protocol][prefix + key] * sign * (100 if percent and share else 1)


def metric_name(metric: str) -> str:
    name, _, test_set = metric.partition("@")
    return f"{NAMES[name]} on {test_set}" if test_set else NAMES[name]


def report(table: str | Table, lines: Sequence[Line], scale: str | None = None) -> Report:
    """What was measured of a table, cell by cell; without a scale: full runs, else reduced ones."""
    table = as_table(table)
    # two tables may hold the same run
    finished = list({line["hash"]: line for line in lines if line["status"] == "done"}.values())
    errors = {line["experiment"]: line["error"] for line in lines if line["status"] == "failed"}
    by_experiment: dict[str, list[Line]] = {}
    for line in finished:
        by_experiment.setdefault(line["experiment"], []).append(line)
    entries = {}
    for cell in cells(table):
        note, runs, used, points = cell.reason, [], None, []
        # what cannot be measured stays empty, even where another column has the same inputs
        for used in [] if cell.reason else [scale] if scale else ["full", "reduced"]:
            name = experiment(inputs(cell, used, 0))
            runs, tuned = by_experiment.get(name, []), False
            note = f"failed: {errors[name]}" if name in errors else note
            points = [
                ({field: point.fields[field] for field in cell.grid}, tuple(tried))
                for point in cell.points()
                if cell.grid and (tried := by_experiment.get(experiment(inputs(point, used, 0))))
            ]
            if best := best_point(table, cell, used, finished):
                of_best = by_experiment[experiment(inputs(best, used, 0))]
                if len(of_best) > len(runs):  # more seeds than the paper's own fields got
                    runs, tuned = of_best, True
            if runs:
                note = "tuned" if tuned else None
                break
        entries[cell.group, cell.column, cell.row] = entry(
            table, cell, runs, used if runs else None, note, points
        )
    beside = None if scale else report(table, lines, "reduced")
    return Report(table, entries, beside)
