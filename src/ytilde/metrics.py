"""Numbers that judge probabilities, rankings and label maps: tensors or arrays in, floats out.

`probs` are [..., K] with the class axis last, `y` has the leading axes; label -1 is left out. A
number that no example defines is NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .data import IGNORE, BadInput

Array = NDArray[np.float64]
ArrayLike = Tensor | np.ndarray | list

__all__ = [
    "Confusion",
    "Reliability",
    "accuracy",
    "adaptive_ece",
    "auroc",
    "average_precision",
    "brier",
    "calibration_error",
    "ece",
    "f1",
    "miou",
    "nll",
    "precision_at_k",
    "reliability",
]


def accuracy(probs: ArrayLike, y: ArrayLike) -> float:
    """The share of labels that are the most probable class."""
    p, label = _labelled(probs, y)
    return _mean(p.argmax(-1) == label)


def nll(probs: ArrayLike, y: ArrayLike) -> float:
    """Mean -log p[y]; a probability of zero counts as float32's smallest, so it stays finite."""
    p, label = _labelled(probs, y)
    given = p[np.arange(len(p)), label]
    return _mean(-np.log(np.maximum(given, np.finfo(np.float32).tiny)))


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """Mean squared distance of the probabilities to the one-hot label, summed over classes."""
    p, label = _labelled(probs, y)
    given = p[np.arange(len(p)), label]
    return _mean((p**2).sum(-1) - 2 * given + 1)


class Reliability(NamedTuple):
    """A reliability curve: per bin that is not empty, what was promised and what came true."""

    confidence: Array  # mean promised probability
    accuracy: Array  # share that came true
    size: Array  # examples in the bin


def reliability(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> Reliability:
    """The curve of any promised probability [...] against whether it came true [...].

    Bins have equal width on [0, 1], or hold equally many examples when `adaptive`.
    """
    c, hit = _scored(confidence, correct)
    if adaptive:
        bin_of = np.empty(len(c), dtype=np.int64)
        bin_of[np.argsort(c, kind="stable")] = np.arange(len(c)) * bins // max(len(c), 1)
    else:
        # Bins are closed above, (a, b], as Guo et al. (2017, eq. 2) have them; 0 joins the first.
        bin_of = np.clip(np.ceil(c * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(bin_of, minlength=bins).astype(np.float64)
    used = count > 0
    mean = [np.bincount(bin_of, v, minlength=bins)[used] / count[used] for v in (c, hit)]
    return Reliability(mean[0], mean[1], count[used])


def calibration_error(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> float:
    """Expected calibration error of any promised probability: Guo et al. (2017), eq. 3."""
    curve = reliability(confidence, correct, bins=bins, adaptive=adaptive)
    gap = np.abs(curve.confidence - curve.accuracy)
    return float((curve.size * gap).sum() / curve.size.sum()) if curve.size.size else np.nan


def ece(probs: ArrayLike, y: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error of the most probable class, bins of equal width."""
    p, label = _labelled(probs, y)
    return calibration_error(p.max(-1), p.argmax(-1) == label, bins=bins)


def adaptive_ece(probs: ArrayLike, y: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error of the most probable class, bins of equally many examples."""
    p, label = _labelled(probs, y)
    return calibration_error(p.max(-1), p.argmax(-1) == label, bins=bins, adaptive=True)


def auroc(score: ArrayLike, positive: ArrayLike) -> float:
    """The chance that a positive scores above a negative, ties counted half (Mann-Whitney)."""
    from scipy.stats import rankdata  # here, as scipy takes a while to import

    s, hit = _scored(score, positive)
    n_pos, n_neg = int(hit.sum()), int((~hit).sum())
    if n_pos == 0 or n_neg == 0:
        return float("nan")
    return float((rankdata(s)[hit].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def average_precision(score: ArrayLike, positive: ArrayLike) -> float:
    """Precision averaged over the recall steps; examples that tie enter together."""
    s, hit = _scored(score, positive)
    if not hit.any():
        return float("nan")
    order = np.argsort(-s, kind="stable")
    last = np.append(np.diff(s[order]) != 0, True)  # the last example of each tie
    found = np.cumsum(hit[order])[last]
    taken = np.flatnonzero(last) + 1
    return float((np.diff(found, prepend=0) * found / taken).sum() / hit.sum())


def precision_at_k(score: ArrayLike, positive: ArrayLike, k: int) -> float:
    """The share of positives among the k highest scores; ties fall in the order given."""
    s, hit = _scored(score, positive)
    return _mean(hit[np.argsort(-s, kind="stable")[:k]])


def f1(predicted: ArrayLike, positive: ArrayLike) -> float:
    """Harmonic mean of precision and recall of a yes/no decision; 0 when nothing is found."""
    said, hit = _scored(predicted, positive)
    said = said.astype(bool)
    total = int(said.sum() + hit.sum())
    return 2 * int((said & hit).sum()) / total if total else float("nan")


class Confusion:
    """Counts[given, predicted] over a stream of batches; for label maps too big to hold."""

    def __init__(self, num_classes: int) -> None:
        self.counts = np.zeros((num_classes, num_classes), dtype=np.int64)

    @classmethod
    def of(cls, counts: ArrayLike) -> Confusion:
        """From the K * K counts themselves."""
        flat = _numpy(counts).astype(np.int64).ravel()
        made = cls(math.isqrt(flat.size))
        made.counts += flat.reshape(made.counts.shape)
        return made

    def update(self, predicted: ArrayLike, y: ArrayLike) -> Confusion:
        """Adds a batch of predicted labels (not probabilities)."""
        k = len(self.counts)
        given, said = _numpy(y).ravel(), _numpy(predicted).ravel()
        said, given = said[given != IGNORE], given[given != IGNORE]
        self.counts += np.bincount(given * k + said, minlength=k * k).reshape(k, k)
        return self

    def iou(self) -> Array:
        """Intersection over union of every class, [K]; NaN for a class never seen nor said."""
        hit = np.diag(self.counts).astype(np.float64)
        union = self.counts.sum(0) + self.counts.sum(1) - hit
        return np.divide(hit, union, out=np.full(len(hit), np.nan), where=union > 0)

    def miou(self) -> float:
        return float(np.nanmean(self.iou())) if self.counts.any() else float("nan")

    def accuracy(self) -> float:
        total = self.counts.sum()
        return float(np.trace(self.counts) / total) if total else float("nan")


def miou(predicted: ArrayLike, y: ArrayLike, num_classes: int) -> float:
    """Mean intersection over union of predicted labels, over the classes that occur."""
    return Confusion(num_classes).update(predicted, y).miou()


def _numpy(values: ArrayLike) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def _labelled(probs: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [M, K] and labels [M] of the examples that have a label."""
    p, label = _numpy(probs), _numpy(y)
    if p.shape[:-1] != label.shape:
        raise BadInput(f"Probabilities of shape {p.shape} do not fit labels of {label.shape}.")
    known = label != IGNORE
    return p[known].astype(np.float64), label[known].astype(np.int64)


def _scored(score: ArrayLike, positive: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    s, hit = _numpy(score).ravel(), _numpy(positive).ravel()
    if s.shape != hit.shape:
        raise BadInput(f"There are {s.size} scores but {hit.size} truths.")
    return s[hit != IGNORE].astype(np.float64), hit[hit != IGNORE].astype(bool)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if values.size else float("nan")
