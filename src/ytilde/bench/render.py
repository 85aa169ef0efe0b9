"""Reports as a person reads them: on the screen, as Markdown, HTML and LaTeX.

An empty cell is shown as empty, a reduced run is marked, and every figure carries its n and sd.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..outputs import MADE_BY
from .report import Entry, Measured, Report, metric_name
from .tables import PROTOCOLS, Cell, Group, Table, cells, choose

# what makes the page of this repository
COMMAND = "python -m ytilde bench report --all --markdown docs/results.md"


def number(x: float, percent: bool) -> str:
    return f"{x:.2f}" if percent else f"{x:.3f}"


def ours(measured: Measured, entry: Entry, percent: bool) -> str:
    """ "88.31 ± 0.40 (5)", with r for a reduced and t for a tiny run."""
    if not measured.values:
        return "–"
    sd = "" if math.isnan(measured.sd) else f" ± {number(measured.sd, percent)}"
    mark = {"reduced": " r", "tiny": " t"}.get(entry.scale or "", "")
    tuned = " tuned" if entry.tuned else ""
    return f"{number(measured.mean, percent)}{sd} ({len(measured.values)}){mark}{tuned}"


def paper(measured: Measured, percent: bool) -> str:
    if math.isnan(measured.paper.mean):
        return "–"
    sd = "" if measured.paper.sd is None else f" ± {number(measured.paper.sd, percent)}"
    return f"{number(measured.paper.mean, percent)}{sd}"


def difference(measured: Measured, entry: Entry, percent: bool) -> str:
    """ "-0.23 ≈": ≈ is within the tolerance. None of a tiny run: its data are made."""
    if not measured.values or math.isnan(measured.paper.mean) or entry.scale == "tiny":
        return ""
    sign = "+" if measured.difference >= 0 else ""
    return f"{sign}{number(measured.difference, percent)}{' ≈' if measured.within else ''}"


def blocks(report: Report) -> list[dict[str, Any]]:
    """The report as plain rows and words: a block a group and metric, for all that render it."""
    found = []
    for group in report.table.groups:
        for k, metric in enumerate(group.metrics):
            rows = [_words(report, group, row.name, k) for row in report.table.rows]
            title = group.name
            if len(group.metrics) > 1 or metric != "accuracy":
                title += f", {metric_name(metric)}"
            if group.protocol:
                title += f", {PROTOCOLS[group.protocol]}"
            columns = [column.name for column in group.columns]
            found.append({"group": group, "title": title, "columns": columns, "rows": rows})
    return found


def _words(report: Report, group: Group, row: str, k: int) -> dict[str, Any]:
    percent = report.table.percent
    words = []
    for column in group.columns:
        each = report.entries[group.name, column.name, row]
        measured = each.measured[k]
        words.append(
            {
                "ours": ours(measured, each, percent),
                "paper": paper(measured, percent),
                "difference": difference(measured, each, percent),
                "bold": row in report.bold(group.name, column.name, k),
                "note": each.note if not measured.values else None,
            }
        )
    return {"name": row, "cells": words}


def details(report: Report) -> list[dict[str, Any]]:
    """One line for every cell and metric that was measured, with all protocols and the test."""
    return [
        _detail(each, group, column, row, k, metric)
        for each, group, column, row in _all_measured(report)
        for k, metric in enumerate(group.metrics)
    ]


def _all_measured(report: Report) -> Iterator[tuple[Report, Group, str, str]]:
    """Report, group, column and row of all that was measured, reduced runs beside full ones too."""
    for group, column, row in _places(report.table, report.table.groups):
        own = report.entries[group.name, column, row]
        beside = report.beside if own.scale == "full" else None
        for each in (report, beside):
            if each and each.entries[group.name, column, row].runs:
                yield each, group, column, row


def _places(table: Table, groups: Sequence[Group]) -> Iterator[tuple[Group, str, str]]:
    for group in groups:
        for column in group.columns:
            for row in table.rows:
                yield group, column.name, row.name


def _detail(
    report: Report, group: Group, column: str, row: str, k: int, metric: str
) -> dict[str, Any]:
    each, percent = report.entries[group.name, column, row], report.table.percent
    p = report.p_value(group.name, column, row, k)
    rates = [run["noise_rate"] for run in each.runs if run["noise_rate"] is not None]
    return {
        "cell": f"{row}, {group.name} {column}"
        + (f", {metric_name(metric)}" if len(group.metrics) > 1 else ""),
        "scale": each.scale,
        "n": len(each.runs),
        "others": {
            name: number(each.others[k][name], percent) if name in each.others[k] else "–"
            for name in PROTOCOLS
        },
        "p": "" if p is None else f"{p:.3g}",
        "rate": f"{100 * float(np.mean(rates)):.1f} %" if rates else "",
        "seconds": f"{np.mean([run['seconds'] for run in each.runs]):.0f}",
        "device": ", ".join(sorted({_device(run) for run in each.runs})),
        "commit": ", ".join(sorted({str(run["commit"]) for run in each.runs})),
    }


def _device(run: dict[str, Any]) -> str:
    return f"{run['device']}, compiled" if run.get("compile") else run["device"]


def reasons(report: Report, groups: Sequence[Group]) -> list[str]:
    """Why cells of these groups stay empty: "REASON: rows in columns"; not those yet to be run."""
    empty: dict[str, list[tuple[str, str]]] = {}
    for group, column, row in _places(report.table, groups):
        each = report.entries[group.name, column, row]
        if each.note and not each.runs:
            empty.setdefault(each.note, []).append((row, f"{group.name}/{column}"))
    found = []
    for note, pairs in empty.items():
        for rows, columns in _rectangles(pairs):
            who = "all rows" if len(rows) == len(report.table.rows) else ", ".join(rows)
            whole = len(columns) == sum(len(group.columns) for group in groups)
            found.append(f"{note}: {who} in {'all columns' if whole else ', '.join(columns)}")
    return found


def commands(report: Report) -> list[str]:
    """What makes the measured runs again: a line for cells that share scale, seeds and tuning."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...] | None, int], list[tuple[str, str]]] = {}
    of = {(cell.group, cell.column, cell.row): cell for cell in cells(report.table)}
    for each, group, column, row in _all_measured(report):
        own = each.entries[group.name, column, row]
        options: tuple[str, ...] = ("--scale", str(own.scale))
        options += ("--compile",) if all(run.get("compile") for run in own.runs) else ()
        seeds = 1 + max(run["seed"] for run in own.runs)
        tune = _tried(of[group.name, column, row], own) if own.tuned else None
        alike.setdefault((options, tune, seeds), []).append((row, f"{group.name}/{column}"))
    lines = []
    for (options, tune, seeds), pairs in alike.items():
        for rows, columns in _rectangles(pairs):
            where = (report.table.name, *_chosen(report.table, rows, columns), *options)
            if tune is not None:
                lines.append(("tune", *where, *tune))
            tuned = () if tune is None else ("--tuned",)
            lines.append(("run", *where, "--seeds", str(seeds), *tuned))
    return [f"python -m ytilde bench {shlex.join(line)}" for line in lines]


