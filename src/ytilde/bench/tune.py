"""`bench tune`: the papers' grids, searched by noisy validation with ordinary runs of seed 0.

How to search is `ytilde.tuning`'s; here its candidates become runs, and its scores their lines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..data import BadInput
from ..tuning import Candidate, propose
from .pool import sweep
from .results import best_point, default_results, done, validation
from .run import RunPaths, Say
from .tables import Cell, Job, Table, as_table, cells, choose, digest

NOTHING_TO_TUNE = "there is nothing to tune: no cell asked for can be run and has a grid to search"


def tune(
    table: str | Table,
    *,
    only: Sequence[str] = (),
    columns: Sequence[str] = (),
    scale: str = "full",
    workers: int = 1,
    ray: bool = False,
    trials: int | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    paths: RunPaths | None = None,
    say: Say = lambda kind, job, value: None,
) -> dict[str, dict[str, Any]]:
    """Search the papers' grids by noisy validation, one seed; the best fields of each cell.

    grid: only these values of these fields. trials: so many points, proposed by Optuna, instead of
    all. The runs are ordinary ones of seed 0: `run --tuned` reads the winner off them and adds the
    other seeds.
    """
    paths = paths or RunPaths(default_results(scale))
    table = as_table(table)
    asked = to_tune(choose(cells(table), only, columns), grid or {})
    if not asked:
        raise BadInput(NOTHING_TO_TUNE)
    options: dict[str, Any] = {"workers": workers, "ray": ray, "paths": paths, "say": say}
    return search(table, asked, scale, trials, options)


def to_tune(found: Sequence[Cell], grid: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Those of the cells that can be run and have a grid, with only these values of it."""
    return [narrowed(cell, grid) for cell in found if cell.reason is None and cell.grid]


def search(
    table: Table, asked: Sequence[Cell], scale: str, trials: int | None, options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run points of the grids of these cells; the best fields of each, of its own grid alone."""
    if trials is None:
        sweep([Job(point, scale, 0) for cell in asked for point in cell.points()], **options)
    else:
        for cell in asked:
            _search(table, cell, scale, trials, options)
    lines = list(done(options["paths"].results).values())
    best = {cell.key: best_point(table, cell, scale, lines) for cell in asked}
    return {key: cell.fields for key, cell in best.items() if cell is not None}


def narrowed(cell: Cell, grid: Mapping[str, Sequence[Any]]) -> Cell:
    """The cell with only these values of its grid."""
    for name, values in grid.items():
        known = cell.grid.get(name, [])
        for value in values:
            if value not in known:
                raise BadInput(f"the grid of {cell.key} has no {name} = {value}; it is {cell.grid}")
    # the grid's own values: 2 and 2.0 are equal, but not in a hash
    kept = {name: [v for v in cell.grid[name] if v in values] for name, values in grid.items()}
    return dataclasses.replace(cell, grid=cell.grid | kept)


def _search(table: Table, cell: Cell, scale: str, trials: int, options: dict[str, Any]) -> None:
    """Optuna's proposals from the grid, several at a time; its journal lies in the work folder."""
    paths = options["paths"]

    def run_of(candidate: Candidate) -> Job:
        return Job(cell.with_fields(candidate), scale, 0)

    def score(points: list[Candidate]) -> list[float | None]:
        lines = {line["hash"]: line for line in sweep(list(map(run_of, points)), **options)}
        return [validation(table, cell, lines.get(run_of(point).hash)) for point in points]

    # a study is of one grid, and tells nothing of runs that lie elsewhere
    runs = [Job(point, scale, 0).hash for point in cell.points()]
    of = digest({"results": str(paths.results.resolve()), "runs": runs})
    known = done(paths.results)  # a study may outlive its runs
    propose(
        cell.grid,
        score,
        trials,
        journal=paths.work / "optuna.journal",
        study=f"{scale}/{cell.table}/{cell.key}/{of}",
        at_once=options["workers"],
        known=lambda candidate: run_of(candidate).hash in known,
    )
