"""`ytilde relabel`: a table with corrected labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import say
from .options import Force, Label


def relabel(
    data: Annotated[Path, typer.Argument(help="csv, tsv or parquet")],
    labels: Annotated[
        Path, typer.Argument(help="labels.csv of `audit --fix-above` or `review --export`")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="table to write, of the same kind")],
    label: Label = None,
    force: Force = False,
) -> None:
    """Write a copy of a table with corrected labels.

    Everything else in it stays as it is.
    """
    from ..auditing.relabel import relabel

    rows, changed = relabel(data, labels, out_file, label, force)
    say(f"{changed} of {rows} labels changed; written: {out_file}")
