"""The papers' tables: `tables/*.toml` -> Table -> Cell, and what a run of a cell is made of.

A table has groups of columns (a data set each), rows (a method each) and, for every cell, what the
paper printed. A cell that nothing here can serve stays in the table, with the reason.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .. import datasets, noise
from ..backbones import list_backbones, without_weights
from ..data import BadInput, unknown
from ..engine import Recipe
from ..engine.protocols import PROTOCOLS
from ..hashing import digest_of
from ..method import list_methods, lookup
from ..tuning import candidates

FOLDER = Path(__file__).parents[1] / "tables"
SCALES = ("tiny", "reduced", "full")
# Metric of a table: (its key in a run's record, sign, is it a share?). "NAME@SET": on that set.
METRICS = {
    "accuracy": ("test_accuracy", 1, True),
    "ll": ("test_nll", -1, False),
    "noisy_accuracy": ("noisy_test_accuracy", 1, True),
    "noisy_ll": ("noisy_test_nll", -1, False),
    "miou": ("test_miou", 1, True),
}


@dataclass(frozen=True)
class PaperValue:
    """What a paper prints in a cell, in its own unit; sd is None where it prints none."""

    mean: float
    sd: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:g}" if self.sd is None else f"{self.mean:g} ± {self.sd:g}"


UNPUBLISHED = PaperValue(math.nan)  # in a table of our own


@dataclass(frozen=True)
class Column:
    name: str
    data: str
    noise: str | None = None
    unserved: str | None = None  # why nobody can measure this column here


@dataclass(frozen=True)
class Group:
    """Columns over one data set: one block of the printed table."""

    name: str
    backbone: str
    columns: tuple[Column, ...]
    metrics: tuple[str, ...]
    recipe: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None  # use only the first rows of the training set
    tests: tuple[str, ...] = ()  # test sets; none: the test split of the data
    reduced_epochs: int | None = None
    protocol: str | None = None  # what it reports, of PROTOCOLS; None: as its table


@dataclass(frozen=True)
class Row:
    name: str
    method: str
    # group -> a cell a column: "mean ± sd", several metrics: "m, m", nothing published: "–"
    paper: dict[str, list[str]]
    fields: dict[str, Any] = field(default_factory=dict)
    per_column: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # group -> field
    grid: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # group -> field -> values
    recipe: dict[str, Any] = field(default_factory=dict)
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)  # group -> what differs there
    backbone: str | None = None
    tiny: dict[str, Any] = field(default_factory=dict)  # fields at the tiny scale


@dataclass(frozen=True)
class Table:
    """One published table."""

    name: str
    title: str
    source: str
    protocol: str  # what the paper reports, of PROTOCOLS
    seeds: int
    reduced_epochs: int
    recipe: dict[str, Any]
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    percent: bool = True  # the paper prints shares as percentages
    select: str = "val_accuracy"  # what `tune` goes by: val_accuracy or val_nll
    test: str = "welch"  # paired: the paper pairs its runs by seed
    tolerance: float = 1.0  # in the paper's unit: a difference that is not worth a word
    notes: tuple[str, ...] = ()
    headline: dict[str, list[str]] = field(default_factory=dict)  # rows and columns to run first

    @property
    def by(self) -> str:
        """What `tune` goes by: accuracy or nll."""
        return self.select.removeprefix("val_")


@dataclass(frozen=True)
class Cell:
    """A row in a column: one experiment, to be repeated with seeds."""

    table: str
    row: str
    group: str
    column: str
    method: str
    fields: dict[str, Any]
    backbone: str
    recipe: dict[str, Any]
    data: str
    tests: tuple[str, ...]
    noise: str | None
    rows: int | None
    protocol: str  # which epoch it reports
    metrics: tuple[str, ...]
    paper: tuple[PaperValue, ...]  # one a metric
    grid: dict[str, list[Any]]
    reduced_epochs: int
    tiny: dict[str, Any]
    reason: str | None  # why it cannot be run; None: it can

    @property
    def key(self) -> str:
        return f"{self.row} | {self.group} | {self.column}"

    @property
    def row_names(self) -> set[str]:
        return {self.row, self.method}

    @property
    def column_names(self) -> set[str]:
        return {self.column, self.group, f"{self.group}/{self.column}"}

    def points(self) -> list[Cell]:
        """The cell with every combination of its grid's values; itself where it has no grid."""
        return [self.with_fields(point) for point in candidates(self.grid)]

    def with_fields(self, fields: dict[str, Any]) -> Cell:
        return dataclasses.replace(self, fields=self.fields | fields)


