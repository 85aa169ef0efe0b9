"""Rows that are nearly the same, and those of them that carry different labels.

Two rows are near-duplicates where they are so close, compared with the next ten neighbours, that
chance alone would make about one such pair in two data sets of this size. What chance does depends
on the dimension in which the rows really lie, which is estimated from the first two neighbours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ..data import IGNORE
from .inputs import Labels
from .nearest import Nearest

BY_CHANCE = 0.5  # pairs of a data set that chance alone may make
CLOSEST = 0.1  # of the distance to the tenth neighbour, at most
LEAST_SCALE = 0.01  # of the usual distance: a set of many copies has no other neighbours
MOST_COPIES = 10  # equal rows; more are a value that recurs, such as an empty text,
USUAL = 3  # unless the usual row has a third as many
CHANCE = 2  # columns in which the row most like another differs, where equal rows are chance
LOOKED_AT = (200, 2000)  # rows, and others that they are compared with


class Duplicates(NamedTuple):
    """Of each row its nearest near-duplicate, or -1; the number of its set, or -1; and whether the
    labels of the set differ."""

    of: NDArray[np.int64]
    group: NDArray[np.int64]
    conflict: NDArray[np.bool_]


def find_duplicates(x: NDArray[Any], y: Labels, near: Nearest) -> Duplicates:
    """Near-duplicates among rows x [N, D] with labels y [N]; of many rows, only equal ones.

    near: their nearest rows, in x or in what was made of it.
    """
    n = len(x)
    first, second, of = _equal(x)
    if near.whole and near.rows.shape[1] >= 3:
        close = near.distance <= _threshold(near)[:, None]
        at, place = np.nonzero(close)
        first = np.concatenate([first, at])
        second = np.concatenate([second, near.rows[at, place]])
        some = close[:, 0]
        of[some] = near.rows[some, 0]
    pairs = coo_matrix((np.ones(len(first)), (first, second)), (n, n))
    _, group = connected_components(pairs, directed=False)
    size = np.bincount(group)
    known = y != IGNORE
    low = np.full(len(size), np.iinfo(np.int64).max)
    high = np.full(len(size), -1)
    np.minimum.at(low, group[known], y[known])
    np.maximum.at(high, group[known], y[known])
    conflict = (high > low)[group] & (size[group] > 1) & known
    return Duplicates(of, np.where(size[group] > 1, group, -1), conflict)


def copies(x: NDArray[Any]) -> NDArray[np.int64]:
    """Of each row [N, D] the first that it is a copy of, or itself.

    Equal rows are no copies where a few values make rows equal by chance.
    """
    x, rows = x.reshape(len(x), -1), np.arange(len(x))
    first = first_equal(x)
    size = np.bincount(first, minlength=len(x))
    most = max(MOST_COPIES, USUAL * np.median(size[size > 0]))
    together = np.where(size[first] <= most, first, rows)
    later = int((first != rows).sum())
    if later in (0, len(x) - 1) or _by_chance(x[size > 0], len(x), later):
        return rows
    return together


def _by_chance(x: NDArray[Any], n: int, later: int) -> bool:
    """Can chance have made `later` of n rows equal to one before? x: the different rows [S, D].

    Not if a column is so fine (its values lie so close) that it alone has next to no equal pairs;
    nor if the different row that is most like a row differs in more than a column or two (two of an
    encoded category).
    """
    for column in x.T:
        values = np.unique(column).astype(np.float64)
        if len(values) > 1:
            places = (values[-1] - values[0]) / np.diff(values).min()
            if n**2 / (2 * places) < 0.1 * later:
                return False
    draw = np.random.default_rng(0)
    some, others = (x[draw.permutation(len(x))[:number]] for number in LOOKED_AT)
    differ = np.array([(row != others).sum(1) for row in some])
    nearest = np.where(differ > 0, differ, x.shape[1]).min(1)
    return bool(np.median(nearest) <= CHANCE)


def first_equal(x: NDArray[Any]) -> NDArray[np.int64]:
    """Of each row [N, D] the first that equals it."""
    content = (hash(row.tobytes()) for row in x + 0)  # + 0: no -0.0, which equals 0.0
    _, first, inverse = np.unique(
        np.fromiter(content, np.int64, len(x)), return_index=True, return_inverse=True
    )
    return first[inverse]


def _equal(x: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray]:
    """Pairs of equal rows, each with the first of its kind; and for each row another one, or -1."""
    rows, first = np.arange(len(x)), first_equal(x)
    later = rows[first != rows]
    of = np.full(len(x), -1)
    of[later] = first[later]
    heads, place = np.unique(first[later], return_index=True)
    of[heads] = later[place]  # that of the first is the second
    return later, first[later], of


def _threshold(near: Nearest) -> NDArray[np.float64]:
    """The distance up to which a neighbour of each row is its near-duplicate.

    Of k neighbours at random in d dimensions the share of the k-th distance that the first has is
    below t with probability (k - 1) t^d, nearly.
    """
    distance = near.distance
    n, k = distance.shape
    # Facco et al. 2017: the ratio of the first two tells the dimension; that of the k-th and the
    # one half way too, where near-duplicates are so many that they are the first two
    dimension = max(
        np.log(ratio) / max(_median_log(distance[:, far], distance[:, close]), 1e-3)
        for ratio, close, far in ((2, 0, 1), (k / max(k // 2, 1), k // 2 - 1, k - 1))
        if far > close >= 0
    )
    share = min(CLOSEST, (BY_CHANCE / (n * (k - 1))) ** (1 / max(dimension, 1e-3)))
    scale = np.maximum(distance[:, -1], LEAST_SCALE * np.median(distance[:, -1]))
    return share * scale


def _median_log(far: NDArray[np.float64], close: NDArray[np.float64]) -> float:
    """The median of log(far / close) where both are positive numbers; 0 where none are."""
    kept = (close > 0) & np.isfinite(far)
    return float(np.median(np.log(far[kept] / close[kept]))) if kept.any() else 0.0
