"""`ytilde relabel`: a table with corrected labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import plural
from .console import say
from .options import Force, Label


def relabel(
    data: Annotated[Path, typer.Argument(help="csv, tsv or parquet")],
    labels: Annotated[
        Path,
        typer.Argument(
            help="labels.csv of `audit --fix-above` or `review --export`; or an export of Label "
            "Studio (json, csv) or of Argilla (json)"
        ),
    ],
    out_file: Annotated[Path, typer.Option("--out", help="table to write, of the same kind")],
    label: Label = None,
    force: Force = False,
) -> None:
    """Write a copy of a table with corrected labels.

    Everything else in it stays as it is; only the bad items of a review are left out.
    """
    from ..auditing.labelling_exports import read_export
    from ..auditing.relabel import relabel

    done = relabel(data, labels, out_file, label, force)
    left_out = f", {plural(done.left_out, 'bad item')} left out" if done.left_out else ""
    exported = read_export(labels)
    if exported and exported.disagreed:
        rows = plural(exported.disagreed, "row")
        say(f"note: annotators disagree on {rows}, where the label stays as it was")
    say(f"{done.changed} of {done.rows} labels changed{left_out}; written: {out_file}")
