"""`ytilde bench`: list, run, plan, tune and report the papers' tables."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadInput, plural
from .console import rich_console, say
from .flags import docstring
from .options import unfold_options

if TYPE_CHECKING:
    from ..bench.tables import Job

bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run the papers' tables, and compare.",
)

OneTable = Annotated[str | None, typer.Argument(help="a table; without one, all are listed")]
TableName = Annotated[str | None, typer.Argument(help="a table of `bench list`; or --all")]
All = Annotated[bool, typer.Option("--all", help="every table")]
Only = Annotated[list[str] | None, typer.Option("--only", help="a row or method; repeatable")]
Columns = Annotated[
    list[str] | None, typer.Option("--columns", help="a column, group, or GROUP/COLUMN; repeatable")
]
Seeds = Annotated[
    int | None,
    typer.Option(help="seeds per cell; default: as many as the paper at full scale, else 1", min=1),
]
Scale = Annotated[
    str,
    typer.Option(help="tiny: synthetic data, seconds; reduced: fewer epochs; full: as the paper"),
]
Workers = Annotated[int, typer.Option(help="runs at once, each in its own process", min=1)]
Ray = Annotated[bool, typer.Option("--ray", help="put the runs on a Ray cluster")]
Results = Annotated[Path | None, typer.Option(help="folder of the JSON lines")]
DataRoot = Annotated[
    Path | None, typer.Option(help="folder of the named sets; default: $YTILDE_DATA or ./data")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda")]
Compile = Annotated[bool, typer.Option("--compile", help="fuse the networks with torch.compile")]
WriteFile = Annotated[Path | None, typer.Option(help="file to write")]


@dataclass(frozen=True)
class RunOptions:
    """Which cells to run, on how much data, and where: the options of `run`, `plan` and `tune`."""

    only: Only = None
    columns: Columns = None
    scale: Scale = "full"
    workers: Workers = 1
    results: Results = None
    data_root: DataRoot = None
    device: Device = "auto"
    compile: Compile = False


def list_cells(
    table: OneTable = None,
    results: Results = None,
    scale: Scale = "full",
    data_root: DataRoot = None,
) -> None:
    """List the tables, or the cells of one.

    What can be run, what is done, what is missing and why.
    """
    from ..bench import tables
    from ..bench.pool import needed_data
    from ..bench.report import report
    from ..bench.results import default_results
    from .bench_choice import check_scale, result_lines
    from .bench_view import show_grid

    check_scale(scale)
    lines = result_lines(results or default_results(scale))
    rows: list[tuple[str, ...]] = []
    if table is None:
        for name in tables.list_tables():
            each = tables.load_table(name)
            found, entries = tables.cells(each), report(name, lines, scale).entries
            ready = sum(cell.reason is None for cell in found)
            with_results = sum(bool(entry.runs) for entry in entries.values())
            rows.append((name, each.title, str(len(found)), str(ready), str(with_results)))
        show_grid(("table", "title", "cells", "can be run", "with results"), rows, names=1)
        return
    entries = report(table, lines, scale).entries
    for cell in tables.cells(tables.load_table(table)):
        entry = entries[cell.group, cell.column, cell.row]
        state = ", ".join(["done", *([entry.note] if entry.note else [])])
        needed = needed_data(cell, scale, data_root) if cell.reason is None else []
        able = f"needs data: {', '.join(needed)}" if needed else "ready"
        state = state if entry.runs else entry.note or able
        rows.append((cell.row, cell.group, cell.column, cell.method, str(len(entry.runs)), state))
    show_grid(("row", "group", "column", "method", "runs", "state"), rows, names=4)


@unfold_options
def run_table(
    options: RunOptions,
    table: TableName = None,
    every: All = False,
    seeds: Seeds = None,
    ray: Ray = False,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="with the fields that `bench tune` found")
    ] = False,
) -> None:
    """Run what is missing of a table.

    Every run appends one JSON line; stop and repeat the command at will.
    """
    from ..bench import pool, tables
    from ..bench.results import done
    from .bench_choice import chosen_cells, run_paths
    from .bench_view import Progress, say_untuned

    paths = run_paths(options, ray)
    known = list(done(paths.results).values())
    jobs: dict[str, list[Job]] = {}
    for name, found in chosen_cells(table, every, options).items():
        for reason, count in Counter(c.reason for c in found if c.reason).items():
            say(f"{name}: {plural(count, 'cell')} cannot be run: {reason}")
        if tuned:
            say_untuned(name, found, options.scale, known)
        jobs[name] = pool.jobs_of(
            tables.load_table(name), found, seeds, options.scale, known, tuned
        )
    # one sweep of all tables: workers start once, and none waits for the last run of a table
    with Progress(table or "all tables") as progress:
        all_jobs = [job for of_table in jobs.values() for job in of_table]
        lines = pool.sweep(
            all_jobs, workers=options.workers, ray=ray, paths=paths, say=progress.say
        )
    status = {line["hash"]: line for line in lines}
    bad = 0
    for name, of_table in jobs.items():
        failed = [job for job in of_table if status[job.hash]["status"] == "failed"]
        bad += len(failed)
        for job in failed:
            say(f"failed: {job}: {status[job.hash]['error']}")
        say(f"{name}: {len(of_table) - len(failed)} runs done, in {paths.results}")
    if bad:
        raise typer.Exit(1)


@unfold_options
def plan_runs(
    options: RunOptions,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLES]...", help="tables of `bench list`; default: all"),
    ] = None,
    minutes: Annotated[float, typer.Option(help="time available")] = 25.0,
    run: Annotated[
        bool, typer.Option("--run", help="run the plan instead of only showing it")
    ] = False,
    seeds: Seeds = None,
    breadth: Annotated[
        bool,
        typer.Option("--breadth", help="one seed of every cell before the next seed of any"),
    ] = False,
) -> None:
    """Choose what to run next in the time available.

    By value (headline cells, first seeds) over expected seconds. With --run nothing is started that
    would not be finished in time; what is interrupted continues from its checkpoint when the same
    command is given again.
    """
    from ..bench import tables
    from ..bench.plan import Plan, run_plan
    from .bench_choice import cells_of, run_paths
    from .bench_view import Progress, show_plan

    paths = run_paths(options)
    if not 0 < minutes < math.inf:
        raise BadInput(f"--minutes must be a positive number, not {minutes:g}")
    chosen = cells_of(
        [tables.load_table(name).name for name in names or tables.list_tables()], options
    )
    pairs = ((tables.load_table(name), cell) for name, found in chosen.items() for cell in found)
    plan = Plan(pairs, paths, scale=options.scale, seeds=seeds, breadth=breadth)
    show_plan(plan, 60 * minutes, options.workers)
    if not run or not plan.jobs:
        return
    with Progress("plan") as progress:
        outcome = run_plan(plan, 60 * minutes, options.workers, progress.say)
    failed = [line for line in outcome.lines if line["status"] == "failed"]
    for line in failed:
        say(f"failed: {line['table']}: {line['row']}, {line['column']}: {line['error']}")
    for job in outcome.interrupted:
        say(f"interrupted: {job}; the same command continues it")
    count = plural(len(outcome.lines) - len(failed), "run")
    left = plural(len(plan.jobs) + len(outcome.interrupted), "run")
    say(f"{count} done, in {paths.results}; {left} to do")
    if failed:
        raise typer.Exit(1)


@unfold_options
def tune_table(
    options: RunOptions,
    table: TableName = None,
    every: All = False,
    ray: Ray = False,
    trials: Annotated[
        int | None,
        typer.Option(help="try this many points, chosen by Optuna; default: the grid", min=1),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="FIELD=VALUE,VALUE: only these points of the grid; repeatable"),
    ] = None,
) -> None:
    """Choose fields from the papers' grids by noisy validation.

    With one seed; `ytilde bench run --tuned` then runs them with all.
    """
    from ..bench import tables
    from ..bench.tune import NOTHING_TO_TUNE, search, to_tune
    from .bench_choice import chosen_cells, parse_grid, run_paths
    from .bench_view import Progress

    paths = run_paths(options, ray)
    chosen, narrow = chosen_cells(table, every, options), parse_grid(grid or [])
    asked = {name: to_tune(found, narrow) for name, found in chosen.items()}
    if not any(asked.values()):
        raise BadInput(NOTHING_TO_TUNE)
    for name, of_table in asked.items():
        if not of_table:  # one of several tables
            continue
        with Progress(name) as progress:
            how = {"workers": options.workers, "ray": ray, "paths": paths, "say": progress.say}
            best = search(tables.load_table(name), of_table, options.scale, trials, how)
        for key, fields in best.items():
            say(f"{name}: {key}: {json.dumps(fields)}")
        for cell in of_table:
            if cell.key not in best:
                say(f"{name}: {cell.key}: no run has a noisy validation accuracy")


def report_tables(
    table: TableName = None,
    every: All = False,
    scale: Annotated[
        str | None, typer.Option(help="default: full, or reduced where there is no full one")
    ] = None,
    results: Results = None,
    markdown: WriteFile = None,
    html: WriteFile = None,
    latex: WriteFile = None,
    figures: Annotated[
        Path | None, typer.Option(help="folder to write figures of ranks and of tuned fields to")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace existing files")] = False,
) -> None:
    """Show our figures beside the papers'.

    Every cell, on the screen or as Markdown, HTML or LaTeX.
    """
    from ..bench import figures as drawing
    from ..bench import render
    from ..bench.report import report
    from ..bench.results import default_results
    from ..files import write_text
    from ..outputs import check_outputs
    from .bench_choice import check_scale, result_lines, table_names

    if scale is not None:
        check_scale(scale)
    folder = results or default_results(scale or "full")
    lines = result_lines(folder)
    reports = [report(name, lines, scale) for name in table_names(table, every)]
    words = ["python", "-m", "ytilde", "bench", "report", table or "--all"]
    words += ["--scale", scale] if scale else []
    words += ["--results", str(results)] if results else []
    command = shlex.join([*words, "--markdown", str(markdown)])
    pages = {"markdown": markdown, "html": html, "latex": latex}
    outputs = [(path, f"bench {kind}") for kind, path in pages.items() if path is not None]
    if figures is not None:
        drawings = [path for each in reports for path in drawing.paths(each, figures)]
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
            say(f"written: {path}")
            written = True
    if figures is not None:
        drawn = [path for each in reports for path in drawing.write(each, figures, force)]
        for path in drawn:
            say(f"written: {path}")
        if not drawn:
            say(f"nothing to draw: {drawing.NEEDED}")
    elif not written:
        for each in reports:
            render.show(each, rich_console(markup=True, soft_wrap=False))


COMMANDS: dict[str, Any] = {
    "list": list_cells,
    "run": run_table,
    "plan": plan_runs,
    "tune": tune_table,
    "report": report_tables,
}
for name, command in COMMANDS.items():
    bench_app.command(name, help=docstring(command))(command)
