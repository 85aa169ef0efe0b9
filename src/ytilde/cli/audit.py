"""`ytilde audit`: which labels of a run's data are wrong."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ..errors import BadInput
from .console import Bar, say
from .options import Force


def audit(
    run: Annotated[Path, typer.Argument(help="run folder")],
    folds: Annotated[
        int,
        typer.Option(
            help="number of models to train; each label is judged by one that never saw it; "
            "0: judge with the run's own model"
        ),
    ] = 5,
    fix_above: Annotated[
        float | None, typer.Option(help="write labels.csv, fixed where p_wrong is above this")
    ] = None,
    label_studio: Annotated[
        Path | None, typer.Option(help="json to write: the suspects as Label Studio tasks")
    ] = None,
    argilla: Annotated[
        Path | None, typer.Option(help="json to write: the suspects as Argilla records")
    ] = None,
    force: Force = False,
) -> None:
    """Find the wrong labels of a run's data.

    Writes issues.csv and report.html to the run folder.
    """
    from ..auditing.exporters import label_studio_outputs
    from ..auditing.items import table
    from ..auditing.sampling import known_rows
    from ..files import write_csv
    from ..outputs import check_no_links, check_outputs
    from ..runfolder import ANNOTATORS, AUDIT, FOLDS, ISSUES, LABELS, REPORT, VOTES
    from .runs import Run
    from .trained import load_model, run_inputs, same_encoder, say_relabel, training_data

    if fix_above is not None and not 0 <= fix_above < 1:
        raise BadInput(f"--fix-above is {fix_above:g}; give a probability from 0 to below 1")
    outputs = label_studio_outputs(label_studio) if label_studio else []
    outputs += [(argilla, "argilla")] if argilla else []
    check_outputs(outputs, [run], force)
    if run.is_dir():
        names = (ISSUES, AUDIT, REPORT, LABELS, FOLDS, ANNOTATORS, VOTES)
        check_no_links(run / name for name in names)
    with Bar() as bar:
        clf, config = load_model(run)
        check_outputs(outputs, run_inputs(config), force)
        found = training_data(run, config)
        check_outputs(outputs, found.paths or (), force)
        keep = run / FOLDS if run.is_dir() else None
        encoder = same_encoder(run, clf.encoder, config)
        checked = known_rows(run, found.data)
        result = clf.audit_data(found.data, folds, bar.show, keep, encoder, checked)
    if isinstance(checked, dict):
        known = f"The {len(checked)} rows whose clean label is known"
        result.notes.append(f"{known} are taken for a random sample of all rows.")
    context = result.context
    context.history, context.paths, context.title = Run.history(run), found.paths, str(run)
    context.ids, context.texts = found.ids, found.texts
    if context.rows is not None and context.texts is None:
        context.rows = table(context.rows, found.schema.columns)
    if label_studio is not None:
        result.to_label_studio(label_studio, force)
    if argilla is not None:
        result.to_argilla(argilla, force)
    result.to_csv(run / ISSUES, force=True)
    result.to_json(run / AUDIT, force=True)
    result.to_html(run / REPORT, force=True)
    written = [run / ISSUES, run / REPORT]
    for name, crowd in ((ANNOTATORS, result.annotators), (VOTES, result.votes)):
        if crowd is not None:
            if found.ids and "item" in crowd:  # the audit knows rows by their numbers
                crowd = crowd.assign(item=[found.ids[int(row)] for row in crowd["item"]])
            write_csv(run / name, crowd.round(6))
            written.append(run / name)
    fixed = None if fix_above is None else result.fixed_labels(fix_above)
    if fixed is not None:
        written.append(run / LABELS)
        write_csv(written[-1], fixed)
    written += filter(None, (label_studio, argilla))
    say(result.summary())
    for note in result.notes:
        say(f"note: {note}")
    if fixed is not None:
        above = f"whose p_wrong is above {fix_above:g}"
        say(f"{int(fixed.fixed.sum())} of {len(fixed)} labels fixed, those {above}")
    say(f"written: {', '.join(map(str, written))}")
    if fixed is not None and fixed.fixed.any():
        say_relabel(config, run / LABELS)
    if result.checked and (advice := result.checked.advice()):
        say(advice)
    if result.checked is None:
        say(f"next: ytilde review {quote(str(run))} --sample 100  # a count whatever the model is")
    if not result.at_chance:
        say(f"next: ytilde review {quote(str(run))}")
