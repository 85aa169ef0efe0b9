"""Two ways to read probabilities against labels: a lenient and a strict one.

Probabilities and labels alone cannot tell a wrong label from a hard example: T = I and a blurred
classifier explain any data. So they are read twice, with the same model and two attitudes:

* lenient: temperature and class-level T by maximum likelihood of the given labels;
* strict: the same, plus the belief that the truth is nearly a function of the input (the entropy
  of the clean posterior costs, as in Grandvalet and Bengio, 2004).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .inputs import Array, Labels, chunks

TEMPERATURES = np.geomspace(0.1, 4.0, 13)
STRICTNESS = 0.5  # what a nat of clean entropy costs in the strict reading
FLOOR = 1e-6  # smallest clean probability before the temperature: nobody is surer than that
FIT_ROWS = 20_000  # rows that the two readings are fitted to; all rows are then judged by them


class Evidence(NamedTuple):
    """What is audited: the labelled rows of p [N, K] and y [N], and T where it was given."""

    p: np.ndarray
    y: Labels
    rows: NDArray[np.int64]
    transition: np.ndarray | None

    def chunks(self) -> Iterator[tuple[slice, Array, Labels, np.ndarray | None]]:
        """Slices of the labelled rows with their normalised probabilities, labels and T."""
        for part in chunks(len(self.rows), self.p.shape[1]):
            at = self.rows[part]
            per_row = self.transition is not None and self.transition.ndim == 3
            t = self.transition[at] if per_row else self.transition  # type: ignore[index]
            yield part, normalised(self.p[at].astype(np.float64)), self.y[at], t


class Reading(NamedTuple):
    """One way to understand the probabilities: clean posterior f = softmax(log(p A^-1) / t)."""

    unmix: Array  # A^-1 [K, K]
    temperature: float
    transition: Array  # [K, K]

    def clean(self, p: Array) -> Array:
        return _tempered(_unmixed(p, self.unmix), self.temperature)


def fit_readings(evidence: Evidence) -> tuple[Reading, Reading]:
    """The lenient and the strict reading, fitted to at most FIT_ROWS rows."""
    rows = evidence.rows
    if len(rows) > FIT_ROWS:
        rows = np.random.default_rng(0).choice(rows, FIT_ROWS, replace=False)
    rows = rows[np.argsort(evidence.y[rows], kind="stable")]  # the EM sums runs of equal labels
    p, y = normalised(evidence.p[rows].astype(np.float64)), evidence.y[rows]
    unmix = np.asarray(np.linalg.pinv(_anchors(p)), dtype=np.float64)
    base = _unmixed(p, unmix)
    T = 0.8 * np.eye(p.shape[1]) + 0.2 / p.shape[1]
    fits = []
    for temperature in TEMPERATURES:
        f = _tempered(base, temperature)
        T, likelihood = _fit_transition(f, y, T)
        entropy = float(-(f * np.log(np.maximum(f, 1e-300))).sum(1).mean())
        fits.append((likelihood, entropy, Reading(unmix, float(temperature), T)))
    lenient = max(fits, key=lambda fit: fit[0])[2]
    strict = max(fits, key=lambda fit: fit[0] - STRICTNESS * fit[1])[2]
    return lenient, strict


def _anchors(p: Array) -> Array:
    """A[i] = mean p over the surer half of the rows predicted i (after Patrini et al., 2017).

    A model of the noisy label is never sure: it says T[i] where the truth is i. A model of the
    clean label says the one-hot, A = I, and nothing is undone.
    """
    k = p.shape[1]
    anchors = np.eye(k)
    predicted = p.argmax(1)
    for i in range(k):
        rows = np.flatnonzero(predicted == i)
        if len(rows) >= 6:
            surest = rows[np.argsort(-p[rows, i], kind="stable")[: len(rows) // 2]]
            anchors[i] = p[surest].mean(0)
    return anchors


def normalised(f: Array) -> Array:
    f /= f.sum(1, keepdims=True)
    return f


def _unmixed(p: Array, unmix: Array) -> Array:
    """p A^-1, at the FLOOR where it is less; there the order of p stays, within 0.01 %.

    Without that, all labels that a sure model contradicts would share one value.
    """
    f = p @ unmix
    with np.errstate(divide="ignore"):
        order = 1e-4 / (1 - 0.1 * np.log(p))  # rises with p: 0 where it is 0, 1e-4 where it is 1
    return normalised(np.where(f > FLOOR, f, FLOOR * (1 - 1e-4 + order)))


def _tempered(f: Array, temperature: float) -> Array:
    z = np.log(f) / temperature
    z -= z.max(1, keepdims=True)
    return normalised(np.exp(z, out=z))


def _fit_transition(f: Array, y: Labels, T: Array, steps: int = 60) -> tuple[Array, float]:
    """EM for T in P(y | x) = sum_i f_i T[i, y]; y is sorted. Returns T and the mean log-lik.

    Half a pseudo-count on the diagonal and half a one spread over each row keep rare classes sane.
    """
    k = f.shape[1]
    prior = 0.5 * np.eye(k) + 0.5 / k
    counts = np.bincount(y, minlength=k)
    present = np.flatnonzero(counts)
    starts = np.searchsorted(y, present)
    last = -np.inf
    for _ in range(steps):
        joint = f * np.repeat(T.T, counts, axis=0)
        given = joint.sum(1)
        likelihood = float(np.log(given).mean())
        if likelihood - last < 1e-6:
            break
        last = likelihood
        joint /= given[:, None]
        expected = prior.copy()
        expected[:, present] += np.add.reduceat(joint, starts, axis=0).T
        T = expected / expected.sum(1, keepdims=True)
    return T, likelihood


def posterior(f: Array, y: Labels, T: np.ndarray) -> Array:
    """P(clean = i | x, y) by Bayes, [N, K]; f itself where T calls the label impossible."""
    column = T.T[y] if T.ndim == 2 else np.take_along_axis(T, y[:, None, None], 2)[..., 0]
    joint = f * column
    total = joint.sum(1, keepdims=True)
    possible = total > 0
    return np.where(possible, joint / np.where(possible, total, 1.0), f)
