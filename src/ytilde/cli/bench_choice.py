"""What the options of `ytilde bench` stand for: tables, cells, folders, grids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench import tables
from ..bench.results import Line, default_results, load_results
from ..bench.run import RunPaths
from ..bench.tables import Cell
from ..engine import choose_device
from ..errors import BadInput, unknown_name_message
from .console import say

if TYPE_CHECKING:
    from .bench import RunOptions


def table_names(table: str | None, every: bool) -> list[str]:
    if every == (table is not None):
        raise BadInput("name one table (see `ytilde bench list`) or use --all")
    return tables.list_tables() if table is None else [tables.load_table(table).name]


def cells_of(names: Sequence[str], options: RunOptions) -> dict[str, list[Cell]]:
    """The cells asked for, by table; a name is unknown only where no table has it."""
    all_cells = [cell for name in names for cell in tables.cells(tables.load_table(name))]
    found: dict[str, list[Cell]] = {}
    for cell in tables.choose(all_cells, options.only or (), options.columns or ()):
        found.setdefault(cell.table, []).append(cell)
    return found


def chosen_cells(table: str | None, every: bool, options: RunOptions) -> dict[str, list[Cell]]:
    found = cells_of(table_names(table, every), options)
    if not found:
        raise BadInput("no table has both such a row and such a column")
    return found


def check_scale(scale: str) -> None:
    if scale not in tables.SCALES:
        raise BadInput(unknown_name_message("scale", scale, tables.SCALES))


def run_paths(options: RunOptions, ray: bool = False) -> RunPaths:
    check_scale(options.scale)
    device, results = options.device, options.results or default_results(options.scale)
    # auto fits everywhere; of CUDA the nodes of a cluster decide, not this one
    if device != "auto" and not (ray and device.startswith("cuda")):
        choose_device(device)
    return RunPaths(results, RunPaths.work, options.data_root, device, options.compile)


def result_lines(folder: Path) -> list[Line]:
    """The results in a folder; where there is none the user is told."""
    if not folder.is_dir():
        say(f"no results: there is no folder {folder.absolute()}")
    return load_results(folder, say)


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
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
