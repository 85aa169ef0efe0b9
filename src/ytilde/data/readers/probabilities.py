"""Probabilities that were made elsewhere: their columns, the labels, and what names the rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...errors import BadInput, shorten_list, which_rows
from ..ids import NONE, find_ids, own_texts
from ..types import Data
from .arrays import load_npz
from .labels import class_name, encode, renumber
from .roles import label_columns
from .separators import TABLES, table_kind
from .source import ReadOptions, Schema, Source
from .tables import load_table
from .texts import file_texts

KINDS = (*TABLES, ".npz")


def read_probabilities(
    source: str | Path, pattern: str, *, label: str | None = None, id_column: str | None = None
) -> Source:
    """Read probabilities and labels; x are the probabilities [N, K] as they are.

    pattern: the columns' names with a star in the place of the class, such as "p_*"; in an npz the
        arrays' names, or that of one array [N, K] without a star.
    label, id_column: as in `read`; an empty label, or -1, is none. The columns beside are what is
        shown of a row.
    """
    path = Path(source)
    if not path.is_file() or table_kind(path) not in KINDS:
        raise BadInput(
            f"{source} is no file of probabilities; give a csv, tsv, parquet or npz file"
        )
    options = ReadOptions(label=label, labelled=True, id_column=id_column)
    if table_kind(path) == ".npz":
        frame, probs, names = _arrays(path, pattern)
        texts = partial(own_texts, frame)
    else:
        frame, probs, names = load_table(path, options), None, None
        texts = partial(file_texts, path)
    if not len(frame):
        raise BadInput(f"There are no rows in {path}.")
    given, _ = label_columns(list(frame.columns), options, str(path))
    assert given is not None  # label_columns refuses
    rest, what = frame.drop(columns=[given]), f"the labels of {path}"
    columns: list[Any] = []
    if probs is None:
        columns, classes = matching(list(rest.columns), pattern, path)
        probs = _numbers(rest[columns], path)
    else:
        classes = names or [str(k) for k in range(probs.shape[1])]
    labels = frame[given].to_numpy()
    if names and labels.dtype.kind in "iu":
        y = renumber(labels, names, None, what, clean=True)
    else:
        y, _ = encode(labels, classes, what=what, clean=True)
    rest = rest.drop(columns=columns)
    ids, notes = id_column_of(rest, id_column, path)
    shown = [str(c) for c in rest.columns if c != ids] or [str(c) for c in columns]
    notes.append(f"{len(classes)} classes: {shorten_list(classes)}")
    notes.append(f"shown of a row: {shorten_list(shown) or 'nothing'}; labels: {given}")
    return Source(
        Data(torch.from_numpy(probs), y, len(classes), names=tuple(classes)),
        Schema(classes, [len(classes)], label=given, id_column=ids),
        notes=[*options.notes, *notes],
        ids=None if ids is None else texts([ids], None)[ids].tolist(),
        texts=(lambda rows: texts(shown, rows)) if shown else None,
    )


def matching(
    names: Sequence[Any], pattern: str, path: Path, option: str = "--probabilities"
) -> tuple[list[Any], list[str]]:
    """The columns that fit the pattern, and their classes: what the star stands for."""
    if pattern.count("*") != 1:
        raise BadInput(
            f"{option} {pattern!r} must have one star, in the place of the class's name, "
            "as in 'p_*'"
        )
    before, _, after = pattern.partition("*")
    wanted = re.compile(f"{re.escape(before)}(.+){re.escape(after)}", re.DOTALL)
    found = {name: hit[1] for name in names if (hit := wanted.fullmatch(str(name)))}
    if not found:
        raise BadInput(
            f"no column of {path} is called {pattern}; its columns: "
            f"{shorten_list(map(str, names), 20)}"
        )
    if len(found) < 2:
        raise BadInput(f"one column of {path} is called {pattern}; an audit needs two classes")
    return list(found), list(found.values())


def _numbers(frame: pd.DataFrame, path: Path) -> np.ndarray:
    parts = []
    for name in frame.columns:
        numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64)
        check_column(numbers, name, path, shown=frame[name].iloc)
        parts.append(numbers)
    probs = np.stack(parts, 1)
    check_sums(probs, path)
    return probs


def check_column(
    numbers: np.ndarray, name: Any, path: Path, first: int = 0, shown: Any = None
) -> None:
    """Refuse what is no probability. first: the first row's number; shown: what stands there."""
    bad = np.flatnonzero(~np.isfinite(numbers) | (numbers < 0))
    if bad.size:
        there = (numbers if shown is None else shown)[bad[0]]
        raise BadInput(
            f"There is no probability in {which_rows(bad + first)} of column {name!r} of {path} "
            f"(but {there})."
        )


def check_sums(probs: np.ndarray, path: Path, first: int = 0) -> None:
    """Refuse rows that do not sum to 1."""
    total = probs.sum(1, dtype=np.float64)
    far = np.flatnonzero(np.abs(total - 1) > 0.01)
    if far.size:
        raise BadInput(
            f"The probabilities in {which_rows(far + first)} of {path} do not sum to 1 (but to "
            f"{total[far[0]]:.3g}); give those of all classes."
        )


def _arrays(path: Path, pattern: str) -> tuple[pd.DataFrame, np.ndarray | None, list[str] | None]:
    """The arrays [N] of an npz as a table; the array [N, K] of that name, if any; the names."""
    parts = load_npz(path)
    own = parts.pop("names", None)
    names = None if own is None else [class_name(each, str(path)) for each in own.reshape(-1)]
    if len({len(part) if part.ndim else 0 for part in parts.values()}) != 1:
        raise BadInput(f"the arrays of {path} differ in length; give one entry a row in each")
    flat = pd.DataFrame({name: part for name, part in parts.items() if part.ndim == 1})
    if pattern not in parts or parts[pattern].ndim != 2:
        return flat, None, names
    k = parts[pattern].shape[1]
    if names and len(names) != k:
        raise BadInput(f"{path} has {len(names)} names for {k} columns of {pattern!r}")
    return flat, _numbers(pd.DataFrame(parts[pattern]), path), names


def id_column_of(rest: pd.DataFrame, named: str | None, path: Path) -> tuple[str | None, list[str]]:
    """The column that names the rows, and a note where it was found without being named."""
    if named == NONE:
        return None, []
    if named is not None:
        if named not in rest.columns:
            raise BadInput(
                f"There is no id column {named!r} in {path}; its other columns: "
                f"{shorten_list(map(str, rest.columns), 20) or 'none'}."
            )
        return named, []
    found = find_ids(rest, all_may_be=True)
    if not found:
        return None, []
    return found[0], [f"column {found[0]!r} of {path} differs in every row: taken as an id"]
