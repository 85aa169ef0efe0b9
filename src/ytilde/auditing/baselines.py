"""What others do: scores of label quality, low = bad, to compare the audit with."""

from __future__ import annotations

import numpy as np
import torch

from ..transition import confident_joint
from .inputs import Array, Labels


def self_confidence(pred_probs: Array, y: Labels) -> Array:
    """The probability of the given label."""
    return np.asarray(pred_probs)[np.arange(len(y)), y]


def margin(pred_probs: Array, y: Labels) -> Array:
    """p[y] minus the largest other probability, moved to [0, 1]."""
    p = np.array(pred_probs, dtype=np.float64)
    at = np.arange(len(p))
    own = p[at, y].copy()
    p[at, y] = -np.inf
    return (own - p.max(1) + 1) / 2


def confident_learning(pred_probs: Array, y: Labels) -> Array:
    """Confident learning, pruned by noise rate (Northcutt et al., 2021, 3.2); below 0.5 = pruned.

    For every given j and true i, the joint's number of rows with the largest p_i - p_j go. The
    margin ranks within the pruned and within the kept.
    """
    p, y = np.asarray(pred_probs, dtype=np.float64), np.asarray(y, dtype=np.int64)
    share = confident_joint(torch.from_numpy(p), torch.from_numpy(y)).joint.numpy()
    joint = np.rint(share * len(y)).astype(np.int64)  # [true, given]
    pruned = np.zeros(len(y), dtype=bool)
    for j in range(p.shape[1]):
        rows = np.flatnonzero(y == j)
        for i in np.flatnonzero(joint[:, j]):
            if i != j:
                gap = p[rows, i] - p[rows, j]
                pruned[rows[np.argsort(-gap, kind="stable")[: joint[i, j]]]] = True
    return margin(p, y) / 2 + np.where(pruned, 0.0, 0.5)


def knn_vote(features: Array, y: Labels, k: int = 10) -> Array:
    """The share of the k nearest other rows (Euclidean) that carry the same label."""
    from sklearn.neighbors import NearestNeighbors

    x, y = np.asarray(features).reshape(len(y), -1), np.asarray(y)
    k = min(k, len(y) - 1)
    near = NearestNeighbors(n_neighbors=k).fit(x).kneighbors(return_distance=False)
    return (y[near] == y[:, None]).mean(1)


def small_loss(pred_probs: Array, y: Labels) -> Array:
    """P(small-loss component) of a two-Gaussian mixture of -log p[y] (DivideMix, sec. 3.1)."""
    from sklearn.mixture import GaussianMixture

    loss = -np.log(np.maximum(self_confidence(pred_probs, y), 1e-12))[:, None]
    loss = (loss - loss.min()) / max(np.ptp(loss), 1e-12)
    mixture = GaussianMixture(2, reg_covar=5e-4, max_iter=100, random_state=0).fit(loss)
    return mixture.predict_proba(loss)[:, mixture.means_.ravel().argmin()]


def aum(margins: Array) -> Array:
    """Area under the margin: Pleiss et al. (2020), eq. 1, squashed to [0, 1].

    margins [epochs, N]: logit of the given label minus the largest other logit, every epoch.
    """
    return 1 / (1 + np.exp(-np.asarray(margins, dtype=np.float64).mean(0)))


BASELINES = {
    "self_confidence": self_confidence,
    "margin": margin,
    "confident_learning": confident_learning,
    "small_loss": small_loss,
}
