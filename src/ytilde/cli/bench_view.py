"""What `ytilde bench` shows: tables that are never cut, the plan, how far the runs are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table

from ..bench import results, tables
from ..bench.plan import Plan, Wanted
from ..bench.results import Line
from ..bench.tables import Cell, Job
from ..engine import Record
from ..errors import plural
from .console import plain, rich_console, say


def show_grid(header: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> None:
    """The first `names` columns are there to be copied: no terminal is too narrow for them."""
    grid = Table()
    for place, head in enumerate(header):
        width = max(cell_len(row[place]) for row in rows) if place < names else None
        grid.add_column(head, min_width=width, no_wrap=place < names, overflow="fold")
    for row in rows:
        grid.add_row(*map(plain, row))
    out = rich_console(soft_wrap=False)
    least = Measurement.get(out, out.options.update(width=1000), grid).minimum
    rich_console(soft_wrap=False, width=max(out.width, least)).print(grid)


def say_untuned(name: str, found: Sequence[Cell], scale: str, known: list[Line]) -> None:
    """`--tuned` changes nothing where no point of a grid was tried."""
    ready = [cell for cell in found if cell.reason is None]
    table = tables.load_table(name)
    rows = Counter(c.row for c in ready if results.best_point(table, c, scale, known) is None)
    if rows:
        shown = ", ".join(f"{row} ({plural(count, 'cell')})" for row, count in rows.items())
        say(f"{name}: not tuned, run with the table's own fields: {shown}")


def show_plan(plan: Plan, seconds: float, workers: int) -> None:
    """A line a cell, in the order of their first run; then what is left out, and why."""
    planned = plan.schedule(seconds, workers)
    by_cell: dict[tuple[str, str], list[Wanted]] = {}
    for each in planned:
        by_cell.setdefault((each.job.cell.table, each.job.cell.key), []).append(each)
    rows = [
        (
            *cell,
            ", ".join(str(each.job.seed) for each in runs),
            f"{runs[0].value:.3g}",
            f"{sum(each.left for each in runs):.0f}",
            runs[0].expected.basis,
        )
        for cell, runs in by_cell.items()
    ]
    if rows:
        show_grid(("table", "cell", "seeds", "value", "s", "known from"), rows, names=6)
    total = sum(each.left for each in planned)
    text = f"{plural(len(planned), 'run')} of {plural(len(rows), 'cell')}, {total:.0f} s of work"
    text += f" for {plural(workers, 'worker')} in {seconds / 60:g} minutes"
    more = plural(len(plan.jobs) - len(planned), "more run")
    say(f"{text}; {more} to do")
    if not planned and plan.jobs:
        best = min(plan.order(), key=lambda each: each.at_most)
        say(f"nothing fits: {best.job} may take {best.at_most:.0f} s")
    if plan.failed:
        runs = plural(len(plan.failed), "run")
        say(f"left out: {runs} that failed before; `ytilde bench run` tries them again")
    for name, cells_without in plan.lacking.items():
        say(f"left out: {plural(cells_without, 'cell')} without data: {name}")


class Progress:
    """What runs now and how far it is: a live table, or a line a run where nobody watches."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, Counter[str]()
        self.running: dict[str, tuple[Job, Record]] = {}
        self.out = rich_console(soft_wrap=False)
        self.live = Live(console=self.out, refresh_per_second=2, transient=True)

    def say(self, kind: str, job: Job, value: Any) -> None:
        if kind == "epoch":
            self.running[job.hash] = (job, value)
        else:
            self.running.pop(job.hash, None)
            self.count[value["status"]] += 1
            if not self.out.is_terminal:
                say(f"{job}: {value['status']}")
        self.live.update(self.table())

    def table(self) -> Table:
        title = f"{self.name}: {self.count['done']} done, {self.count['failed']} failed"
        grid = Table("run", "stage", "epoch", "loss", "noisy val", title=title)
        for job, record in self.running.values():
            figures = (record.get("loss", math.nan), record.get("val_accuracy", math.nan))
            epoch = f"{record['epoch']}/{record['epochs']}"
            grid.add_row(str(job), record["stage"], epoch, *(f"{f:.3f}" for f in figures))
        return grid

    def __enter__(self) -> Progress:
        if self.out.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.out.is_terminal:
            self.live.stop()