# ---- reading ------------------------------------------------------------------------------------


def list_tables() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def load_table(name: str) -> Table:
    if name not in list_tables():
        raise BadInput(unknown("table", name, list_tables()))
    return read_table(FOLDER / f"{name}.toml")


def as_table(table: str | Table) -> Table:
    """A table, or the one of this name."""
    return load_table(table) if isinstance(table, str) else table


def read_table(path: Path) -> Table:
    """A table from its file; what does not fit together is refused in one sentence."""
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as TOML: {error}") from error
    metrics = raw.pop("metrics", ["accuracy"])
    try:
        groups = tuple(_group(each, metrics) for each in raw.pop("groups", []))
        rows = tuple(Row(**each) for each in raw.pop("rows", []))
        raw["notes"] = tuple(raw.get("notes", ()))
        table = Table(path.stem, groups=groups, rows=rows, **raw)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise BadInput(f"{path} does not describe a table: {error}") from None
    _validate(table, path)
    return table


def _strange(item: Any) -> str | None:
    """The first field of a dataclass whose value is not of its declared type."""
    hints = get_type_hints(type(item))
    return next((name for name in hints if not is_of(getattr(item, name), hints[name])), None)


def is_of(value: Any, hint: Any) -> bool:
    """Is the value, as TOML or JSON gives it, of this type?"""
    inner = get_args(hint)
    if hint is Any:
        return isinstance(value, str | int | float | list | dict)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(is_of(v, inner[1]) for v in value.values())
    if get_origin(hint) in (list, tuple):
        return isinstance(value, list | tuple) and all(is_of(v, inner[0]) for v in value)
    if get_origin(hint) is Literal:
        return isinstance(value, str)  # which words, Recipe checks
    if inner:
        return any(is_of(value, each) for each in inner)
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else hint)


def _group(raw: dict[str, Any], metrics: list[str]) -> Group:
    data = raw.pop("data")
    columns = tuple(Column(**({"data": data} | each)) for each in raw.pop("columns"))
    tests, own = tuple(raw.pop("tests", ())), tuple(raw.pop("metrics", metrics))
    return Group(columns=columns, metrics=own, tests=tests, **raw)