def _tried(cell: Cell, entry: Entry) -> tuple[str, ...]:
    """`--grid` for the fields of which only some values were tried."""
    words: list[str] = []
    for name, values in cell.grid.items():
        tried = [v for v in values if any(fields[name] == v for fields, _ in entry.points)]
        if len(tried) < len(values):
            texts = (v if isinstance(v, str) else json.dumps(v) for v in tried)
            words += ["--grid", f"{name}={','.join(texts)}"]
    return tuple(words)


def _chosen(table: Table, rows: list[str], columns: list[str]) -> list[str]:
    """`--only` and `--columns` for these cells; neither where it would leave nothing out."""
    ready = [cell for cell in cells(table) if cell.reason is None]
    if choose(ready, [], columns) == choose(ready, rows, columns):
        rows = []
    if choose(ready, rows, []) == choose(ready, rows, columns):
        columns = []
    words = [word for row in rows for word in ("--only", row)]
    return words + [word for column in columns for word in ("--columns", column)]


def _rectangles(pairs: Iterable[tuple[str, str]]) -> list[tuple[list[str], list[str]]]:
    """Few products of rows and columns that make up these (row, column) pairs."""

    def alike(k: int) -> dict[tuple[str, ...], list[str]]:
        """Rows (k = 0) or columns (k = 1) by what they are paired with."""
        partners: dict[str, list[str]] = {}
        for pair in pairs:
            partners.setdefault(pair[k], []).append(pair[1 - k])
        found: dict[tuple[str, ...], list[str]] = {}
        for name, others in partners.items():
            found.setdefault(tuple(others), []).append(name)
        return found

    by_row, by_column = alike(0), alike(1)
    if len(by_row) < len(by_column):
        return [(rows, list(columns)) for columns, rows in by_row.items()]
    return [(list(rows), columns) for rows, columns in by_column.items()]


def legend(report: Report) -> str:
    table = report.table
    test = "paired by seed" if table.test == "paired" else "Welch"
    tiny = any(entry.scale == "tiny" for entry in report.entries.values())
    marks = "r = reduced (fewer epochs)" + (", t = tiny (made data, no result)" if tiny else "")
    return (
        f"{table.source}. Reported as the paper does: {PROTOCOLS[table.protocol]}. "
        f"Ours: mean ± sd (ddof 1), (n), {marks}; below it the paper's. "
        f"Bold (of 3 runs or more): not significantly worse than the best (t-test, {test}, 5 %, "
        "uncorrected). "
        f"≈: within {table.tolerance:g}, or two of the paper's sd."
    )


# ---- renderers ----------------------------------------------------------------------------------


