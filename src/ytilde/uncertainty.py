"""Uncertainty in parts: what more labels cannot settle, and what more data could."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from .data import BadInput
from .estimator import Classifier


class Uncertainty(NamedTuple):
    """In nats, one number a row (or pixel); total = aleatoric + epistemic."""

    aleatoric: NDArray[np.float32]  # the label is not determined by the input
    epistemic: NDArray[np.float32]  # the members do not agree
    total: NDArray[np.float32]


def decompose(members: Sequence[Classifier], X: Any) -> Uncertainty:
    """Entropy of the observed label, split over an ensemble: Depeweg et al., ICML 2018, eq. 8-9.

    Each member averages over its own noise (the aleatoric expectation) first; the ensemble averages
    probabilities outside it: total = H(mean_m p_m), aleatoric = mean_m H(p_m), epistemic = their
    difference, which is >= 0.

    Args:
        members: fitted alike but for their seeds, on the same classes.
        X: the inputs.

    Returns:
        The parts, in nats, one number a row (or pixel).

    Example:
        >>> import numpy as np
        >>> from ytilde import Classifier
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> y = (X[:, 0] > 0).astype(int)
        >>> own = {"backbone": "mlp:width=8,depth=1", "epochs": 2}
        >>> members = [Classifier("ce", random_state=k, **own).fit(X, y) for k in range(2)]
        >>> parts = decompose(members, X)
        >>> np.allclose(parts.total, parts.aleatoric + parts.epistemic, atol=1e-5)
        True
    """
    if not members:
        raise BadInput("an ensemble needs at least one fitted classifier")
    if any(not np.array_equal(m.classes_, members[0].classes_) for m in members):
        raise BadInput("the members of an ensemble must have been fitted on the same classes")
    mean, aleatoric = np.zeros(()), np.zeros(())
    for member in members:
        p = member.noisy_proba(X).astype(np.float64)
        mean, aleatoric = mean + p / len(members), aleatoric + entr(p).sum(-1) / len(members)
    total = np.maximum(entr(mean).sum(-1), aleatoric)  # rounding must not make a part negative
    return Uncertainty(*(part.astype(np.float32) for part in (aleatoric, total - aleatoric, total)))
