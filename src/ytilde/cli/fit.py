"""`ytilde fit`: train a method into a run folder."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from . import console
from .flags import method_help, recipe_help, refuse_mistyped
from .options import (
    DATA,
    METHOD,
    OUTPUT,
    TRAINING,
    Annotations,
    Annotator,
    Backbone,
    CleanLabel,
    DataRoot,
    Drop,
    EncoderFile,
    Features,
    GroupColumn,
    GroupedCommand,
    IdColumn,
    ImageColumn,
    ImageSize,
    Item,
    Label,
    MethodName,
    Noise,
    OutFolder,
    Pretrain,
    Source,
    Strict,
    TestData,
    TextColumn,
    votes_asked,
)


class FitCommand(GroupedCommand):
    """Help with the recipe's flags, and with the method's own where the line names a method."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def add_fields(self, ctx: Any, groups: dict[str, list[tuple[str, str]]]) -> None:
        words = ctx.meta.get("words", [])
        pairs = pairwise(words)
        named = [word.partition("=")[2] for word in words if word.startswith("--method=")]
        named += [value for flag, value in pairs if flag == "--method"]
        if named and named[-1] != "auto":
            groups[METHOD] += method_help(named[-1])
        else:
            own = "list the options that this method has of its own"
            groups[METHOD].append(("--method NAME --help", own))
        groups.setdefault(TRAINING, []).extend(recipe_help())


def fit(
    ctx: typer.Context,
    source: Source,
    label: Label = None,
    clean_label: CleanLabel = None,
    image_column: ImageColumn = None,
    image_size: ImageSize = None,
    drop: Drop = None,
    id_column: IdColumn = None,
    features: Features = None,
    text_column: TextColumn = None,
    group_column: GroupColumn = None,
    test: TestData = None,
    annotations: Annotations = None,
    item: Item = None,
    annotator: Annotator = None,
    noise_text: Noise = None,
    task: Annotated[
        str | None, typer.Option(help="classification or segmentation", rich_help_panel=DATA)
    ] = None,
    data_root: DataRoot = None,
    strict: Strict = False,
    method: MethodName = "elr",
    backbone: Backbone = "auto",
    encoder: EncoderFile = None,
    pretrain: Pretrain = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="continue an unfinished run", rich_help_panel=TRAINING),
    ] = False,
    out_folder: OutFolder = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace an existing run", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train a method on data whose labels may be wrong.

    A method's fields and the recipe's are options too: --tau 0.5 --epochs 30 --seed 1.
    """
    auto = method == "auto"  # plain training has no fields, and neither has a choice
    named = "ce" if auto else method
    if os.environ.get("WORLD_SIZE", "1") == "1":  # of many processes one speaks, see below
        refuse_mistyped(ctx.args, named, ctx.command.params)

    from .. import parallel
    from .training import FitRequest, train_run

    console.quiet = parallel.join().rank > 0
    ctx.call_on_close(parallel.leave)
    voted = votes_asked(annotations, item, annotator, label, noise_text)
    label = None if voted else label  # it is then a column of the votes
    asked = FitRequest(
        source, label, clean_label, image_column, drop, id_column, test, noise_text, task,
        data_root, strict, method, backbone, encoder, pretrain, ctx.args, out_folder, force, voted,
        features, image_size, text_column, group_column,
    )  # fmt: skip
    train_run(asked, resume=resume or _started_again(out_folder))
    parallel.team().wait()


def _started_again(out_folder: Path | None) -> bool:
    """Has torchrun started all processes again, after one fell? Then the run goes on."""
    from .. import parallel
    from ..runfolder import CONFIG

    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    begun = out_folder is not None and (out_folder / CONFIG).exists()
    return parallel.team().decide(again and begun)
