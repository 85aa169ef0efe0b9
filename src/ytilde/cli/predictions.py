"""The table of predictions that `fit` and `predict` write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data import BadInput
from ..data.readers import Source
from ..files import write_csv_parts

ROWS = 1 << 18  # written at once


def write_predictions(
    path: Path,
    found: Source,
    classes: NDArray[Any],
    probs: NDArray[Any],
    unreadable_rows: NDArray[np.bool_],
    *,
    given: bool = True,
    probabilities: bool = False,
) -> None:
    """Write one line per row; rows that could not be read have no predicted label.

    probs: the clean posteriors [N, K]; given: with the given labels; probabilities: all of them.
    """
    if probs.ndim > 2:
        raise BadInput("a run of pixel labels has no table of predictions; see Classifier.load")
    parts = (slice(k, k + ROWS) for k in range(0, len(found.data), ROWS))
    frames = (
        _frame(found, part, classes, probs[part], unreadable_rows[part], given, probabilities)
        for part in parts
    )
    write_csv_parts(path, frames)


def _frame(
    found: Source,
    part: slice,
    classes: NDArray[Any],
    probs: NDArray[Any],
    unreadable_rows: NDArray[np.bool_],
    given: bool,
    probabilities: bool,
) -> pd.DataFrame:
    """The lines of some rows."""
    data = found.data
    columns: dict[str, Any] = {"index": np.arange(part.start, part.start + len(probs))}
    if found.ids:
        columns["id"] = found.ids[part]
    if found.paths:
        columns["path"] = found.paths[part]
    if given:
        columns["given_label"] = [data.class_name(k) for k in data.y[part].tolist()]
    predicted: dict[str, Any] = {"predicted_label": classes[probs.argmax(-1)].astype(object)}
    predicted["predicted_prob"] = probs.max(-1).round(6)
    if probabilities:
        names = [f"prob_{name}" for name in classes]
        predicted |= dict(zip(names, probs.T.round(6), strict=True))
    return pd.DataFrame(columns).join(pd.DataFrame(predicted)[~unreadable_rows])
