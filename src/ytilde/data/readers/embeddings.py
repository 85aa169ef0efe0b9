"""Embeddings in a table: a column in which every cell is a vector.

A model then sees the vectors; the other columns, and pictures, are what a person is shown.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...errors import BadInput, plural, shorten_list, which_rows
from ..precision import features
from ..types import IGNORE, Data
from .source import ReadOptions, Source


def embedding_column(frame: pd.DataFrame, options: ReadOptions, what: str) -> Any:
    """The column of vectors that the model sees: the one that is named, or the only one that there
    is to learn from.

    None: there is none, or a file holds them.
    """
    named = options.features or (options.schema.features if options.schema else None)
    if named is not None and str(named) in map(str, frame.columns):
        return next(c for c in frame.columns if str(c) == str(named))
    if options.features is not None:
        return None
    if named is not None:
        raise BadInput(f"There is no column {named!r} in {what}, which the model was fitted on.")
    if options.schema is not None:
        return None
    found = [c for c in frame.columns if holds_vectors(frame[c])]
    if len(found) > 1:
        raise BadInput(
            f"There are several columns of vectors in {what} ({shorten_list(found)}); name one of "
            "them with --features."
        )
    numbers = [c for c in frame.columns if pd.api.types.is_numeric_dtype(frame[c])]
    if found and numbers:
        raise BadInput(
            f"Column {found[0]!r} of {what} holds vectors, beside columns of numbers "
            f"({shorten_list(numbers, 3)}); name it with --features to learn from it alone, or "
            "leave it out with --drop."
        )
    return found[0] if found else None


def holds_vectors(column: pd.Series) -> bool:
    """Lists or arrays of numbers; or texts like [0.1, 0.2], as csv files have them."""
    if pd.api.types.is_numeric_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return False
    values = column.dropna()
    if not len(values):
        return False
    first = values.iloc[0]
    if isinstance(first, str):
        return first[:1] == "[" and first[-1:] == "]" and values.map(_is_list_text).all()
    return isinstance(first, list | tuple | np.ndarray | Tensor) and np.ndim(first) == 1


def _is_list_text(value: object) -> bool:
    return isinstance(value, str) and value[:1] == "[" and value[-1:] == "]"


def stack_vectors(column: pd.Series, what: str) -> np.ndarray:
    """The vectors of a column as [N, D]; NaN throughout a row that has none."""
    given = np.flatnonzero(column.notna().to_numpy())
    rows = [_vector(column.iloc[row], row, what) for row in given.tolist()]
    if not rows:
        raise BadInput(f"There is no vector in {what}.")
    sizes = np.array([len(row) for row in rows])
    usual = int(np.bincount(sizes).argmax())
    if (odd := np.flatnonzero(sizes != usual)).size:
        raise BadInput(
            f"The vectors of {what} differ in length: most have {usual} numbers, but "
            f"{which_rows(given[odd])} {sizes[odd[0]]}."
        )
    if not usual:
        raise BadInput(f"The vectors of {what} are empty.")
    stacked = np.stack(rows)
    if stacked.dtype.kind not in "biuf":
        raise BadInput(f"The vectors of {what} hold {stacked.dtype} instead of numbers.")
    if len(given) == len(column):
        return stacked
    full = np.full((len(column), usual), np.nan, dtype=np.result_type(stacked, np.float32))
    full[given] = stacked
    return full


def _vector(value: Any, row: int, what: str) -> np.ndarray:
    try:
        value = json.loads(value) if isinstance(value, str) else value
        array = np.asarray(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_vector(row, what) from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        raise _no_vector(row, what)
    return array


def _no_vector(row: int, what: str) -> BadInput:
    return BadInput(f"There is no vector of numbers in {which_rows([row])} of {what}.")


def as_features(vectors: np.ndarray, what: str, double: bool | None = None) -> Tensor:
    """Vectors [N, D] as features; a row that is NaN throughout stays so, for `without_missing`."""
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise BadInput(
            f"The embeddings of {what} have shape {vectors.shape}; give a vector a row, [N, D]."
        )
    if vectors.dtype.kind not in "biuf":
        raise BadInput(f"The embeddings of {what} hold {vectors.dtype} instead of numbers.")
    wide = vectors.astype(np.float64) if vectors.dtype.kind != "f" else vectors
    with np.errstate(over="ignore"):
        finite = np.isfinite(wide.astype(np.float32))
    none = np.isnan(wide).all(1)
    if (bad := np.flatnonzero(~finite.all(1) & ~none)).size:
        raise BadInput(
            f"There is a missing or infinite number in {which_rows(bad)} of {what}; make these "
            "embeddings again."
        )
    if none.all():
        raise BadInput(f"Not one row of {what} has an embedding.")
    x = torch.from_numpy(np.ascontiguousarray(wide))
    some = torch.from_numpy(~none)
    found = features(x[some], double)
    full = torch.full((len(x), x.shape[1]), torch.nan, dtype=found.dtype)
    full[some] = found
    return full


def without_missing(found: Source, notes: list[str], what: str) -> Source:
    """Rows without an embedding lose their labels, as pictures do that cannot be read."""
    x = found.data.x
    assert isinstance(x, Tensor)
    gone = x.isnan().all(1)
    if not gone.any():
        return found
    rows = gone.nonzero()[:, 0].tolist()
    notes.append(f"left out, {plural(len(rows), 'row')} of {what} without an embedding")
    y, clean = found.data.y.clone(), found.data.clean
    y[gone] = IGNORE
    data: Data = replace(found.data, x=x.nan_to_num(), y=y, clean=clean)
    return replace(found, data=data, missing=tuple(rows))


def placeholder(rows: int) -> Tensor:
    """Inputs of a table whose columns are only shown, until the vectors of a file replace them."""
    return torch.zeros(rows, 1)
