"""`ytilde bench`: list, run, tune and report the papers' tables."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table as Grid

from .bench import render
from .bench.figures import NEEDED
from .bench.figures import paths as figure_paths
from .bench.figures import write as write_figures
from .bench.plan import Plan, Wanted, run_plan
from .bench.pool import jobs_of, needed_data, sweep
from .bench.report import report
from .bench.results import Line, best_point, default_results, done, load_results
from .bench.run import RunPaths
from .bench.tables import SCALES, Cell, Job, cells, choose, list_tables, load_table
from .bench.tune import NOTHING_TO_TUNE, search, to_tune
from .data import BadInput, plural, unknown
from .engine import Record, choose_device
from .files import write_text
from .outputs import check_outputs

bench_app = typer.Typer(no_args_is_help=True, help="The papers' tables: run them, compare.")
out = Console(highlight=False)

OneTable = Annotated[str | None, typer.Argument(help="a table; if not given, all are listed")]
TableName = Annotated[str | None, typer.Argument(help="a table of `bench list`; or --all")]
All = Annotated[bool, typer.Option("--all", help="every table")]
Only = Annotated[list[str] | None, typer.Option("--only", help="a row or method; repeatable")]
Columns = Annotated[
    list[str] | None, typer.Option("--columns", help="a column, group, or GROUP/COLUMN; repeatable")
]
Scale = Annotated[
    str, typer.Option(help="tiny: made data, seconds; reduced: fewer epochs; full: the paper's")
]
Workers = Annotated[int, typer.Option(help="runs at once, a process each", min=1)]
Ray = Annotated[bool, typer.Option("--ray", help="put the runs on a Ray cluster")]
Results = Annotated[Path | None, typer.Option(help="folder of the JSON lines")]
DataRoot = Annotated[Path | None, typer.Option(help="where data sets lie; also $YTILDE_DATA")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda")]
Compile = Annotated[bool, typer.Option("--compile", help="fuse the networks by torch.compile")]


def _names(table: str | None, every: bool) -> list[str]:
    if every == (table is not None):
        raise BadInput("name one table (see `ytilde bench list`) or use --all")
    return list_tables() if table is None else [load_table(table).name]


def _cells(
    table: str | None, every: bool, only: list[str] | None, columns: list[str] | None
) -> dict[str, list[Cell]]:
    """The cells asked for, by table; a name is unknown only where no table has it."""
    all_cells = [cell for name in _names(table, every) for cell in cells(load_table(name))]
    found: dict[str, list[Cell]] = {}
    for cell in choose(all_cells, only or (), columns or ()):
        found.setdefault(cell.table, []).append(cell)
    if not found:
        raise BadInput("no table has both such a row and such a column")
    return found


def _check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise BadInput(unknown("scale", scale, SCALES))


def _paths(
    scale: str, results: Path | None, data_root: Path | None, device: str, compile: bool, ray: bool
) -> RunPaths:
    _check_scale(scale)
    # auto fits everywhere; of CUDA the nodes of a cluster decide, not this one
    if device != "auto" and not (ray and device.startswith("cuda")):
        choose_device(device)
    return RunPaths(results or default_results(scale), RunPaths.work, data_root, device, compile)


def _lines(folder: Path) -> list[Line]:
    """The results in a folder; where there is none the user is told."""
    if not folder.is_dir():
        out.print(f"no results: there is no folder {folder.absolute()}", soft_wrap=True)
    return load_results(folder)


@bench_app.command("list")
def list_command(
    table: OneTable = None,
    results: Results = None,
    scale: Scale = "full",
    data_root: DataRoot = None,
) -> None:
    """The tables, or the cells of one: what can be run, what is done, what is missing and why."""
    _check_scale(scale)
    lines = _lines(results or default_results(scale))
    rows: list[tuple[str, ...]] = []
    if table is None:
        for name in list_tables():
            found, entries = cells(load_table(name)), report(name, lines, scale).entries
            ready = sum(cell.reason is None for cell in found)
            with_results = sum(bool(entry.runs) for entry in entries.values())
            title = load_table(name).title
            rows.append((name, title, str(len(found)), str(ready), str(with_results)))
        _print_grid(("table", "title", "cells", "can be run", "with results"), rows, names=1)
        return
    entries = report(table, lines, scale).entries
    for cell in cells(load_table(table)):
        entry = entries[cell.group, cell.column, cell.row]
        state = ", ".join(["done", *([entry.note] if entry.note else [])])
        needed = needed_data(cell, scale, data_root) if cell.reason is None else []
        able = f"needs data: {', '.join(needed)}" if needed else "ready"
        state = state if entry.runs else entry.note or able
        rows.append((cell.row, cell.group, cell.column, cell.method, str(len(entry.runs)), state))
    _print_grid(("row", "group", "column", "method", "runs", "state"), rows, names=4)


def _print_grid(header: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> None:
    """The first `names` columns are there to be copied: no terminal is too narrow for them."""
    grid = Grid()
    for place, head in enumerate(header):
        width = max(cell_len(row[place]) for row in rows) if place < names else None
        grid.add_column(head, min_width=width, no_wrap=place < names, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    least = Measurement.get(out, out.options.update(width=1000), grid).minimum
    Console(highlight=False, width=max(out.width, least)).print(grid)


@bench_app.command("run")
def run_command(
    table: TableName = None,
    every: All = False,
    only: Only = None,
    columns: Columns = None,
    seeds: Annotated[
        int | None, typer.Option(help="default: the paper's at full, else 1", min=1)
    ] = None,
    scale: Scale = "full",
    workers: Workers = 1,
    ray: Ray = False,
    tuned: Annotated[bool, typer.Option("--tuned", help="with the fields `tune` found")] = False,
    results: Results = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    compile: Compile = False,
) -> None:
    """Run what is missing of a table and append one JSON line a run; stop and repeat at will."""
    paths = _paths(scale, results, data_root, device, compile, ray)
    known, jobs = list(done(paths.results).values()), dict[str, list[Job]]()
    for name, found in _cells(table, every, only, columns).items():
        for reason, count in Counter(c.reason for c in found if c.reason).items():
            out.print(f"{name}: {count} cells cannot be run: {reason}")
        if tuned:
            _tell_untuned(name, found, scale, known)
        jobs[name] = jobs_of(load_table(name), found, seeds, scale, known, tuned)
    # one sweep of all tables: workers start once, and none waits for the last run of a table
    with Progress(table or "all tables") as progress:
        all_jobs = [job for of_table in jobs.values() for job in of_table]
        lines = sweep(all_jobs, workers=workers, ray=ray, paths=paths, say=progress.say)
    status = {line["hash"]: line for line in lines}
    bad = 0
    for name, of_table in jobs.items():
        failed = [job for job in of_table if status[job.hash]["status"] == "failed"]
        bad += len(failed)
        for job in failed:
            out.print(f"failed: {job}: {status[job.hash]['error']}")
        out.print(f"{name}: {len(of_table) - len(failed)} runs done, in {paths.results}")
    if bad:
        raise typer.Exit(1)


def _tell_untuned(name: str, found: Sequence[Cell], scale: str, known: list[Line]) -> None:
    """`--tuned` changes nothing where no point of a grid was tried."""
    ready = [cell for cell in found if cell.reason is None]
    rows = Counter(c.row for c in ready if best_point(load_table(name), c, scale, known) is None)
    if rows:
        told = ", ".join(f"{row} ({plural(count, 'cell')})" for row, count in rows.items())
        out.print(f"{name}: not tuned, run with the table's own fields: {told}", soft_wrap=True)


@bench_app.command("plan")
def plan_command(
    tables: Annotated[
        list[str] | None, typer.Argument(help="tables of `bench list`; if none is given, all")
    ] = None,
    minutes: Annotated[float, typer.Option(help="time there is")] = 25.0,
    run: Annotated[
        bool, typer.Option("--run", help="run the plan instead of only printing it")
    ] = False,
    only: Only = None,
    columns: Columns = None,
    seeds: Annotated[
        int | None, typer.Option(help="of a cell; default: the paper's at full, else 1", min=1)
    ] = None,
    scale: Scale = "full",
    workers: Workers = 1,
    results: Results = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    compile: Compile = False,
) -> None:
    """Choose what to run next: by value (headline cells, first seeds) over expected seconds.

    With --run nothing is started that would not be finished in time; what is interrupted goes on
    from its checkpoint when the same command is given again.
    """
    paths = _paths(scale, results, data_root, device, compile, ray=False)
    if not 0 < minutes < math.inf:
        raise BadInput(f"--minutes must be a positive number, not {minutes:g}")
    names = [load_table(name).name for name in tables or list_tables()]
    chosen = choose(
        [c for name in names for c in cells(load_table(name))], only or (), columns or ()
    )
    plan = Plan(((load_table(c.table), c) for c in chosen), paths, scale=scale, seeds=seeds)
    _print_plan(plan, 60 * minutes, workers)
    if not run or not plan.jobs:
        return
    with Progress("plan") as progress:
        outcome = run_plan(plan, 60 * minutes, workers, progress.say)
    failed = [line for line in outcome.lines if line["status"] == "failed"]
    for line in failed:
        out.print(f"failed: {line['table']}: {line['row']}, {line['column']}: {line['error']}")
    for job in outcome.interrupted:
        out.print(f"interrupted: {job}; the same command goes on with it", soft_wrap=True)
    count = plural(len(outcome.lines) - len(failed), "run")
    left = plural(len(plan.jobs) + len(outcome.interrupted), "run")
    out.print(f"{count} done, in {paths.results}; {left} to do", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _print_plan(plan: Plan, seconds: float, workers: int) -> None:
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
        _print_grid(("table", "cell", "seeds", "value", "s", "known from"), rows, names=6)
    total = sum(each.left for each in planned)
    told = f"{plural(len(planned), 'run')} of {plural(len(rows), 'cell')}, {total:.0f} s of work"
    told += f" for {plural(workers, 'worker')} in {seconds / 60:g} minutes"
    more = plural(len(plan.jobs) - len(planned), "more run")
    out.print(f"{told}; {more} to do", soft_wrap=True)
    if not planned and plan.jobs:
        best = min(plan.order(), key=lambda each: each.at_most)
        out.print(f"nothing fits: {best.job} may take {best.at_most:.0f} s", soft_wrap=True)
    if plan.failed:
        runs = plural(len(plan.failed), "run")
        out.print(f"left out: {runs} that failed before; `ytilde bench run` tries them again")
    for name, cells_without in plan.lacking.items():
        out.print(f"left out: {plural(cells_without, 'cell')} without data: {name}")


@bench_app.command("tune")
def tune_command(
    table: TableName = None,
    every: All = False,
    only: Only = None,
    columns: Columns = None,
    scale: Scale = "full",
    workers: Workers = 1,
    ray: Ray = False,
    trials: Annotated[
        int | None, typer.Option(help="so many points by Optuna; default: the whole grid", min=1)
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="FIELD=VALUE,VALUE: only these of the grid; repeatable")
    ] = None,
    results: Results = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    compile: Compile = False,
) -> None:
    """Choose fields from the papers' grids by noisy validation, one seed; then `run --tuned`."""
    paths = _paths(scale, results, data_root, device, compile, ray)
    chosen, narrow = _cells(table, every, only, columns), _grid(grid or [])
    asked = {name: to_tune(found, narrow) for name, found in chosen.items()}
    if not any(asked.values()):
        raise BadInput(NOTHING_TO_TUNE)
    for name, of_table in asked.items():
        if not of_table:  # one of several tables
            continue
        with Progress(name) as progress:
            options = {"workers": workers, "ray": ray, "paths": paths, "say": progress.say}
            best = search(load_table(name), of_table, scale, trials, options)
        for key, fields in best.items():
            out.print(f"{name}: {key}: {json.dumps(fields)}")
        for cell in of_table:
            if cell.key not in best:
                out.print(f"{name}: {cell.key}: no run has a figure of noisy validation")


