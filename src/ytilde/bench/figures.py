"""Pictures of a table's runs: the rows' ranks over the columns, and curves over a tuned number."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import write_atomic
from ..outputs import MADE_BY, check_outputs
from . import stats
from .report import Entry, Report, metric_name, value
from .tables import SCALES, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDED = (
    "ranks need 3 rows measured at the same scale in 2 columns, a curve 3 values of one field "
    "(see `ytilde bench tune`)"
)


def paths(report: Report, folder: Path) -> list[Path]:
    """The pictures that `write` may make: TABLE_ranks.png and TABLE_FIELD.png."""
    return [folder / f"{report.table.name}_{name}.png" for name in ("ranks", *_fields(report))]


def write(report: Report, folder: Path, force: bool = False) -> list[Path]:
    """Those of the pictures for which there are runs enough."""
    ranks, *curves = paths(report, folder)
    found = {ranks: draw_ranks(report)}
    for path, field in zip(curves, _fields(report), strict=True):
        found[path] = draw_curves(report, field)
    drawn = {path: figure for path, figure in found.items() if figure is not None}
    check_outputs([(path, "bench figure") for path in drawn], force=force)
    for path, figure in drawn.items():
        about: dict[str, Any] = {"format": "png", "metadata": {"Creator": MADE_BY}}
        write_atomic(path, partial(figure.savefig, dpi=150, bbox_inches="tight", **about))
    return list(drawn)


def draw_ranks(report: Report) -> Figure | None:
    """The critical-difference diagram of a group's first metric; a column counts as a data set."""
    for scale in reversed(SCALES):
        columns = _scores(report, scale)
        rows = _common(columns)
        while len(rows) < 3 and len(columns) > 2:  # without the column that has the fewest rows
            columns.remove(min(columns, key=len))
            rows = _common(columns)
        if len(rows) >= 3 and len(columns) >= 2:
            table = [[column[row] for row in rows] for column in columns]
            figure = stats.plot_critical_difference(rows, table)
            title = f"{report.table.title}: mean rank in {len(columns)} columns, {scale} runs"
            figure.axes[0].set_title(textwrap.fill(title, 70), fontsize=10)
            return figure
    return None


def _scores(report: Report, scale: str) -> list[dict[str, float]]:
    """For each column the mean of every row measured at that scale."""
    return [
        {
            row.name: report.entries[group.name, column.name, row.name].measured[0].mean
            for row in report.table.rows
            if report.entries[group.name, column.name, row.name].scale == scale
        }
        for group in report.table.groups
        for column in group.columns
    ]


def _common(columns: list[dict[str, float]]) -> list[str]:
    return [row for row in columns[0] if all(row in column for column in columns)]


# ---- curves -------------------------------------------------------------------------------------


def _fields(report: Report) -> list[str]:
    return list(
        dict.fromkeys(name for entry in report.entries.values() if (name := _varied(entry)))
    )


def _varied(entry: Entry) -> str | None:
    """The one number of the grid that differs between the runs, where it has three values."""
    names = entry.points[0][0] if entry.points else {}
    values = {name: {fields[name] for fields, _ in entry.points} for name in names}
    varied = [name for name in names if len(values[name]) > 1]
    if len(varied) != 1 or len(values[varied[0]]) < 3:
        return None
    return varied[0] if all(isinstance(v, Real) for v in values[varied[0]]) else None


def draw_curves(report: Report, field: str) -> Figure:
    """The first metric over a field, a panel a column: mean of the seeds, bootstrap 95 % band.

    Rows that have no grid are lines across. A star: what the table shows.
    """
    from matplotlib.figure import Figure

    panels = list(_panels(report, field))
    wide = min(3, len(panels))
    high = math.ceil(len(panels) / wide)
    figure = Figure(figsize=(5.5 * wide, 3.8 * high), layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False).ravel()
    for ax, (group, column, rows) in zip(axes, panels, strict=False):
        for place, (row, entry) in enumerate(rows.items()):
            if _varied(entry) == field:
                _curve(ax, report, group, row, entry, field, f"C{place}")
            else:
                measured = entry.measured[0]
                label = f"{row} ({len(measured.values)})"
                ax.axhline(measured.mean, ls="--", lw=1, color=f"C{place}", label=label)
        ax.set(xlabel=field, ylabel=metric_name(group.metrics[0]))
        ax.set_title(f"{group.name}, {column}", fontsize=10)
        ax.margins(0.08, 0.12)
        ax.legend(fontsize=8)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    told = f"{report.table.title} (in brackets: seeds; star: in the table; bars: 95 %)"
    figure.suptitle(textwrap.fill(told, 70 * wide), fontsize=10)
    return figure


def _panels(report: Report, field: str) -> Iterator[tuple[Group, str, dict[str, Entry]]]:
    """Columns that have a curve, with the rows to draw: the curves, and what was not tuned."""
    for group in report.table.groups:
        for column in group.columns:
            found = {
                r.name: report.entries[group.name, column.name, r.name] for r in report.table.rows
            }
            scales = {entry.scale for entry in found.values() if _varied(entry) == field}
            rows = {
                name: entry
                for name, entry in found.items()
                if _varied(entry) == field
                or (entry.runs and not entry.points and entry.scale in scales)
            }
            if scales:
                yield group, column.name, rows


def _curve(
    ax: Axes, report: Report, group: Group, row: str, entry: Entry, field: str, color: str
) -> None:
    table = report.table
    of_value: dict[Any, list[float]] = {}
    for fields, runs in sorted(entry.points, key=lambda point: point[0][field]):
        of_value[fields[field]] = [
            value(run, group.protocol or table.protocol, group.metrics[0], table.percent)
            for run in runs
        ]
        if runs == entry.runs:
            shown = fields[field]
            ax.plot(shown, np.mean(of_value[shown]), "*", ms=14, color=color)
    x, means = list(of_value), [float(np.mean(v)) for v in of_value.values()]
    bands = [
        stats.bootstrap_interval(v) if len(v) > 1 else (math.nan, math.nan)
        for v in of_value.values()
    ]
    low, high = np.array(bands).T
    ax.plot(x, means, "o-", ms=4, color=color, label=row)
    ax.fill_between(x, low, high, color=color, alpha=0.2, lw=0)
    ax.vlines(x, low, high, color=color, lw=2, alpha=0.5)
    for each, mean in zip(x, means, strict=True):
        note = f"({len(of_value[each])})"
        ax.annotate(note, (each, mean), xytext=(4, 5), textcoords="offset points", fontsize=7)
    if min(x) > 0 and max(x) >= 10 * min(x):
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{v:g}" for v in x], fontsize=8)
        ax.minorticks_off()
