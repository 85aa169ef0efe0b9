"""Probabilities and labels of several classes a row: a column of each a class, or two matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...errors import BadInput, shorten_list, which_rows
from ...hashing import digest_of
from ..ids import own_texts
from ..types import IGNORE
from .arrays import load_npz
from .labels import class_name
from .probabilities import KINDS, id_column_of, matching
from .source import ReadOptions
from .tables import load_table
from .texts import file_texts

YES = {"1", "1.0", "true", "yes"}
NO = {"0", "0.0", "false", "no"}
UNKNOWN = {"", "-1", "-1.0", "nan", "na", "none"}


@dataclass(frozen=True)
class MultiLabel:
    """Probabilities and labels [N, K] (1, 0, -1 = not known), and what a person is shown."""

    probs: np.ndarray
    labels: np.ndarray
    names: list[str]
    ids: list[str] | None
    texts: Callable[[Sequence[int]], pd.DataFrame] | None
    notes: list[str]

    @property
    def fingerprint(self) -> str:
        parts = (torch.from_numpy(np.ascontiguousarray(x)) for x in (self.probs, self.labels))
        return digest_of("\0".join(self.names), *parts)


def is_multilabel(source: str, label: str | None) -> bool:
    """Does `label` mean several columns, or a matrix?"""
    if label is None:
        return False
    if Path(source).suffix.lower() == ".npz" and Path(source).is_file():
        parts = load_npz(Path(source))
        return label in parts and parts[label].ndim == 2
    return "*" in label


def read_multilabel(
    source: str | Path, pattern: str, label: str, id_column: str | None = None
) -> MultiLabel:
    """Read probabilities and labels of several classes a row.

    pattern, label: the columns' names with a star in the place of the class, such as "p_*" and
        "y_*"; in an npz the names of two arrays [N, K]. The columns beside are what is shown.
    """
    path = Path(source)
    if not path.is_file() or path.suffix.lower() not in KINDS:
        raise BadInput(
            f"{source} is no file of probabilities; give a csv, tsv, parquet or npz file"
        )
    if path.suffix.lower() == ".npz":
        return _of_arrays(path, pattern, label)
    frame = load_table(path, ReadOptions())
    if not len(frame):
        raise BadInput(f"There are no rows in {path}.")
    given, names = matching(list(frame.columns), label, path, "--label")
    rest = frame.drop(columns=given)
    likely, classes = matching(list(rest.columns), pattern, path)
    if set(names) != set(classes):
        odd = sorted(set(names) ^ set(classes))
        raise BadInput(
            f"The classes of {label} and of {pattern} in {path} differ: {shorten_list(odd)} "
            f"{'is' if len(odd) == 1 else 'are'} in one of them alone."
        )
    likely = [likely[classes.index(name)] for name in names]
    rest = rest.drop(columns=likely)
    ids, notes = id_column_of(rest, id_column, path)
    shown = [str(column) for column in rest.columns if column != ids]
    texts = partial(file_texts, path)
    return MultiLabel(
        _probabilities(frame[likely], path),
        np.stack([_answers(frame[column], column, path) for column in given], 1),
        names,
        None if ids is None else texts([ids], None)[ids].tolist(),
        (lambda rows: texts(shown, rows)) if shown else None,
        [*notes, f"{len(names)} classes: {shorten_list(names)}"],
    )


def _of_arrays(path: Path, pattern: str, label: str) -> MultiLabel:
    parts = load_npz(path)
    for name in (pattern, label):
        if name not in parts or parts[name].ndim != 2:
            raise BadInput(f"{path} has no matrix {name!r}; it holds {shorten_list(parts)}.")
    probs, labels = parts[pattern], parts[label]
    if labels.dtype.kind not in "biuf":
        raise BadInput(f"The labels of {path} are {labels.dtype}; give 1, 0 and -1.")
    own = parts.get("names")
    k = probs.shape[1]
    names = [str(i) for i in range(k)]
    if own is not None:
        names = [class_name(each, str(path)) for each in own.reshape(-1)]
    if len(names) != k:
        raise BadInput(f"{path} has {len(names)} names for {k} columns of {pattern!r}")
    beside = {name: part for name, part in parts.items() if part.shape == (len(probs),)}
    frame = pd.DataFrame(beside)
    texts = (lambda rows: own_texts(frame, rows=rows)) if beside else None
    return MultiLabel(probs, labels, names, None, texts, [f"{k} classes: {shorten_list(names)}"])


def _probabilities(frame: pd.DataFrame, path: Path) -> np.ndarray:
    parts = [pd.to_numeric(frame[c], errors="coerce").to_numpy(np.float64) for c in frame.columns]
    probs = np.stack(parts, 1)
    bad = ~((probs >= 0) & (probs <= 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise BadInput(
            f"There is no probability from 0 to 1 in {which_rows(np.nonzero(bad)[0])} of {path} "
            f"(but {frame.iloc[row, column]} in column {frame.columns[column]!r})."
        )
    return probs


def _answers(column: pd.Series, name: Any, path: Path) -> np.ndarray:
    texts = ["" if pd.isna(value) else str(value).strip().lower() for value in column]
    found = np.full(len(texts), -2)
    for words, value in ((YES, 1), (NO, 0), (UNKNOWN, IGNORE)):
        found[[text in words for text in texts]] = value
    if (bad := np.flatnonzero(found == -2)).size:
        raise BadInput(
            f"Column {name!r} of {path} must hold 1 or 0 (or nothing), but {texts[bad[0]]!r} "
            f"stands in {which_rows(bad)}."
        )
    return found