def _grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    found = {}
    for text in texts:
        name, is_one, values = text.partition("=")
        if not (name and is_one and values):
            raise BadInput(f"--grid {text!r}: write it as FIELD=VALUE,VALUE")
        found[name] = [_value(value) for value in values.split(",")]
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@bench_app.command("report")
def report_command(
    table: TableName = None,
    every: All = False,
    scale: Annotated[str | None, typer.Option(help="default: full, or else reduced")] = None,
    results: Results = None,
    markdown: Annotated[Path | None, typer.Option(help="file to write")] = None,
    html: Annotated[Path | None, typer.Option(help="file to write")] = None,
    latex: Annotated[Path | None, typer.Option(help="file to write")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="folder for pictures of ranks and of tuned numbers")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace existing files")] = False,
) -> None:
    """Ours beside the paper's, every cell shown; on the screen, or as Markdown, HTML or LaTeX."""
    if scale is not None:
        _check_scale(scale)
    folder = results or default_results(scale or "full")
    lines = _lines(folder)
    reports = [report(name, lines, scale) for name in _names(table, every)]
    words = ["python", "-m", "ytilde", "bench", "report", table or "--all"]
    words += ["--scale", scale] if scale else []
    words += ["--results", str(results)] if results else []
    command = shlex.join([*words, "--markdown", str(markdown)])
    pages = {"markdown": markdown, "html": html, "latex": latex}
    outputs = [(path, f"bench {kind}") for kind, path in pages.items() if path is not None]
    if figures is not None:
        drawings = [path for each in reports for path in figure_paths(each, figures)]
        outputs += [(path, "bench figure") for path in drawings]
    check_outputs(outputs, folder.glob("*.jsonl"), force)
    written = False
    for path, show_as in (
        (markdown, partial(render.markdown, command=command, results=folder)),
        (html, render.html),
        (latex, render.latex),
    ):
        if path is not None:
            write_text(path, show_as(reports))
            out.print(f"written: {path}")
            written = True
    if figures is not None:
        drawn = [path for each in reports for path in write_figures(each, figures, force)]
        for path in drawn:
            out.print(f"written: {path}", soft_wrap=True)
        if not drawn:
            out.print(f"nothing to draw: {NEEDED}")
    elif not written:
        for each in reports:
            render.show(each, out)


class Progress:
    """What runs now and how far it is: a live table, or a line a run where nobody watches."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, Counter[str]()
        self.running: dict[str, tuple[Job, Record]] = {}
        self.live = Live(console=out, refresh_per_second=2, transient=True)

    def say(self, kind: str, job: Job, value: Any) -> None:
        if kind == "epoch":
            self.running[job.hash] = (job, value)
        else:
            self.running.pop(job.hash, None)
            self.count[value["status"]] += 1
            if not out.is_terminal:
                out.print(f"{job}: {value['status']}")
        self.live.update(self.table())

    def table(self) -> Grid:
        title = f"{self.name}: {self.count['done']} done, {self.count['failed']} failed"
        grid = Grid("run", "stage", "epoch", "loss", "noisy val", title=title)
        for job, record in self.running.values():
            figures = (record.get("loss", math.nan), record.get("val_accuracy", math.nan))
            epoch = f"{record['epoch']}/{record['epochs']}"
            grid.add_row(str(job), record["stage"], epoch, *(f"{f:.3f}" for f in figures))
        return grid

    def __enter__(self) -> Progress:
        if out.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if out.is_terminal:
            self.live.stop()
