"""Rows that are like no other: far from their neighbours in feature space, whatever their label."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .inputs import Array
from .nearest import Nearest

FAR_OUT = 3.0  # times the middle half's width beyond it, on a log scale (Tukey's "far out")


class Outliers(NamedTuple):
    """A score in [0, 1) of each row, 0: as near to others as most are; and which are far out."""

    score: Array
    flagged: NDArray[np.bool_]


def find_outliers(near: Nearest) -> Outliers:
    """By the mean distance to the nearest rows, compared with that of all rows."""
    distance = near.distance.mean(1)
    usual = float(np.median(distance))
    if usual <= 0:  # most rows have copies
        return Outliers(np.zeros(len(distance)), np.zeros(len(distance), dtype=bool))
    with np.errstate(divide="ignore"):
        far = np.log(distance / usual)
    low, high = np.quantile(far[np.isfinite(far)], [0.25, 0.75])
    score = np.clip(1 - np.exp(-far), 0, None)
    return Outliers(score, far > high + FAR_OUT * max(high - low, 1e-6))
