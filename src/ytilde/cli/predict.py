"""`ytilde predict`: the labels of new data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..errors import plural
from .console import say
from .options import DataRoot, Features, Force, Source


def predict(
    run: Annotated[Path, typer.Argument(help="run folder or model file")],
    source: Source,
    features: Features = None,
    out_file: Annotated[Path, typer.Option("--out", help="csv to write")] = Path("predictions.csv"),
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="add a column for each class, prob_CLASS")
    ] = False,
    data_root: DataRoot = None,
    split: Annotated[str, typer.Option(help="split of a named set")] = "test",
    force: Force = False,
) -> None:
    """Predict the labels of new data with a trained run.

    Images that cannot be read get no label.
    """
    from ..data.images import row_name
    from ..files import is_stream
    from ..outputs import check_outputs
    from .predictions import write_predictions
    from .reading import check_suffix, input_paths, read_source
    from .trained import load_model, run_inputs, schema_of

    outputs = [(out_file, "predictions")]
    check_outputs(outputs, input_paths(source, data_root, run, features), force)
    if not is_stream(out_file):
        check_suffix(out_file, ".csv")
    clf, config = load_model(run)
    check_outputs(outputs, run_inputs(config), force)
    schema = schema_of(config) or clf.schema_
    if schema and clf.schema_:
        schema = replace(schema, tfidf=clf.schema_.tfidf)
    how = {"labelled": False, "strict": False, "features": features}
    found = read_source(source, data_root, schema=schema, split=split, **how)
    check_outputs(outputs, found.paths or (), force)
    probs, unreadable_rows = clf.predict_data(found.data)
    unread = int(unreadable_rows.sum())
    unreadable_rows[list(found.missing)] = True
    shown = {"given": False, "probabilities": probabilities}
    write_predictions(out_file, found, clf.classes_, probs, unreadable_rows, **shown)
    if unread:
        first = row_name(found.data.x, int(unreadable_rows.argmax()))
        say(f"note: no label for {plural(unread, 'unreadable image')}, the first {first}")
    predicted = len(probs) - int(unreadable_rows.sum())
    say(f"{plural(predicted, 'prediction')} written to {out_file}")
