"""Corrected labels back into the table that they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from .checkpoint import spreadsheet_safe, write_atomic, write_text
from .data import BadInput, which_rows
from .readers import TABLES, class_name, read_as_it_stands

COLUMNS = ("index", "label", "fixed", "given_label")  # of labels.csv, from an audit or a review


def relabel(source: Path, labels: Path, out: Path, label: str | None = None) -> tuple[int, int]:
    """Write the table with the labels of another file; how many rows it has, and how many changed.

    Every other value stays as it stands. labels: written by `audit --fix-above` or
    `review --export`. A file of another table is refused: each row must have the label that is
    the given one there.
    """
    for path in (source, out):
        if path.suffix.lower() not in TABLES:
            raise BadInput(
                f"{path} is no table; `relabel` takes csv, tsv and parquet. The rows or images to "
                f"change are those of {labels} whose `fixed` is true."
            )
    if (source.suffix.lower() == ".parquet") != (out.suffix.lower() == ".parquet"):
        raise BadInput(f"{out} must be of the same kind as {source}; give --out the same ending")
    if out.resolve() in (source.resolve(), labels.resolve()):
        raise BadInput(f"{out} would be overwritten; give --out another name")
    frame, column, separator = read_as_it_stands(source, label)
    wanted = _read_labels(labels, len(frame), str(source))
    # the value that labels.csv means: there a class has its name, harmless in spreadsheets
    own = {spreadsheet_safe(class_name(v, str(source))): v for v in frame[column].unique()}
    names = {value: name for name, value in own.items()}
    index, given = wanted["index"].to_numpy(), wanted.given_label.to_numpy()
    here = frame[column].iloc[index].map(names).to_numpy()
    if (other := np.flatnonzero(here != given)).size:
        first = other[0]
        raise BadInput(
            f"{labels} was made of other labels: in {which_rows(index[other])} of {source} the "
            f"label is {here[first]!r}, there {given[first]!r}."
        )
    fixed = wanted[wanted.fixed.str.lower() == "true"]
    if strange := sorted(set(fixed.label) - own.keys()):
        raise BadInput(f"{labels} asks for the label {strange[0]!r}, which {source} does not have.")
    values = frame[column].copy()
    values.iloc[fixed["index"].to_numpy()] = [own[name] for name in fixed.label]
    frame[column] = values
    if separator is None:
        write_atomic(out, lambda temporary: frame.to_parquet(temporary, index=False))
    else:
        write_text(out, frame.to_csv(sep=separator, index=False))
    return len(frame), len(fixed)


def _read_labels(path: Path, rows: int, what: str) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise BadInput(f"{path} cannot be read ({error}).") from error
    if missing := [name for name in COLUMNS if name not in found.columns]:
        raise BadInput(
            f"{path} has no column {missing[0]!r}; give a file written by `ytilde audit "
            "--fix-above` or `ytilde review --export`."
        )
    index = pd.to_numeric(found["index"], errors="coerce")
    if not (index.is_unique and index.isin(range(rows)).all()):
        raise BadInput(f"{path} is not about the {rows} rows of {what}.")
    return found.assign(index=index.astype(int))
