"""What was measured of a method, from the committed lines under results/."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ytilde import bench
from ytilde.bench import render
from ytilde.bench.report import report
from ytilde.bench.results import load_results
from ytilde.bench.tables import list_tables, load_table

DIGITS = {  # of digits_methods.jsonl
    "symmetric:0.4,inclusive=false": "symmetric 40 %",
    "instance:0.4": "instance 40 %",
    "instance:0.4,features=raw255": "instance 40 %, raw pixels",
}
TRANSITION = {"digits_transition": "digits", "fashion_transition": "Fashion-MNIST"}


class Measured:
    """All lines, read once; `about` gives the blocks of a method's page."""

    def __init__(self, results: Path) -> None:
        self.results = results
        lines = load_results(results)
        self.reports = [report(load_table(name), lines) for name in list_tables()]
        names = ("digits_methods", "defaults", "crowd", *TRANSITION)
        self.lines = {name: self._read(name) for name in names}

    def _read(self, name: str) -> list[dict]:
        found = [json.loads(text) for text in (self.results / f"{name}.jsonl").open()]
        return [line for line in found if "superseded" not in line]  # by a method that has changed

    def about(self, names: tuple[str, ...]) -> Iterator[str]:
        blocks = [
            *self._tables(names),
            *self._digits(names),
            *self._defaults(names),
            *self._transition(names),
            *self._crowd(names),
        ]
        yield from blocks or ["Nothing yet that is committed under `results/`."]

    def _tables(self, names: tuple[str, ...]) -> Iterator[str]:
        rows = []
        for each in self.reports:
            for row in (row for row in each.table.rows if row.method in names):
                rows += _cells(each, row.name)
        if rows:
            yield (
                "In the papers' tables: mean ± sd (number of seeds); r marks fewer epochs than in "
                "the paper. Protocols and tests are under [results](../../results.md)."
            )
            yield _table(("table", "data and noise", "row", "ours", "paper"), rows)

    def _digits(self, names: tuple[str, ...]) -> Iterator[str]:
        rows = []
        for name in names:
            for noise, text in DIGITS.items():
                found = [
                    100 * line["accuracy"]
                    for line in self.lines["digits_methods"]
                    if (line["method"], line["noise"]) == (name, noise)
                ]
                if len(found) > 1:
                    rows.append((f"`{name}`", text, _spread(found)))
        if rows:
            yield (
                "Digits, mlp, last of 100 epochs, accuracy on clean test labels "
                "(`benchmarks/digits_methods.py`):"
            )
            yield _table(("method", "noise", "accuracy"), rows)

    def _defaults(self, names: tuple[str, ...]) -> Iterator[str]:
        """In every cell that was run, beside cross-entropy with the same network there."""
        lines = {
            (line["method"], line["backbone"], line["setting"], line["seed"]): line
            for line in self.lines["defaults"]
            if "accuracy" in line
        }
        rows, versions = [], set()
        for name in names:
            for network in dict.fromkeys(key[1] for key in lines if key[0] == name):
                own = [key for key in lines if key[:2] == (name, network)]
                pairs = [(lines[key], lines["ce", *key[1:]]) for key in own
                         if ("ce", *key[1:]) in lines]  # fmt: skip
                if not pairs:
                    continue
                versions |= {mine["versions"]["ytilde"] for mine, _ in pairs}
                mean = [100 * statistics.mean(line["accuracy"] for line in side)
                        for side in zip(*pairs, strict=True)]  # fmt: skip
                cost = statistics.median(mine["seconds"] / ce["seconds"] for mine, ce in pairs)
                rows.append((f"`{name}`", f"`{network}`", str(len(pairs)), f"{mean[0]:.1f}",
                             f"{mean[1]:.1f}", f"{cost:.1f}"))  # fmt: skip
        if rows:
            yield (
                "In the study of defaults (20 settings of tables, texts and features, up to 5 "
                "seeds, everything at its default; `benchmarks/defaults.py`): mean accuracy on "
                "clean test labels over the runs there are, cross-entropy in the same runs, and "
                "the time as a multiple of cross-entropy's. "
                f"By ytilde {', '.join(sorted(versions))}."
            )
            head = ("method", "network", "runs", "accuracy", "cross-entropy", "time")
            yield _table(head, rows)

    def _transition(self, names: tuple[str, ...]) -> Iterator[str]:
        rows = []
        for file, data in TRANSITION.items():
            newest = {(line["name"], line["seed"]): line["row_error"] for line in self.lines[file]}
            for name in names:
                found = {seed: error for (of, seed), error in newest.items() if of == name}
                if len(found) > 1:
                    floor = [newest["class-level floor", seed] for seed in found]
                    rows.append((f"`{name}`", data, _spread([*found.values()], 3),
                                 _spread(floor, 3)))  # fmt: skip
        if rows:
            yield (
                "T(x) under 40 % instance noise: squared error of the true class's row, and the "
                "least that one matrix for all inputs can have "
                "(`benchmarks/digits_transition.py`):"
            )
            yield _table(("method", "data", "error", "best single matrix"), rows)

    def _crowd(self, names: tuple[str, ...]) -> Iterator[str]:
        groups: dict[str, list[dict]] = {}
        for line in self.lines["crowd"]:
            if "last" in line and "crowd" in names:
                groups.setdefault(line["row"], []).append(line)
        if groups:
            yield (
                "Digits with made annotators, 2.5 votes a row (`benchmarks/crowd.py`, "
                "[more](../../annotators.md)): accuracy on clean test labels."
            )
            rows = [
                (
                    name,
                    *(_spread([100 * line[key] for line in lines]) for key in ("last", "chosen")),
                )
                for name, lines in groups.items()
            ]
            yield _table(("row", "last epoch", "epoch chosen by noisy validation"), rows)


def _spread(values: list[float], digits: int = 1) -> str:
    mean, sd = statistics.mean(values), statistics.stdev(values)
    return f"{mean:.{digits}f} ± {sd:.{digits}f} ({len(values)})"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    line: Callable[[Iterable[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    head = tuple(head)
    return "\n".join([line(head), line("---" for _ in head), *map(line, rows)])


def _cells(each: bench.Report, row: str) -> Iterator[tuple[str, ...]]:
    percent = each.table.percent
    for group in each.table.groups:
        for column in group.columns:
            entry = each.entries[group.name, column.name, row]
            for metric, measured in zip(group.metrics, entry.measured, strict=True):
                if measured.values:
                    of = "" if metric == "accuracy" else f", {metric.replace('_', ' ')}"
                    words = (f"`{each.table.name}`", f"{group.name}, {column.name}{of}", row,
                             render.ours(measured, entry, percent),
                             f"{render.paper(measured, percent)} "
                             f"{render.difference(measured, entry, percent)}")  # fmt: skip
                    yield tuple(word.replace("|", "\\|") for word in words)
