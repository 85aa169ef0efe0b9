"""The benchmark: runs the cells of the papers' tables, keeps what came out, reports it.

`tables` (what the papers print) -> `run` (one run) -> `pool` (many) -> `results` (a line each) ->
`report`, `render`, `figures`. `tune` searches the papers' grids; `plan` chooses what to run next.
"""

from __future__ import annotations

from typing import Any

from ..engine.protocols import PROTOCOLS, protocols
from ..versions import commit, versions
from .pool import run, sweep
from .report import report
from .results import load_results
from .run import RunPaths, measure, prepare, run_cell, transition_errors
from .stand_ins import load_set
from .tables import Cell, Job, Table, cells, choose, list_tables, load_table
from .tune import tune

__all__ = [
    "PROTOCOLS",
    "Cell",
    "Job",
    "RunPaths",
    "Table",
    "cells",
    "choose",
    "commit",
    "list_tables",
    "load_results",
    "load_set",
    "load_table",
    "measure",
    "prepare",
    "protocols",
    "report",
    "run",
    "run_cell",
    "sweep",
    "transition_errors",
    "tune",
    "versions",
]


def __getattr__(name: str) -> Any:
    if name == "Place":
        import warnings

        warnings.warn("bench.Place is bench.RunPaths now", DeprecationWarning, stacklevel=2)
        return RunPaths
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
