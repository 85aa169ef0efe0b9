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
    FitOptions,
    GroupedCommand,
    OutFolder,
    Source,
    unfold_options,
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


@unfold_options
def fit(
    ctx: typer.Context,
    source: Source,
    options: FitOptions,
    task: Annotated[
        str | None, typer.Option(help="classification or segmentation", rich_help_panel=DATA)
    ] = None,
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
    if os.environ.get("WORLD_SIZE", "1") == "1":  # of many processes one speaks, see below
        refuse_mistyped(ctx.args, options.method, ctx.command.params)

    from ..engine import parallel
    from .training import FitRequest, train_run

    console.quiet = parallel.join().rank > 0
    ctx.call_on_close(parallel.leave)
    asked = FitRequest(source, options, ctx.args, out_folder, force, options.votes(), task)
    train_run(asked, resume=resume or _started_again(out_folder))
    parallel.team().wait()


def _started_again(out_folder: Path | None) -> bool:
    """Has torchrun restarted all processes after one failed? Then the run continues."""
    from ..engine import parallel
    from ..runfolder import CONFIG

    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    begun = out_folder is not None and (out_folder / CONFIG).exists()
    return parallel.team().decide(again and begun)
