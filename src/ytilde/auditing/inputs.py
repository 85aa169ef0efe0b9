"""What an audit is given, checked: probabilities, labels, a transition matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from ..data import IGNORE, BadInput, which_rows
from ..data.readers import as_array, label_array, plain_tensor

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

CHUNK = 1 << 18  # numbers worked on at once, so that memory does not grow with N


def as_numpy(values: np.ndarray | Tensor | pd.DataFrame | Sequence, what: str) -> np.ndarray:
    if isinstance(values, Tensor):
        values = plain_tensor(values, what)
        return (values.float() if values.is_floating_point() else values).numpy()
    return as_array(values, what)


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Parts of so many rows that can be worked on at once."""
    size = max(1, CHUNK // columns)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def check_labels(
    y: Sequence | np.ndarray | Tensor, p: np.ndarray, names: Sequence[str] | None
) -> tuple[Labels, tuple[str, ...] | None]:
    """Checks probabilities and labels; returns class numbers and the classes' names."""
    if p.ndim != 2 or p.shape[1] < 2 or p.dtype.kind not in "iuf":
        raise BadInput(f"pred_probs must be numbers [rows, classes >= 2], not {p.shape}.")
    given = as_numpy(y, "the labels") if isinstance(y, Tensor) else label_array(y, "the labels")
    if given.shape != p.shape[:1] or not given.size:
        raise BadInput(f"There are {given.shape} labels for {len(p)} rows of pred_probs.")
    k = p.shape[1]
    if names is not None and not isinstance(names, Iterable):
        raise BadInput(f"names must hold one name for each class, not be {names!r}.")
    shown = tuple(str(name) for name in names) if names is not None else None
    if shown is not None and len(set(shown)) < len(shown):
        raise BadInput(f"The class names must all be different: {', '.join(shown)}.")
    if given.dtype.kind == "O" and all(isinstance(label, Integral) for label in given):
        # pandas' Int64, or a list that was a column of objects; what int64 cannot hold is no class
        given = np.array([min(max(int(label), -2), k) for label in given])
    if given.dtype.kind not in "iuf":
        if (empty := np.flatnonzero(pd.isna(given))).size:
            raise BadInput(f"There is no label in {which_rows(empty)}; fill it in, or give -1.")
        shown = shown or tuple(sorted({str(label) for label in given}))
        number = {name: i for i, name in enumerate(shown)}
        unknown = next((label for label in given if str(label) not in number), None)
        if unknown is not None:
            raise BadInput(f"The label {str(unknown)!r} is not among the names of the classes.")
        given = np.array([number[str(label)] for label in given])
    if shown is not None and len(shown) != k:
        raise BadInput(
            f"There are {len(shown)} class names but {k} columns of pred_probs; give names=, one "
            "for each column."
        )
    if (given != np.rint(given)).any() or given.min() < IGNORE or given.max() >= k:
        raise BadInput(f"Labels must be classes 0 to {k - 1}, or -1 for none.")
    if (given == IGNORE).all():
        raise BadInput("Every label is -1, so there is nothing to audit.")
    for part in chunks(*p.shape):
        total = p[part].sum(1, dtype=np.float64)
        if not np.isfinite(total).all() or p[part].min() < 0 or np.abs(total - 1).max() > 0.01:
            raise BadInput("Each row of pred_probs must be non-negative and sum to 1.")
    return given.astype(np.int64), shown


def check_transition(transition: np.ndarray | Tensor | None, p: np.ndarray) -> np.ndarray | None:
    """T [K, K] or [N, K, K] whose rows sum to 1, or None."""
    if transition is None:
        return None
    T = as_numpy(transition, "the transition matrix")
    n, k = p.shape
    if T.dtype.kind not in "biuf":
        raise BadInput(f"transition holds {T.dtype} instead of numbers.")
    if T.shape not in ((k, k), (n, k, k)):
        raise BadInput(f"transition has shape {T.shape}, not {(k, k)} or {(n, k, k)}.")
    if not (T.min() >= -1e-6 and np.abs(T.sum(-1) - 1).max() < 0.01):
        raise BadInput(
            "Rows of transition must sum to 1: T[i, j] = P(given j | true i), the transpose of "
            "cleanlab's noise matrix."
        )
    return np.maximum(T, 0) if T.min() < 0 else T


def check_features(features: np.ndarray | Tensor | pd.DataFrame, rows: int) -> np.ndarray:
    """Finite numbers [N, ...] with at least one column."""
    x = as_numpy(features, "the features")
    if x.dtype.kind not in "biuf" or x.ndim < 2 or len(x) != rows or not x.size:
        raise BadInput(f"features must be numbers [{rows} rows, columns], not {x.dtype} {x.shape}.")
    if not np.isfinite(x).all():
        raise BadInput("features hold values that are missing or infinite; fill them in first.")
    return x