def show(report: Report, console: Console) -> None:
    """On the terminal, with how many cells are empty and why each of them is."""
    count, measured = len(report.entries), sum(bool(e.runs) for e in report.entries.values())
    console.print(f"\n[bold]{escape(report.table.title)}[/bold]  ({report.table.name})")
    console.print(f"{measured} of {count} cells measured, {count - measured} empty")
    fit = max(1, (console.width - 24) // 24)  # columns side by side
    for block in blocks(report):
        for first in range(0, len(block["columns"]), fit):
            part = slice(first, first + fit)
            grid = Grid(block["title"], *(escape(name) for name in block["columns"][part]))
            for row in block["rows"]:
                words = [_terminal_cell(cell) for cell in row["cells"][part]]
                grid.add_row(escape(row["name"]), *words)
            console.print(grid)
    console.print(f"[dim]{escape(legend(report))}[/dim]")


def _terminal_cell(cell: dict[str, Any]) -> str:
    text = escape(cell["note"] or cell["ours"])
    text = f"[bold]{text}[/bold]" if cell["bold"] else text
    return f"{text}\n[dim]{cell['paper']}  {cell['difference']}[/dim]"


def markdown(
    reports: Sequence[Report], command: str = COMMAND, results: Path = Path("results")
) -> str:
    """Only what the tables and results files say: it changes when they do, and then alone.

    command, results: what was asked for and where it was read, for the page to tell.
    """
    parts = [
        "# Results",
        f"Made by `{command}` from `{results}/*.jsonl`; do not edit. In each cell: ours, or – "
        "where there is nothing; then the paper's figure and the difference. An empty cell was not "
        "run yet, unless the list below its table gives another reason.",
    ]
    for report in reports:
        parts.append(f"## {report.table.title}")
        parts.append(legend(report))
        parts.append("\n".join(f"- {_cell_text(note)}" for note in report.table.notes))
        for block in blocks(report):
            lines = [f"| {block['title']} | " + " | ".join(block["columns"]) + " |"]
            lines.append("|---" * (1 + len(block["columns"])) + "|")
            for row in block["rows"]:
                words = [_markdown_cell(cell) for cell in row["cells"]]
                lines.append(f"| {_cell_text(row['name'])} | " + " | ".join(words) + " |")
            parts.append("\n".join(lines))
        if empty := reasons(report, report.table.groups):
            parts.append("Empty:\n\n" + "\n".join(f"- {_cell_text(reason)}" for reason in empty))
        if found := details(report):
            parts.append(_markdown_details(found))
            parts.append("Again:\n\n```bash\n" + "\n".join(commands(report)) + "\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_cell(cell: dict[str, Any]) -> str:
    own = f"**{cell['ours']}**" if cell["bold"] else cell["ours"]
    return f"{own}<br>{cell['paper']} {cell['difference']}".strip()


def _markdown_details(found: list[dict[str, Any]]) -> str:
    head = ["cell", "scale", "n", *PROTOCOLS.values(), "p against the best (Holm)"]
    head += ["noise", "s a run", "device", "commit"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for each in found:
        words = [each["cell"], each["scale"], str(each["n"]), *each["others"].values()]
        words += [each[key] for key in ("p", "rate", "seconds", "device", "commit")]
        lines.append("| " + " | ".join(_cell_text(word) for word in words) + " |")
    return "\n".join(lines)


def _cell_text(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def html(reports: Sequence[Report]) -> str:
    """One page that needs nothing else."""
    loader = jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True)
    pages = [
        {
            "title": report.table.title,
            "legend": legend(report),
            "notes": report.table.notes,
            "blocks": blocks(report),
            "details": details(report),
            "commands": commands(report),
        }
        for report in reports
    ]
    return environment.get_template("bench.html").render(pages=pages, protocols=PROTOCOLS)


def latex(reports: Sequence[Report]) -> str:
    """Tables for \\input{}; they need the package booktabs."""
    parts = [f"% {MADE_BY}"]
    for report in reports:
        for block in blocks(report):
            wide = len(block["columns"])
            head = " & ".join(["", *(_tex(column) for column in block["columns"])])
            lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * wide}}}"]
            lines += [r"\toprule", head + r" \\", r"\midrule"]
            for row in block["rows"]:
                own = [_tex_ours(cell) for cell in row["cells"]]
                theirs = [
                    _tex(f"({cell['paper']}) {cell['difference']}".strip()) for cell in row["cells"]
                ]
                lines.append(" & ".join([_tex(row["name"]), *own]) + r" \\")
                lines.append(" & ".join(["", *theirs]) + r" \\")
            empty = "".join(f" Empty: {why}." for why in reasons(report, [block["group"]]))
            caption = _tex(f"{report.table.title}: {block['title']}. {legend(report)}{empty}")
            lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _tex_ours(cell: dict[str, Any]) -> str:
    return rf"\textbf{{{_tex(cell['ours'])}}}" if cell["bold"] else _tex(cell["ours"])


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "τ": r"$\tau$", "Σ": r"$\Sigma$", "≈": r"$\approx$", "–": "--",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)
