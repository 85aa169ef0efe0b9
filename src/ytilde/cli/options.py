"""Options that several commands have, and help that shows options in groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..errors import BadInput

DATA, METHOD, TRAINING, OUTPUT = "Data", "Method", "Training", "Output"  # groups of `--help`
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}

Source = Annotated[
    str,
    typer.Argument(
        help="csv, tsv (or .csv.gz), parquet or npz file, image folder, or a named set (see "
        "`ytilde data`)"
    ),
]
Label = Annotated[
    str | None,
    typer.Option(help="label column; default: the one called label or y", rich_help_panel=DATA),
]
CleanLabel = Annotated[
    str | None,
    typer.Option(
        help="column of true labels, for evaluation only, never trained on; default: the one "
        "called clean_label or clean",
        rich_help_panel=DATA,
    ),
]
ImageColumn = Annotated[
    str | None, typer.Option(help="column of image paths", rich_help_panel=DATA)
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        min=16,
        max=2048,
        help="scale pictures to cover a square of this many pixels; default: their own size if "
        "all have the same, otherwise the median, at most 224",
        rich_help_panel=DATA,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", help="exclude columns, e.g. an id: a,b; repeatable", rich_help_panel=DATA
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="text column to learn from; default: the only column of long texts",
        rich_help_panel=DATA,
    ),
]
GroupColumn = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="column of groups, e.g. patients: rows of one group are never split between training "
        "and validation, nor between folds",
        rich_help_panel=DATA,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="column that identifies the rows, copied to every output; 'none' if there is no such "
        "column",
        rich_help_panel=DATA,
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        help="embeddings that the model sees instead of the rows: npy, npz, parquet or csv, as "
        "`ytilde embed` makes them, or the table's column of vectors",
        rich_help_panel=DATA,
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        help="folder of the named sets; default: $YTILDE_DATA or ./data", rich_help_panel=DATA
    ),
]
Annotations = Annotated[
    Path | None,
    typer.Option(
        help="votes of several annotators, instead of labels: a table with one row per vote (task, "
        "worker, label; tasks are ids or row numbers), or with one column per annotator",
        rich_help_panel=DATA,
    ),
]
Item = Annotated[
    str | None, typer.Option(help="column of items; default: task or item", rich_help_panel=DATA)
]
Annotator = Annotated[
    str | None,
    typer.Option(help="column of annotators; default: worker or annotator", rich_help_panel=DATA),
]
VoteLabel = Annotated[
    str | None,
    typer.Option("--label", help="column of labels; default: label", rich_help_panel=DATA),
]
Noise = Annotated[
    str | None,
    typer.Option("--noise", help="corrupt the labels first, e.g. instance:0.4",
                 rich_help_panel=DATA),
]  # fmt: skip
Backbone = Annotated[
    str,
    typer.Option(
        help="network, as NAME[:OPTION=VALUE,...] (see `ytilde methods backbones`); auto: chosen "
        "by the data, and on a CPU by what can be trained in time",
        rich_help_panel=METHOD,
    ),
]
TestData = Annotated[
    str | None,
    typer.Option(
        "--test", help="test data, for evaluation only, never trained on", rich_help_panel=DATA
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="refuse unreadable images", rich_help_panel=DATA)
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        help="see `ytilde methods`; auto: ensemble (of images the default), or one of a short list "
        "that predicts held-out labels clearly better",
        rich_help_panel=METHOD,
    ),
]
EncoderFile = Annotated[
    Path | None,
    typer.Option(
        "--encoder",
        help="encoder to start the networks from, made by `ytilde pretrain`",
        rich_help_panel=METHOD,
    ),
]
Pretrain = Annotated[
    str | None,
    typer.Option(
        "--pretrain",
        help="make such an encoder first: simclr[:epochs=100,...]",
        rich_help_panel=METHOD,
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option("--out", help="run folder; default: a new one in runs/", rich_help_panel=OUTPUT),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="replace an existing file, whatever wrote it", rich_help_panel=OUTPUT
    ),
]


@dataclass(frozen=True)
class FitOptions:
    """How to read the data and what to train on it: the options of `fit`, and of `audit`."""

    label: Label = None
    clean_label: CleanLabel = None
    image_column: ImageColumn = None
    image_size: ImageSize = None
    drop: Drop = None
    id_column: IdColumn = None
    features: Features = None
    text_column: TextColumn = None
    group_column: GroupColumn = None
    test: TestData = None
    annotations: Annotations = None
    item: Item = None
    annotator: Annotator = None
    noise: Noise = None
    data_root: DataRoot = None
    strict: Strict = False
    method: MethodName = "second_opinion"
    backbone: Backbone = "auto"
    encoder: EncoderFile = None
    pretrain: Pretrain = None

    def votes(self) -> dict[str, str | None] | None:
        """Where the votes are, as a run remembers it; None: each row has one label."""
        if self.annotations is None:
            if self.item or self.annotator:
                raise BadInput(
                    "--item and --annotator are columns of the votes; give --annotations"
                )
            return None
        if self.noise:
            raise BadInput("--noise corrupts one label per row, and not votes; leave it out")
        columns = {"item": self.item, "annotator": self.annotator, "label": self.label}
        return {"path": str(self.annotations), **columns}


def unfold_options(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer the fields of a parameter like `options: FitOptions` as parameters of their own.

    So options that several commands share are listed once, and arrive as one value.
    """
    signature = inspect.signature(command, eval_str=True)
    bundles: dict[str, Any] = {
        name: p.annotation for name, p in signature.parameters.items() if is_dataclass(p.annotation)
    }
    unfolded: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in bundles:
            unfolded.append(parameter)
            continue
        hints = get_type_hints(bundles[name], include_extras=True)
        for field in fields(bundles[name]):
            own = {"annotation": hints[field.name], "default": field.default}
            unfolded.append(parameter.replace(name=field.name, **own))

    @wraps(command)
    def call(**given: Any) -> None:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        command(**given)

    call.__signature__ = signature.replace(parameters=unfolded)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in unfolded}
    return call


class GroupedCommand(TyperCommand):
    """Help in groups, in the order of their first options; plain text, so that it is fast."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            is_option = param.param_type_name == "option"
            name = getattr(param, "rich_help_panel", None) or "Options"
            if record := param.get_help_record(ctx):
                groups.setdefault(name if is_option else "Arguments", []).append(record)
        self.add_fields(ctx, groups)
        for name in sorted(groups, key=lambda name: name == "Options"):  # stable: --help goes last
            with formatter.section(name):
                formatter.write_dl(groups[name])

    def add_fields(self, ctx: Any, groups: dict[str, list[tuple[str, str]]]) -> None:
        """Add options that are fields of a dataclass; here: none."""
