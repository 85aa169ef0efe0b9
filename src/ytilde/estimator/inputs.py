"""What X and y may be: arrays, tensors, tables and images, checked as scikit-learn does."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from ..annotators import consensus
from ..data import BadInput, Data, Rows
from ..data.readers import (
    Schema,
    as_array,
    as_inputs,
    dense,
    label_array,
    read_features,
    read_votes,
)
from ..data.votes import Votes

if TYPE_CHECKING:
    from .classifier import Classifier

KEPT_TYPES = [np.float64, np.float32]  # of a table, until it is known what it needs


def check_training(
    clf: Classifier, X: Any, y: ArrayLike | None
) -> tuple[Rows, NDArray[Any], Schema | None]:
    """The rows, the labels as they were given, and how a table with texts became rows."""
    x: Rows
    schema = None
    if y is not None:
        check_labels(y)
    X, y = as_plain(X, "X"), as_plain(y, "y")
    if _ndim(X) > 2 or is_raw(X):
        given = np.asarray(y)
        if is_raw(X):
            validate_data(clf, X, skip_check_array=True)  # keeps the names of the columns
            found = read_features(X)
            x, schema = found.data.x, found.schema
            for note in found.notes:
                warnings.warn(note)
        else:
            x = as_images(X)
        if given.shape not in ((len(x),), (len(x), *x.shape[2:])):
            raise BadInput(
                f"y must hold one label for each of the {len(x)} rows of X (or for each of "
                f"their pixels), not an array of shape {given.shape}"
            )
        if given.ndim > 1:
            return x, given, schema
    else:
        with _one_sentence():
            table, given = validate_data(clf, X, y, dtype=KEPT_TYPES, ensure_min_samples=2)
        x = as_inputs(table, "X")
        schema = read_features(X).schema if isinstance(X, pd.DataFrame) else None
    with _one_sentence():
        check_classification_targets(given)
    return x, given, schema


class Annotated(NamedTuple):
    """Votes on the rows of X, the classes they name, and the consensus of each row, [N]."""

    votes: Votes
    classes: NDArray[Any]
    consensus: NDArray[Any]

    def beside(self, data: Data) -> Data:
        """The data with the votes."""
        return replace(data, votes=self.votes.padded(), annotators=tuple(self.votes.annotators))


def check_annotations(
    X: Any, y: Any, annotations: Any, classes: NDArray[Any] | None = None
) -> Annotated | None:
    """The votes on the rows of X; None where there are none.

    classes: those that a fitted estimator knows. Labels that are whole numbers are ints.
    """
    if annotations is None:
        return None
    if y is not None:
        raise BadInput("give y, one label a row, or annotations, several, but not both")
    names = None if classes is None else [str(name) for name in classes]
    votes = read_votes(annotations, names=names)
    rows = X.index if isinstance(X, pd.DataFrame) else range(np.shape(X)[0])
    votes = votes.in_order_of([str(row) for row in rows], "X")
    if classes is None:
        whole = all(re.fullmatch(r"0|-?[1-9]\d*", name) for name in votes.names)
        classes = np.array([int(name) if whole else name for name in votes.names])
    return Annotated(votes, classes, classes[consensus(votes).probs.argmax(1)])


def check_inputs(clf: Classifier, X: Any) -> Rows:
    """The rows that a fitted estimator is asked about."""
    if clf.schema_ and isinstance(X, pd.DataFrame):
        found = read_features(as_plain(X, "X"), clf.schema_)
        for note in found.notes:
            warnings.warn(note)
        return found.data.x
    X = as_plain(X, "X")
    if len(clf.shape_) > 1:
        return as_images(X)
    with _one_sentence():
        table = validate_data(clf, X, dtype=KEPT_TYPES, reset=False)
    return as_inputs(table, "X", clf.double_)


def check_weights(sample_weight: ArrayLike | None, n: int) -> Tensor | None:
    """How often each of n rows is drawn; None where all are drawn alike."""
    if sample_weight is None:
        return None
    try:
        weights = torch.from_numpy(np.asarray(sample_weight, dtype=np.float64).copy())
    except (TypeError, ValueError):
        raise BadInput("sample_weight must hold numbers, one for each row of X") from None
    if weights.shape != (n,) or (weights < 0).any() or not weights.isfinite().all():
        raise BadInput(f"sample_weight must hold {n} finite numbers that are not negative")
    if weights.sum() <= 0:
        raise BadInput("sample_weight must not be zero everywhere")
    return weights


def check_groups(groups: Any, n: int) -> Tensor | None:
    """The group of each of n rows, by numbers; None where each is alone."""
    if groups is None:
        return None
    names = as_array(groups, "groups")
    if names.shape != (n,) or pd.isna(names).any():
        raise BadInput(f"groups must hold one name or number for each of the {n} rows of X")
    return torch.from_numpy(pd.factorize(pd.Series(names))[0].astype(np.int64))


def check_labels(y: Any) -> None:
    """Refuse what are no labels, and missing ones."""
    if as_array(y, "the labels y").dtype.kind == "c":
        return  # scikit-learn refuses them, in words that its checks ask for
    labels = label_array(y, "the labels y")
    if labels.ndim == 0:
        raise BadInput(f"y must hold one label for each row of X, not be {y!r}")
    if pd.isna(labels).any():
        raise BadInput("y holds missing labels; fill them in or leave the rows out")
    if labels.dtype.kind in "SO" and any(isinstance(label, bytes) for label in labels.flat):
        raise BadInput("y holds bytes; decode them: [label.decode() for label in y]")


def as_plain(values: Any, what: str) -> Any:
    """Tensors as arrays; what no array can be made of, and tables whose columns share a name, are
    refused."""
    if isinstance(values, pd.DataFrame):
        if not values.columns.is_unique:
            twice = values.columns[values.columns.duplicated()][0]
            raise BadInput(f"{what} has several columns called {twice!r}; rename or remove one")
        return values
    values = dense(values, what) if what == "X" else values
    array = as_array(values, what)
    if what == "X" and array.ndim == 1 and len(array) and isinstance(array[0], str):
        raise BadInput("X holds texts; give them as a column: pd.DataFrame({'text': X})")
    return array if isinstance(values, Tensor) else values


def as_images(X: Any) -> Tensor:
    """[N, C, H, W] images, uint8 or float in [0, 1]; [N, H, W] and [N, H, W, 3] are put right."""
    if _ndim(X) not in (3, 4):
        raise BadInput(f"X must be [N, D] features or [N, C, H, W] images, not {np.shape(X)}")
    return as_inputs(X, "X")


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What scikit-learn finds wrong with an input, as BadInput (which is a ValueError)."""
    try:
        yield
    except ValueError as error:
        raise error if isinstance(error, BadInput) else BadInput(_shorter(str(error))) from error


def _shorter(message: str) -> str:
    """scikit-learn's long messages in a sentence, with the words by which its checks know them."""
    if message.startswith("Input X contains NaN"):
        return (
            "Input X contains NaN: fill these values in, leave their rows out, or give a pandas "
            "DataFrame, whose gaps are treated"
        )
    if message.startswith("Expected 2D array, got 1D array"):
        return (
            "Expected 2D array, got 1D array instead. Reshape your data: X.reshape(-1, 1) is one "
            "feature, X.reshape(1, -1) is one row"
        )
    return message


def is_raw(X: Any) -> bool:
    """Is it a table of more than plain numbers: texts, dates, gaps?"""
    if not isinstance(X, pd.DataFrame):
        return False
    plain = (isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes)
    return not all(plain) or bool(X.isna().any(axis=None))


def _ndim(X: Any) -> int:
    return X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