def _validate(table: Table, path: Path) -> None:
    def need(condition: bool, what: str) -> None:
        if not condition:
            raise BadInput(f"{path}: {what}")

    columns = [column for group in table.groups for column in group.columns]
    for item in (*table.rows, *columns, *table.groups, table):
        name = _strange(item)
        what = f"{name!r} of {type(item).__name__.lower()} {item.name!r}"  # type: ignore[attr-defined]
        need(name is None, f"{what} is of another type than it should be")
    need(bool(table.groups and table.rows), "a table needs groups and rows")
    need(table.seeds > 0 and table.reduced_epochs > 0, "seeds and epochs are positive numbers")
    need(table.protocol in PROTOCOLS, f"unknown protocol {table.protocol!r}")
    need(table.select in ("val_accuracy", "val_nll"), f"unknown select {table.select!r}")
    need(table.test in ("welch", "paired"), f"unknown test {table.test!r}")
    for names in ([g.name for g in table.groups], [r.name for r in table.rows]):
        need(len(set(names)) == len(names), f"two groups or rows have one name: {names}")
    recipe_fields = {each.name for each in dataclasses.fields(Recipe)}
    for row in table.rows:
        strange = sorted({*row.paper, *row.recipes} - {group.name for group in table.groups})
        need(not strange, f"row {row.name!r}: figures or recipes of unknown groups {strange}")
    for group in table.groups:
        need(group.protocol in (None, *PROTOCOLS), f"unknown protocol {group.protocol!r}")
        for metric in group.metrics:
            need(metric.partition("@")[0] in METRICS, f"unknown metric {metric!r}")
        for column in group.columns:
            if column.noise:
                noise.parse(column.noise)
        for row in table.rows:
            where = f"row {row.name!r}, group {group.name!r}"
            settings = _settings(table, group, row)
            strange = sorted(set(settings) - recipe_fields)
            need(not strange, f"{where}: unknown recipe fields {strange}")
            need(_typed(settings), f"{where}: a value of the recipe is of another type")
            try:
                Recipe(**settings)
            except BadInput as error:
                need(False, f"{where}: {error}")
            cells = row.paper.get(group.name, [])
            fits = group.name not in row.paper or len(cells) == len(group.columns)
            need(fits, f"{where}: {len(cells)} cells of the paper")
            for text in cells:
                need(len(paper_values(text)) == len(group.metrics), f"{where}: figures {text!r}")
            for name, values in row.per_column.get(group.name, {}).items():
                need(len(values) == len(group.columns), f"{where}: {len(values)} values of {name}")
    known = {"rows": {row.name for row in table.rows}, "columns": set[str]()}
    for group in table.groups:
        known["columns"] |= {group.name}.union(
            *({c.name, f"{group.name}/{c.name}"} for c in group.columns)
        )
    for what, names in table.headline.items():
        need(what in known, f"a headline has rows and columns, not {what!r}")
        for name in names:
            need(name in known[what], f"the headline names no {what[:-1]} of the table: {name!r}")


def _typed(settings: dict[str, Any]) -> bool:
    """Are these of the types of a Recipe's fields?"""
    hints = get_type_hints(Recipe)
    return all(is_of(value, hints[name]) for name, value in settings.items())


def paper_values(text: str) -> tuple[PaperValue, ...]:
    """ "88.54 ± 0.32" as a PaperValue; several, for several metrics, stand between commas.

    "–" where nothing is published.
    """
    found = []
    for part in text.split(","):
        if part.strip() == "–":
            found.append(UNPUBLISHED)
            continue
        match = re.fullmatch(r"\s*(-?[\d.]+)(?:\s*±\s*([\d.]+))?\s*", part)
        if match is None:
            raise BadInput(f"{text!r} is not a figure; write it as 88.54 ± 0.32")
        found.append(PaperValue(float(match[1]), float(match[2]) if match[2] else None))
    return tuple(found)


# ---- cells --------------------------------------------------------------------------------------


def cells(table: Table) -> list[Cell]:
    """Every cell of the table, row by row, those that cannot be run included."""
    return [
        _cell(table, row, group, k)
        for row in table.rows
        for group in table.groups
        for k in range(len(group.columns))
    ]


def _settings(table: Table, group: Group, row: Row) -> dict[str, Any]:
    """The fields of the recipe of this row in this group."""
    return table.recipe | group.recipe | row.recipe | row.recipes.get(group.name, {})


def _cell(table: Table, row: Row, group: Group, k: int) -> Cell:
    column = group.columns[k]
    none = (UNPUBLISHED,) * len(group.metrics)
    own = {name: values[k] for name, values in row.per_column.get(group.name, {}).items()}
    cell = Cell(
        table=table.name,
        row=row.name,
        group=group.name,
        column=column.name,
        method=row.method,
        fields=row.fields | own,
        backbone=row.backbone or group.backbone,
        recipe=_settings(table, group, row),
        data=column.data,
        tests=group.tests or (column.data,),
        noise=column.noise,
        rows=group.rows,
        protocol=group.protocol or table.protocol,
        metrics=group.metrics,
        paper=paper_values(row.paper[group.name][k]) if group.name in row.paper else none,
        grid=row.grid.get(group.name, {}),
        reduced_epochs=group.reduced_epochs or table.reduced_epochs,
        tiny=row.tiny,
        reason=column.unserved,
    )
    return cell if cell.reason else dataclasses.replace(cell, reason=_missing(cell))


