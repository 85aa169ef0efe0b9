"""T to and from the outside: a user's matrix, files, cleanlab's convention, what a table takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data import BadInput

TOLERANCE = 1e-4  # how far a user's row may sum from one: three printed digits often do


def validate_transition(T: Tensor | np.ndarray | Sequence | str | Path, num_classes: int) -> Tensor:
    """A user's T, checked: rows are probabilities that sum to 1.

    Args:
        T: a tensor, array or nested list [K, K], or the path of a .npy or .csv file.
        num_classes: K.

    Returns:
        float32 [K, K], rows summing to 1 exactly.

    Example:
        >>> validate_transition([[0.9, 0.1], [0.2, 0.8]], 2)
        tensor([[0.9000, 0.1000],
                [0.2000, 0.8000]])
    """
    where = f" in {T}" if isinstance(T, str | Path) else ""
    try:
        A = np.asarray(_read(Path(T)) if isinstance(T, str | Path) else _plain(T), dtype=float)
    except (OSError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"T{where} cannot be read as a matrix of numbers: {error}.") from error
    if A.shape != (num_classes, num_classes):
        raise BadInput(
            f"T{where} has shape {A.shape}, but {num_classes} classes need"
            f" ({num_classes}, {num_classes})."
        )
    if not np.isfinite(A).all() or (A < 0).any():
        raise BadInput(f"T{where} has entries that are negative or not finite; give probabilities.")
    off = np.abs(A.sum(1) - 1)
    if off.max() > TOLERANCE:
        row = int(off.argmax())
        transposed = np.abs(A.sum(0) - 1).max() <= TOLERANCE
        hint = "; its columns do, so give the transpose" if transposed else ""
        raise BadInput(
            f"Rows of T{where} must sum to 1 (T[i, j] = P(given j | true i)), but row {row} sums"
            f" to {A[row].sum():.4g}{hint}."
        )
    return torch.from_numpy(A / A.sum(1, keepdims=True)).float()


given = validate_transition  # deprecated: its old name


def _plain(T: Tensor | np.ndarray | Sequence) -> np.ndarray | Sequence:
    return T.detach().cpu().numpy() if isinstance(T, Tensor) else T


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".csv":
        return np.loadtxt(path, delimiter=",", ndmin=2)
    raise BadInput(f"T is read from a .npy or a .csv file, not from {path.name}.")


def to_cleanlab(T: Tensor) -> np.ndarray:
    """cleanlab's noise matrix [K, K], the transpose: entry [s, i] = P(given s | true i).

    There it is the columns that sum to one.
    """
    return T.detach().cpu().numpy().T.copy()


def from_cleanlab(noise_matrix: np.ndarray) -> Tensor:
    """T of cleanlab's noise matrix, whose columns sum to one: the transpose, checked."""
    A = np.asarray(noise_matrix)
    return validate_transition(A.T, len(A))


class Cost(NamedTuple):
    """What a table of matrices takes: bytes, and a sentence to show."""

    bytes: int
    sentence: str


def materialise_cost(num_rows: int, num_classes: int) -> Cost:
    """What one float32 T for every one of N rows takes in memory, to be told before it is made.

    Args:
        num_rows: N.
        num_classes: K.

    Returns:
        The bytes, and a sentence to show.

    Example:
        >>> materialise_cost(50_000, 100).bytes
        2000000000
    """
    size = num_rows * num_classes**2 * 4
    scale = min(max(size.bit_length() - 1, 0) // 10, 4)
    human = f"{size / 1024**scale:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[scale]}"
    return Cost(
        size,
        f"T for {num_rows:,} rows and {num_classes} classes takes {human} as one float32 array;"
        " ask for fewer rows at a time if that is too much.",
    )
