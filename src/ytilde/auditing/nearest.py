"""The nearest rows of every row in feature space, with their distances."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..encoders.neighbours import neighbours
from .inputs import Array, chunks

NEIGHBOURS = 10
REFERENCE = 20_000  # rows that are compared with: of more, a random sample


class Nearest(NamedTuple):
    """Rows [N, k], the nearest first, and how far they are; whole: all rows were compared with."""

    rows: NDArray[np.int64]
    distance: Array
    whole: bool


def nearest(x: NDArray[np.float32]) -> Nearest:
    """The nearest rows of x [N, D] by Euclidean distance, never the row itself."""
    n = len(x)
    most = int(min(REFERENCE, max(2_000, 4e9 / n)))
    whole = n <= most
    sample = np.random.default_rng(0).choice(n, min(n, most), replace=False)
    keys = np.arange(n) if whole else np.sort(sample)
    z = torch.from_numpy(np.ascontiguousarray(x))
    z = z - z.mean(0)
    # |a - b|^2 = |a|^2 - 2 (a . b - |b|^2 / 2), so one more column makes it an inner product
    near_keys = torch.cat([z[keys], -0.5 * z[keys].square().sum(1, keepdim=True)], 1)
    queries = torch.cat([z, torch.ones(n, 1)], 1)
    k = min(NEIGHBOURS, len(keys) - 1)
    rows = keys[neighbours(queries, near_keys, min(k + 2, len(keys))).numpy()]
    distance = np.empty(rows.shape)
    for part in chunks(n, rows.shape[1] * x.shape[1]):  # exactly: the inner products round
        distance[part] = np.linalg.norm(
            x[part, None].astype(np.float64) - x[rows[part]].astype(np.float64), axis=-1
        )
    distance[rows == np.arange(n)[:, None]] = np.inf
    order = np.argsort(distance, axis=1, kind="stable")[:, :k]
    return Nearest(
        np.take_along_axis(rows, order, 1), np.take_along_axis(distance, order, 1), whole
    )
