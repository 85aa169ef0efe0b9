"""T from noisy probabilities: anchor points, Dual-T, the confident joint."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data import IGNORE
from .corrections import noisy_posterior
from .matrices import _count, _normalise_rows

PERCENTILE = 97.0  # of P(y = i | x) over all rows, where an anchor point is taken


def anchor_rows(pred_probs: Tensor, percentile: float | str | None = "auto") -> Tensor:
    """The row of each class's anchor point, [K], from noisy probabilities [N, K].

    The largest probability of class i below its percentile (the top is where the network
    overfits); None: the largest of all. "auto" is as published, 97 for few classes and the
    largest for many (all rows of one of 100 classes are among the top 1 %), but leaves out at
    most half of the rows that are predicted to be of a class: a rare one is not skipped.
    """
    if percentile is None or (percentile == "auto" and _many(pred_probs.shape[1])):
        return pred_probs.argmax(0)
    if percentile == "auto":
        return _below(pred_probs, PERCENTILE, spare_rare=True)
    return _below(pred_probs, float(percentile))


def _below(pred_probs: Tensor, level: float, spare_rare: bool = False) -> Tensor:
    """The row of the largest probability below the percentile of each column, [K]."""
    n, k = pred_probs.shape
    rank = torch.full((k,), max(math.ceil(level / 100 * (n - 1)), 1), device=pred_probs.device)
    if spare_rare:
        rank = rank.maximum(n - pred_probs.argmax(-1).bincount(minlength=k) // 2)
    return pred_probs.argsort(0).gather(0, rank[None] - 1)[0]


def anchor_sets(pred_probs: Tensor, percentile: float | str, sets: int) -> Tensor:
    """Several anchor points of each class, [A, K]: percentiles from this one to 99, evenly.

    "auto" as in `anchor_rows`; with many classes the rows of the A largest probabilities.
    """
    auto = percentile == "auto"
    if auto and _many(pred_probs.shape[1]):
        places = torch.arange(sets, device=pred_probs.device).clamp(max=len(pred_probs) - 1)
        return pred_probs.argsort(0, descending=True)[places]
    levels = torch.linspace(PERCENTILE if auto else float(percentile), 99, sets).tolist()
    return torch.stack([_below(pred_probs, level, spare_rare=auto) for level in levels])


def _many(num_classes: int) -> bool:
    """Are there so many classes that PERCENTILE leaves out more than half of an average one?"""
    return num_classes * (1 - PERCENTILE / 100) > 0.5


def anchor(pred_probs: Tensor, percentile: float | str | None = "auto") -> Tensor:
    """T by anchor points (Patrini et al., CVPR 2017): T[i] = noisy posterior of one.

    pred_probs [N, K] of un-augmented inputs; estimate early or out of fold, for a network that
    has learnt the wrong labels by heart gives T = I. The input is left as it is: the authors'
    code zeroes the top of column i in place and so spoils the rows of later classes.
    """
    return _normalise_rows(pred_probs[anchor_rows(pred_probs, percentile)])


def dual(pred_probs: Tensor, y: Tensor, T_anchor: Tensor) -> Tensor:
    """Dual-T (Yao et al., NeurIPS 2020): T = T_anchor @ P(y | predicted class).

    The second factor is counted. A class that is never predicted keeps its identity row (the
    authors' code: zeros, so that rows of T do not sum to one).
    """
    seen = y != IGNORE
    counts = _count(pred_probs.argmax(-1)[seen], y[seen], pred_probs.shape[-1])
    return _normalise_rows(noisy_posterior(T_anchor, _normalise_rows(counts.to(T_anchor))))


class ConfidentJoint(NamedTuple):
    """T [K, K]; joint [K, K], joint[i, j] = P(clean = i, y = j); rate, the expected noise."""

    T: Tensor
    joint: Tensor
    rate: Tensor


def confident_joint(pred_probs: Tensor, y: Tensor) -> ConfidentJoint:
    """Confident learning (Northcutt et al., JAIR 2021), from out-of-fold [N, K], y [N].

    An example counts for the likeliest class whose probability reaches that class's mean among
    the examples that carry its label; each label's counts are scaled to how often it occurs.
    cleanlab's joint is the transpose: its rows are the given labels.
    """
    seen = y != IGNORE
    p, y, k = pred_probs[seen].double(), y[seen], pred_probs.shape[-1]
    labels = F.one_hot(y, k).double()
    total = labels.sum(0)
    threshold = torch.where(total > 0, (labels * p).sum(0) / total.clamp_min(1), torch.inf)
    confident = p >= threshold - 1e-6  # a class of equal probabilities reaches its own mean
    best = p.where(confident, -torch.inf).argmax(-1)
    sure = confident.any(-1)
    by_label = _normalise_rows(_count(y[sure], best[sure], k).double())  # [label, clean]
    joint = (by_label * total[:, None] / total.sum()).T.contiguous()
    T = _normalise_rows(joint)
    out = (T, joint, 1 - joint.trace())
    return ConfidentJoint(*(t.to(pred_probs.dtype) for t in out))
