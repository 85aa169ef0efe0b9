"""The rows that an audit fits its readings to: all, or of many a sample that is always the same.

A row is in the sample by a hash of its number. So it does not matter in what order rows are seen,
or by whom: the smallest hashes of all parts together are the smallest hashes of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data import IGNORE
from .inputs import Labels
from .readings import Evidence

ROWS = 200_000  # of the sample
NUMBERS = 20_000_000  # and no more probabilities than these, so that many classes fit too
FEWEST = 5_000


def size_of(num_classes: int) -> int:
    """How many rows the sample has where there are more."""
    return min(ROWS, max(FEWEST, NUMBERS // num_classes))


def sampled(evidence: Evidence) -> Evidence:
    """What of the evidence is in the sample."""
    rows, most = evidence.rows, size_of(evidence.p.shape[1])
    if len(rows) <= most:
        return evidence
    keep = np.sort(rows[np.argpartition(hashes(rows), most)[:most]])
    panel = tuple(view[keep] for view in evidence.panel)
    return Evidence(evidence.p[keep], evidence.y[keep], np.arange(most), None, panel)


class Sample(NamedTuple):
    """The sample of some rows, by their numbers."""

    rows: NDArray[np.int64]
    p: np.ndarray
    y: Labels

    @staticmethod
    def of(first: int, p: np.ndarray, y: Labels) -> Sample:
        """Of a block of rows, the first of which has this number; those with a label."""
        known = np.flatnonzero(y != IGNORE)
        return Sample(known + first, p[known], y[known])

    def smallest(self) -> Sample:
        """The rows that are still in the sample when those of other parts come to them."""
        most = size_of(self.p.shape[1])
        if len(self.rows) <= most:
            return self
        keep = np.argpartition(hashes(self.rows), most)[:most]
        return Sample(*(column[keep] for column in self))

    @staticmethod
    def together(parts: Iterable[Sample]) -> Sample:
        """The sample of the rows of all parts."""
        found, held = [], 0
        for part in parts:
            found.append(part)
            held += len(part.rows)
            if held > 2 * size_of(part.p.shape[1]):
                found = [_joined(found).smallest()]
                held = len(found[0].rows)
        return _joined(found).smallest()

    def evidence(self) -> Evidence:
        """What `sampled` finds in all the rows in memory."""
        order = np.argsort(self.rows)
        return Evidence(self.p[order], self.y[order], np.arange(len(order)), None)


def _joined(parts: list[Sample]) -> Sample:
    return Sample(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def hashes(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Of the rows' numbers, all different (the finaliser of splitmix64, Steele et al. 2014)."""
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
