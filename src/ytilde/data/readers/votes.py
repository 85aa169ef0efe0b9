"""Votes of several annotators: long tables (item, annotator, label) and matrices with gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadInput, plural, sentence, shorten_list, which_rows
from ...files import check_no_stream
from ..ids import own_text, own_texts
from ..votes import Votes
from .convert import as_array
from .labels import _sorted_classes, encode
from .separators import TABLES, table_kind
from .tables import MISSING, readable_table
from .texts import file_texts

MANY = 20  # classes that one annotator alone might have voted for
COLUMNS = {  # what the columns of a long table are called; crowd-kit's names come first
    "item": ("task", "item", "example", "item_id", "task_id"),
    "annotator": ("worker", "annotator", "rater", "performer", "annotator_id", "worker_id"),
    "label": ("label", "vote", "answer"),
}
GAPS = {*MISSING, "-1"}  # cells of a matrix in which there is no vote


def read_votes(
    source: Any,
    *,
    item: str | None = None,
    annotator: str | None = None,
    label: str | None = None,
    names: Sequence[str] | None = None,
    what: str | None = None,
) -> Votes:
    """Votes from a csv, tsv or parquet file, a DataFrame, or a matrix [items, annotators].

    A table with columns of items, annotators and labels has a row for each vote; any other one
    has a row for each item and a column for each annotator, where -1 or nothing is no vote.

    Args:
        source: a path, a DataFrame, or an array; or Votes, which are given back.
        item: the column of items; None: the one called task or item.
        annotator: the column of annotators; None: the one called worker or annotator.
        label: the column of labels; None: the one called label.
        names: the classes in label order; None: the labels that there are.
        what: what messages call the source.

    Returns:
        The votes; items and annotators are known by their texts.

    Example:
        >>> read_votes(np.array([[0, 1, -1], [1, 1, 0]])).per_item
        array([2, 3])
        >>> table = pd.DataFrame({"task": [7, 7], "worker": ["Al", "Bo"], "label": ["cat", "dog"]})
        >>> read_votes(table).items, read_votes(table).names
        (['7'], ['cat', 'dog'])
    """
    if isinstance(source, Votes):
        return source
    what = what or (str(source) if isinstance(source, str | Path) else "the annotations")
    named = {"item": item, "annotator": annotator, "label": label}
    if isinstance(source, str | Path):
        frame = _load(Path(source))
    elif isinstance(source, pd.DataFrame):
        frame = source
    else:
        return _matrix(_array(source, what), None, names, what)
    columns = _long_columns(list(map(str, frame.columns)), named, what)
    if columns is None:
        votes = _table_matrix(frame, isinstance(source, pd.DataFrame), names, what)
        _check_common_classes(votes, what)
        return votes
    texts = own_texts(frame, columns)
    who, by, said = (texts[name].to_numpy(object) for name in columns)
    return _long(who, by, said, names, what)


def _check_common_classes(votes: Votes, what: str) -> None:
    """Refuse a matrix with a column of many values that no other one has: of ids, or of numbers."""
    said = np.zeros((len(votes.annotators), len(votes.names)), dtype=bool)
    said[votes.annotator, votes.label] = True
    alone = (said & (said.sum(0) == 1)).sum(1)
    for who, own in enumerate(alone.tolist()):
        if own > MANY and own == said[who].sum():
            raise BadInput(
                f"Column {votes.annotators[who]!r} of {what} has {own} values that no other "
                "column has, so they are no votes; name the columns of items, annotators and "
                "labels with --item, --annotator and --label."
            )


def _load(path: Path) -> pd.DataFrame:
    """Every cell as it is written: an item called 007 keeps its name."""
    if not path.is_file():
        check_no_stream(path)
        raise BadInput(f"There is no file {str(path)!r} with annotations.")
    if table_kind(path) not in TABLES:
        raise BadInput(f"{path} is no table; give votes as a csv, tsv or parquet file.")
    return readable_table(path, partial(file_texts, path, None, None))


def _long_columns(columns: list[str], named: dict[str, str | None], what: str) -> list[str] | None:
    """The columns of items, annotators and labels; None: the table is a matrix."""
    found: list[str] = []
    for role, usual in COLUMNS.items():
        name = named[role] or next((c for c in usual if c in columns and c not in found), None)
        if name is not None and name not in columns:
            raise BadInput(
                f"There is no {role} column {name!r} in {what}; its columns: "
                f"{shorten_list(columns, 20)}."
            )
        if name is not None:
            found.append(name)
    if len(found) == len(COLUMNS):
        if len(set(found)) < len(found):
            raise BadInput(f"The columns of items, annotators and labels of {what} must differ.")
        return found
    if any(named.values()) or len(found) == 2:
        raise BadInput(
            f"{sentence(what)} has the columns {shorten_list(columns, 20)}; name those of items, "
            "annotators and labels with --item, --annotator and --label."
        )
    return None


def _long(
    items: np.ndarray, annotators: np.ndarray, labels: np.ndarray, names: Any, what: str
) -> Votes:
    for values, role in ((items, "item"), (annotators, "annotator")):
        if (empty := np.flatnonzero(values == "")).size:
            raise BadInput(f"There is no {role} in {which_rows(empty)} of {what}; fill it in.")
    labels = np.array([_label_text(label) for label in labels], dtype=object)
    skipped = np.isin(labels, ("", "NaN", "nan", "None"))
    notes = []
    if skipped.any():
        votes = plural(int(skipped.sum()), "row")
        notes.append(f"{votes} of {what} without a label: taken as no vote")
    items, annotators, labels = (part[~skipped] for part in (items, annotators, labels))
    item, called = pd.factorize(pd.Series(items, dtype=object))
    return _votes(item, [str(name) for name in called], annotators, labels, names, notes, what)


def _table_matrix(frame: pd.DataFrame, indexed: bool, names: Any, what: str) -> Votes:
    """A row an item; what it is called: the index of a DataFrame, or a first column of ids."""
    frame = frame.rename(columns=str)
    texts = own_texts(frame).reset_index(drop=True)
    items = [own_text(name) for name in frame.index]
    first = next(iter(texts.columns), "")
    if first.lower() in ("id", *COLUMNS["item"]):
        items = texts.pop(first).tolist()
    elif not indexed:
        items = [str(row) for row in range(len(texts))]
    if not texts.shape[1]:
        raise BadInput(f"There is no column of an annotator in {what}.")
    if len(set(items)) < len(items):
        raise BadInput(f"The items of {what} are not all different; give each a row of its own.")
    return _matrix(texts.to_numpy(object), list(texts.columns), names, what, items)


def _array(source: Any, what: str) -> np.ndarray:
    array = as_array(source, what)
    if array.ndim != 2 or not array.size:
        raise BadInput(
            f"{sentence(what)} must be a table with columns task, worker and label, or a matrix "
            f"[items, annotators], not an array of shape {array.shape}."
        )
    return array


def _matrix(
    cells: np.ndarray,
    annotators: list[str] | None,
    names: Any,
    what: str,
    items: list[str] | None = None,
) -> Votes:
    texts = np.array([_label_text(cell) for cell in cells.flat], dtype=object).reshape(cells.shape)
    given = ~np.isin(texts, list(GAPS))
    item, place = np.nonzero(given)
    called = annotators or [str(column) for column in range(cells.shape[1])]
    items = items or [str(row) for row in range(len(cells))]
    who = np.array(called, dtype=object)[place]
    return _votes(item, items, who, texts[given], names, [], what, called)


def _label_text(cell: Any) -> str:
    """A label as a text; whole numbers that pandas made floats of, for their gaps, as such."""
    text = own_text(cell)
    return text.partition(".")[0] if re.fullmatch(r"-?\d+\.0+", text) else text


def _votes(
    item: np.ndarray,
    items: list[str],
    annotators: np.ndarray,
    labels: np.ndarray,
    names: Any,
    notes: list[str],
    what: str,
    order: list[str] | None = None,
) -> Votes:
    if not len(labels):
        raise BadInput(f"There is no vote in {what}.")
    voters = set(annotators)
    called = (
        _sorted_classes(voters) if order is None else [name for name in order if name in voters]
    )
    if order is not None and (idle := len(order) - len(called)):
        notes = [*notes, f"{plural(idle, 'annotator')} of {what} without a vote left out"]
    place = {name: number for number, name in enumerate(called)}
    label, classes = encode(labels, names, what=f"the labels of {what}")
    if len(classes) < 2:
        raise BadInput(f"All votes of {what} are alike; a consensus needs two classes or more.")
    annotator = np.array([place[name] for name in annotators], dtype=np.int64)
    votes = Votes(item.astype(np.int64), annotator, label.numpy(), items, called, classes, notes)
    votes.check_items(what)
    twice = len(votes) - len(np.unique(votes.item * len(called) + annotator))
    if twice:
        votes.notes.append(
            f"{plural(twice, 'vote')} of {what} by an annotator who had voted on the item before: "
            "each counts"
        )
    return votes
