"""`ytilde review`: go through the suspicious labels in the browser."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ..errors import BadInput, plural
from .console import say
from .options import Force


def review(
    run: Annotated[Path, typer.Argument(help="run folder that has been audited")],
    export: Annotated[
        Path | None,
        typer.Option(help="csv to write: the labels as decided so far, without opening the page"),
    ] = None,
    export_votes: Annotated[
        Path | None,
        typer.Option(
            help="csv to write: all votes, with the decisions as those of one more annotator, "
            "without opening the page"
        ),
    ] = None,
    annotator: Annotated[
        str, typer.Option(help="name of this annotator in --export-votes")
    ] = "review",
    sample: Annotated[
        int | None,
        typer.Option(
            help="first show this many rows drawn at random; from them `audit` counts the wrong "
            "labels, however good the model is"
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="port to serve on; 0: any free one", min=0, max=65535)
    ] = 0,
    force: Force = False,
) -> None:
    """Review the suspicious labels of an audited run in the browser.

    With the keyboard; every decision is saved at once.
    """
    from ..auditing import review as reviewing
    from ..files import write_csv
    from ..outputs import check_no_links, check_outputs
    from ..runfolder import REVIEW, SAMPLE
    from .trained import load_config, run_inputs, say_relabel, training_data, training_votes

    if sample is not None and (export or export_votes):
        raise BadInput("--sample opens the page and an export does not; give one of them")
    outputs = [(export, "labels")] if export else []
    outputs += [(export_votes, "review votes")] if export_votes else []
    check_outputs(outputs, [run], force)
    check_no_links([run / REVIEW, run / SAMPLE])
    config = load_config(run)
    check_outputs(outputs, run_inputs(config), force)
    found = training_data(run, config)
    check_outputs(outputs, found.paths or (), force)
    if found.data.y.dim() > 1:
        raise BadInput("a review needs one label per row; regions.csv has those of pixels")
    columns = found.schema.columns
    shown: dict[str, Any] = {"paths": found.paths, "ids": found.ids, "texts": found.texts}
    shown["pictures"] = found.pictures
    shown["text_column"] = found.schema.text_column
    session = reviewing.Review(run, found.data, columns=columns, sample=sample, **shown)
    votes = None
    if export_votes is not None:  # it may be refused, and then no other file is written either
        votes = reviewing.review_votes(session, training_votes(found, config), annotator)
    if export is not None:
        written = reviewing.export(session, export)
        changed = f"{written.labels} labels written to {export}, {written.changed} of them"
        say(f"{changed} changed by hand")
        if written.bad:
            say(f"{plural(written.bad, 'bad item')}: the label is left empty there")
        if written.changed or written.bad:
            say_relabel(config, export)
    if votes is not None and export_votes is not None:
        write_csv(export_votes, votes.table)
        count = plural(len(votes.table), "vote")
        say(f"{count} written to {export_votes}, {votes.votes} by review")
        if votes.not_looked_at:
            say(
                f"note: no vote for {votes.not_looked_at} suggestions that were accepted all at "
                "once"
            )
        words = f"{quote(config['source'])} --annotations {quote(str(export_votes))}"
        say(f"next: ytilde audit {words}")
    if outputs:
        return
    reviewing.serve(session, port, _say_address)
    done = session.progress()
    say(f"{done['total'] - done['open']} of {done['total']} decided, and all decisions are saved")
    if session.sample:
        say(f"next: ytilde audit {quote(str(run))} counts the wrong labels from what was checked")
    say(f"next: ytilde review {quote(str(run))} --export labels.csv")


def _say_address(address: str) -> None:
    say(f"open {address} in a browser; Ctrl-C ends the review")
