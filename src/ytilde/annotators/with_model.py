"""Votes and a model together: the model counts as one more annotator, whose trust is estimated.

The idea of CROWDLAB (Goh et al., 2022), in the model of Dawid and Skene: where that has one prior
for all items, each item has the model's probabilities p(x), sharpened or softened by a temperature:

    P(clean = k | x, votes) ~ p_k(x)^(1 / t) prod_(a, j) T_a[k, j].

EM finds T_a, shrunk to the annotators' common T; t is the best of a grid by the likelihood of the
votes. A model that knows nothing gets a large t and no say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..data.votes import Votes
from .consensus import Array, common_matrix, count_votes, expected_votes, majority, posterior

TEMPERATURES = np.geomspace(0.1, 16.0, 16)
SHRINK = 10.0  # votes that the common T counts for in each row of an annotator's
MODEL = "the model"  # what it is called among the annotators


class Joint(NamedTuple):
    """P(clean | x, votes) [N, K], T_a [A, K, K], and the temperature of the model."""

    probs: Array
    matrices: Array
    temperature: float


def with_model(votes: Votes, model: Array, *, steps: int = 200, tolerance: float = 1e-6) -> Joint:
    """The consensus of the votes and a model.

    Args:
        votes: of all annotators; items are rows of the model's probabilities.
        model: the model's probabilities [N, K], of items that it was not trained on.
        steps: of EM at most.
        tolerance: EM stops where a step adds less to the mean log-likelihood of a vote.

    Example:
        >>> votes = Votes(*np.array([[0, 0, 1], [0, 1, 0], [0, 1, 1]]), "ab", "xy", "01")
        >>> with_model(votes, np.array([[0.9, 0.1], [0.1, 0.9]])).probs.argmax(1)
        array([0, 1])
    """
    log_model = np.log(np.maximum(model, 1e-6))
    powers = [_normalised(log_model / t) for t in TEMPERATURES]
    counts, probs, last = count_votes(votes), majority(votes).probs, -np.inf
    T, best = np.zeros(0), 0
    for _ in range(steps):
        expected = expected_votes(votes, probs)
        T = expected + SHRINK * common_matrix(expected)
        T /= T.sum(2, keepdims=True)
        found = [posterior(counts, T, prior) for prior in powers]
        best = int(np.argmax([likelihood.sum() for _, likelihood in found]))
        probs, likelihood = found[best]
        now = likelihood.sum() / len(votes)
        if now - last < tolerance:
            break
        last = now
    return Joint(probs, T, float(TEMPERATURES[best]))


def add_model(votes: Votes, model: Array) -> Votes:
    """The votes with the model's likeliest class of every item as those of one more annotator."""
    rows = np.arange(len(model))
    return replace(
        votes,
        item=np.concatenate([votes.item, rows]),
        annotator=np.concatenate([votes.annotator, np.full(len(rows), len(votes.annotators))]),
        label=np.concatenate([votes.label, model.argmax(1)]),
        annotators=[*votes.annotators, MODEL],
    )


def _normalised(z: Array) -> Array:
    """log softmax."""
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))