def _missing(cell: Cell) -> str | None:
    """What the library still lacks for this cell."""
    if cell.method not in list_methods():
        return f"no method {cell.method} yet"
    cls = lookup(cell.method).cls
    known = [*cls.field_names(), *cls.renamed]
    strange = [name for name in [*cell.fields, *cell.tiny, *cell.grid] if name not in known]
    if strange:
        return f"{cell.method} has no field {strange[0]}"
    strange = [name for name in (cell.data, *cell.tests) if name not in datasets.NAMES]
    if strange:
        return f"no data set {strange[0]} yet"
    backbone = cell.backbone.partition(":")[0]
    return None if backbone in list_backbones() else f"no backbone {backbone} yet"


def choose(found: Sequence[Cell], rows: Sequence[str], columns: Sequence[str]) -> list[Cell]:
    """The cells of these rows (by their own name or their method's) and columns; none: all.

    A column is named by its own name, its group's, or both: "CIFAR-10/asym 40%".
    """
    for wanted, what in ((rows, "row"), (columns, "column")):
        known = sorted({name for cell in found for name in getattr(cell, f"{what}_names")})
        for name in wanted:
            if name not in known:
                raise BadInput(unknown(what, name, known))
    return [
        cell
        for cell in found
        if (not rows or cell.row_names & set(rows))
        and (not columns or cell.column_names & set(columns))
    ]


# ---- what a run is made of ----------------------------------------------------------------------

TINY = {"epochs": 3, "batch_size": 32}
SMALL = {  # options that make a network tiny
    "resnet18": "width=8",
    "resnet34": "width=8",
    "resnet50": "width=8",
    "preact_resnet18": "width=8",
    "wide_resnet": "depth=10,widen=1",
    "cnn9": "width=8",
    "inception_resnet_v2": "width=4",
    "deeplab": "width=8,features=16",
    "unet": "width=4",
}


def inputs(cell: Cell, scale: str, seed: int) -> dict[str, Any]:
    """All that decides the result of a run, as plain JSON; two runs of the same inputs are one."""
    recipe, fields, backbone = dict(cell.recipe), dict(cell.fields), cell.backbone
    if scale == "reduced":
        recipe["epochs"] = min(cell.reduced_epochs, recipe.get("epochs", cell.reduced_epochs))
    if scale == "tiny":
        recipe |= TINY | ({"val": max(0.1, recipe["val"] % 1)} if recipe.get("val") else {})
        fields |= cell.tiny
        backbone = _small(backbone)
    return {
        "data": cell.data,
        "tests": list(cell.tests),
        "noise": cell.noise,
        "noisy_test": any(metric.startswith("noisy") for metric in cell.metrics),
        "miou": "miou" in cell.metrics,
        "rows": cell.rows,
        "method": cell.method,
        "fields": fields,
        "backbone": backbone,
        "recipe": recipe,
        "stand_in": scale == "tiny",
        "seed": seed,
    }


def _small(backbone: str) -> str:
    name, _, text = without_weights(backbone).partition(":")
    options = ",".join(filter(None, [text, SMALL.get(name)]))
    return f"{name}:{options}" if options else name


def digest(run_inputs: Mapping[str, Any]) -> str:
    """The name of a run: a hash of its inputs."""
    text = json.dumps(run_inputs, sort_keys=True)
    return digest_of(text, size=10)


def experiment(run_inputs: Mapping[str, Any]) -> str:
    """The name of what runs with different seeds have in common."""
    return digest({name: value for name, value in run_inputs.items() if name != "seed"})


@dataclass(frozen=True)
class Job:
    """One run of a cell."""

    cell: Cell
    scale: str
    seed: int

    @property
    def inputs(self) -> dict[str, Any]:
        return inputs(self.cell, self.scale, self.seed)

    @property
    def hash(self) -> str:
        return digest(self.inputs)

    def __str__(self) -> str:
        return f"{self.cell.table}: {self.cell.key} | seed {self.seed}"
