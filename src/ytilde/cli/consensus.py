"""`ytilde consensus`: what several annotators say together, and how good each of them is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import make_table, say, show
from .options import Annotator, Force, Item, VoteLabel

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 10  # annotators in the terminal


def consensus(
    votes: Annotated[
        Path,
        typer.Argument(
            help="csv, tsv or parquet: one row per vote (task, worker, label), or one row per item "
            "and one column per annotator"
        ),
    ],
    item: Item = None,
    annotator: Annotator = None,
    label: VoteLabel = None,
    method: Annotated[
        str,
        typer.Option(
            help="dawid_skene, majority or one_coin; auto: dawid_skene if there are enough votes"
        ),
    ] = "auto",
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="csv to write, one row per item; tables of the annotators, their matrices and the "
            "votes, and a report, are written beside it",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Find the consensus of several annotators, and who is reliable.

    Needs no inputs, only the votes.
    """
    from ..annotators import find_consensus
    from ..auditing.consensus import write
    from ..files import write_csv
    from ..outputs import check_outputs
    from .reading import check_suffix

    outputs = _outputs(out_file) if out_file else {}
    if out_file:
        check_suffix(out_file, ".csv")
    check_outputs([(path, kind) for kind, path in outputs.items()], [votes], force)
    found = find_consensus(votes, method, item=item, annotator=annotator, label=label)
    say(f"{found.summary()} (by {found.method})")
    _show_annotators(found.annotators)
    for note in found.notes:
        say(f"note: {note}")
    tables = {
        "consensus": found.items,
        "annotators": found.annotators,
        "matrices": found.matrices,
        "votes": found.votes,
    }
    for kind, path in outputs.items():
        if kind == "report":
            write(found, path, str(votes), force=True)
        else:
            write_csv(path, tables[kind].round(6))
    if outputs:
        say(f"written: {', '.join(map(str, outputs.values()))}")
    else:
        say("next: --out consensus.csv writes the consensus of every item, and a report")


def _outputs(path: Path) -> dict[str, Path]:
    """The files to write, by kind; the first is the one that --out names."""
    names = ("annotators", "matrices", "votes")
    beside = {kind: path.with_name(f"{path.stem}-{kind}.csv") for kind in names}
    return {"consensus": path, **beside, "report": path.with_suffix(".html")}


def _show_annotators(table: pd.DataFrame) -> None:
    """Those with the most votes, the best first."""
    busiest = table.sort_values("votes", ascending=False, kind="stable")[:SHOWN]
    rows = [
        (
            a.annotator,
            a.votes,
            f"{100 * a.accuracy:.0f} %",
            f"{100 * a.accuracy_low:.0f} to {100 * a.accuracy_high:.0f} %",
            a.remark,
        )
        for a in busiest.sort_values("accuracy", ascending=False, kind="stable").itertuples()
    ]
    show(make_table(("annotator", "votes", "right", "95 % interval", "remark"), rows))
    if len(table) > SHOWN:
        say(f"{len(table) - SHOWN} more annotators, with fewer votes")
