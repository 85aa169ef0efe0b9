"""Cheap judges beside the model: neighbours, a linear model, a kernel. None of them saw the label.

A model that is wrong at a row is wrong alone, or at least not in the same way as its neighbours'
labels and other models of the inputs; a wrong label has all of them against it. So what they say
of a row, without its own label, tells a weak model from a wrong label (docs/decisions/0018).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import IGNORE
from ..encoders.neighbours import neighbours
from .duplicates import copies
from .inputs import Array, Labels
from .kernel import kernel_scores

NEIGHBOURS = 15
COMPONENTS = 200  # principal components to keep, if there are more features
WIDTH = 5  # of scores: about that of log-probabilities, so that the fit of weights starts well
REFERENCE = 20_000  # labelled rows to use at most; all rows are compared with these
RIDGES = np.geomspace(1e-5, 1, 11)  # times the largest eigenvalue; the best is used


def panel(features: np.ndarray, y: Labels, num_classes: int) -> tuple[Array, ...]:
    """What each judge says of each row without its label: three log-scores [N, K].

    Copies of a row count as one, of the commonest label among them: none may vouch for another.

    Args:
        features: [N, ...], finite numbers.
        y: labels [N]; rows with -1 are judged, but have no say.
        num_classes: K.
    """
    x = np.asarray(features).reshape(len(y), -1)
    first = copies(x)
    heads, which = np.unique(first, return_inverse=True)
    if len(heads) < len(x):
        scores = panel(x[heads], _commonest(y, which, num_classes), num_classes)
        return tuple(each[which] for each in scores)
    x = reduced(x)
    known = np.flatnonzero(y != IGNORE)
    most = min(reference(len(y)), len(known))
    known = np.sort(np.random.default_rng(0).choice(known, most, replace=False))
    return (
        _votes(x, y, known, num_classes),
        _linear(x, y, known, num_classes),
        _kernel(x, y, known, num_classes),
    )


def _commonest(y: Labels, which: NDArray[np.int64], k: int) -> Labels:
    """The commonest label of each set of rows; -1 where none has a label."""
    known = np.flatnonzero(y != IGNORE)
    count = np.zeros((which.max() + 1, k), np.int32)
    np.add.at(count, (which[known], y[known]), 1)
    return np.where(count.any(1), count.argmax(1), IGNORE)


def reference(rows: int) -> int:
    """With how many labelled rows so many are compared: at most, and in 4e9 pairs or 2,000 each."""
    return int(min(REFERENCE, max(2_000, 4e9 / rows)))


def reduced(x: np.ndarray) -> NDArray[np.float32]:
    """Standardised features; their leading principal components, if there are many columns."""
    scale = x.std(0, dtype=np.float64)
    z = ((x - x.mean(0, dtype=np.float64)) / np.where(scale > 0, scale, 1)).astype(np.float32)
    if z.shape[1] <= COMPONENTS:
        return z
    few = z[np.random.default_rng(0).permutation(len(z))[:REFERENCE]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        number = min(COMPONENTS, len(few))
        _, _, directions = torch.pca_lowrank(torch.from_numpy(few), number, center=False)
    z = z @ directions.numpy()
    return z / np.float32(max(float(z[:, 0].std()), 1e-12))  # one scale: small ones stay small


def _votes(x: NDArray[np.float32], y: Labels, asked: NDArray[np.int64], k: int) -> Array:
    """Log of the labels' shares among the nearest rows, plus one vote spread over all classes."""
    number = min(NEIGHBOURS, max(1, len(asked) // 4))
    z = torch.from_numpy(x)
    # |a - b|^2 = |a|^2 - 2 (a . b - |b|^2 / 2), so one more column makes it an inner product
    keys = torch.cat([z[asked], -0.5 * z[asked].square().sum(1, keepdim=True)], 1)
    queries = torch.cat([z, torch.ones(len(z), 1)], 1)
    near = asked[neighbours(queries, keys, min(number + 1, len(asked))).numpy()]
    own = near == np.arange(len(y))[:, None]
    own[:, -1] |= ~own.any(1)  # a row that is not among its nearest: drop the last of them
    votes = np.zeros((len(y), k))
    at, column = np.nonzero(~own)
    np.add.at(votes, (at, y[near[at, column]]), 1.0)
    return np.log((votes + 1 / k) / (votes.sum(1, keepdims=True) + 1))


def _linear(x: NDArray[np.float32], y: Labels, asked: NDArray[np.int64], k: int) -> Array:
    """Scores of a ridge regression to one-hot labels, leaving out the row's own label.

    Leaving out row i changes its score from s to (s - h y) / (1 - h), where h is its leverage, so
    one fit gives the scores of all rows; the ridge with the smallest such error is used.
    """
    z = x[asked].astype(np.float64)
    target = np.zeros((len(asked), k))
    target[np.arange(len(asked)), y[asked]] = 1
    mean, centre = target.mean(0), z.mean(0)
    z, target = z - centre, target - mean
    values, directions = np.linalg.eigh(z.T @ z)
    values = np.maximum(values, 0)
    turned = z @ directions
    moments = turned.T @ target
    best, scores, weights = np.inf, target, moments
    for ridge in RIDGES * max(float(values.max()), 1e-12):
        w = moments / (values + ridge)[:, None]
        leverage = (turned**2 / (values + ridge)).sum(1) + 1 / len(asked)
        keep = np.maximum(1 - leverage, 1e-3)[:, None]
        without = (turned @ w - (1 - keep) * target) / keep
        error = float(((without - target) ** 2).mean())
        if error < best:
            best, scores, weights = error, without, w
    out = (x.astype(np.float64) - centre) @ directions @ weights + mean
    out[asked] = scores + mean
    return WIDTH * out


def _kernel(x: NDArray[np.float32], y: Labels, asked: NDArray[np.int64], k: int) -> Array:
    """The same for kernel ridge regression."""
    z, label, known = (torch.from_numpy(v) for v in (x, y, asked))
    return WIDTH * kernel_scores(z, label, known, k).numpy().astype(np.float64)
