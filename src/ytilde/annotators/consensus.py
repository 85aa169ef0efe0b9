"""Consensus of votes: majority, Dawid and Skene's model, and its one-coin form. float64, no inputs.

The model (Dawid and Skene, 1979): the truth of an item is class k with probability prior_k, and
annotator a calls it j with probability T_a[k, j], independently of the other annotators. EM finds
the maximum of sum_i log sum_k prior_k prod_(a, j) T_a[k, j] over the votes (a, j) of item i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.votes import Votes
from ..errors import BadInput, unknown_name_message

Array = NDArray[np.float64]
FLOOR = 1e-10  # of a count or a prior: an annotator may be wrong for the first time


class Consensus(NamedTuple):
    """What the votes say.

    probs: P(clean = k | votes) of every item, [N, K]. prior: [K]. matrices: T_a[k, j], [A, K, K];
    rows sum to 1.
    """

    probs: Array
    prior: Array
    matrices: Array


def consensus(votes: Votes, method: str = "auto") -> Consensus:
    """By name: see METHODS; "auto" as of `choose`."""
    return METHODS[choose(votes, method)](votes)


def choose(votes: Votes, method: str = "auto") -> str:
    """What "auto" stands for: Dawid-Skene where there are votes enough for a matrix an annotator.

    With fewer than two for each of its entries, on average, it fits the votes too well: in
    benchmarks/crowd.py it is right about 68 % of the items and believes in 87 %; one coin is
    right about 72 % and believes in 73 %.
    """
    if method == "auto":
        few = len(votes) < 2 * len(votes.names) ** 2 * len(votes.annotators)
        return "one_coin" if few else "dawid_skene"
    if method not in METHODS:
        raise BadInput(unknown_name_message("method of consensus", method, ["auto", *METHODS]))
    return method


def majority(votes: Votes) -> Consensus:
    """Each vote counts the same: probs are the shares of the votes, matrices are counted from them.

    Args:
        votes: of all annotators. An item without any has the mean of the others' shares.

    Example:
        >>> votes = Votes(*np.array([[0, 0, 0], [0, 1, 2], [1, 1, 0]]), ["a"], "xyz", ["n", "y"])
        >>> majority(votes).probs.round(2)
        array([[0.33, 0.67]])
    """
    counts, K = count_votes(votes), len(votes.names)
    by_label = counts.reshape(len(votes.annotators), K, -1).sum(0)
    probs = np.asarray(by_label.T) / np.maximum(votes.per_item, 1)[:, None]
    voted = votes.per_item > 0
    if not voted.all():
        probs[~voted] = probs[voted].mean(0) if voted.any() else 1 / K
    return Consensus(probs, probs.mean(0), _matrices(_expected(counts, probs, K), 0.0))


def dawid_skene(
    votes: Votes, *, shrink: float = 0.0, steps: int = 1000, tolerance: float = 1e-7
) -> Consensus:
    """Dawid and Skene's model by EM, from the shares of the votes.

    Args:
        votes: of all annotators.
        shrink: votes that the matrix of all annotators together counts for, in each row of each
            annotator's own; 0 is maximum likelihood.
        steps: of EM at most.
        tolerance: EM stops where a step adds less to the mean log-likelihood of a vote.

    Example:
        >>> label = np.array([0, 0, 1, 1, 1, 0, 0, 0, 1])
        >>> votes = Votes(np.repeat(range(3), 3), np.tile(range(3), 3), label, "abc", "xyz", "01")
        >>> dawid_skene(votes).probs.argmax(1)
        array([0, 1, 0])
    """

    def matrices(expected: Array) -> Array:
        return _matrices(expected, shrink)

    return _em(votes, matrices, steps, tolerance)


def one_coin(votes: Votes, *, steps: int = 1000, tolerance: float = 1e-7) -> Consensus:
    """Dawid and Skene's model with one number an annotator: right with that chance, else anything.

    For votes that are too few for a matrix an annotator. Args as of `dawid_skene`.

    Example:
        >>> label = np.array([0, 0, 1, 1, 1, 0, 0, 0, 1])
        >>> votes = Votes(np.repeat(range(3), 3), np.tile(range(3), 3), label, "abc", "xyz", "01")
        >>> one_coin(votes).probs.argmax(1)
        array([0, 1, 0])
    """
    return _em(votes, _coins, steps, tolerance)


METHODS: dict[str, Callable[[Votes], Consensus]] = {
    "dawid_skene": dawid_skene,
    "majority": majority,
    "one_coin": one_coin,
}


def _em(votes: Votes, fit: Callable[[Array], Array], steps: int, tolerance: float) -> Consensus:
    """fit: from the expected number of each annotator's votes [A, K, K], truth first, to T."""
    counts, K = count_votes(votes), len(votes.names)
    probs, last = majority(votes).probs, -np.inf
    prior, T = probs.mean(0), fit(_expected(counts, probs, K))
    for _ in range(steps):
        probs, likelihood = posterior(counts, T, np.log(np.maximum(prior, FLOOR)))
        prior, T = probs.mean(0), fit(_expected(counts, probs, K))
        now = likelihood.sum() / len(votes)
        if now - last < tolerance:
            break
        last = now
    return Consensus(probs, prior, T)


def posterior(counts: Any, T: Array, log_prior: Array) -> tuple[Array, Array]:
    """P(clean | votes) [N, K] and the log-likelihood of every item's votes [N].

    counts: `count_votes` of the votes. log_prior: [K], or [N, K] where a model knows the items.
    """
    K = T.shape[-1]
    log_T = np.log(np.maximum(T, np.finfo(float).tiny)).transpose(0, 2, 1).reshape(-1, K)
    joint = counts.T @ log_T + log_prior
    top = joint.max(1, keepdims=True)
    scaled = np.exp(joint - top)
    total = scaled.sum(1, keepdims=True)
    return scaled / total, (top + np.log(total))[:, 0]


def expected_votes(votes: Votes, probs: Array) -> Array:
    """Expected number of each annotator's votes [A, truth, label], of truths with these probs."""
    return _expected(count_votes(votes), probs, len(votes.names))


def count_votes(votes: Votes) -> Any:
    """How often each (annotator, label) stands at each item, sparse [A K, N]."""
    from scipy.sparse import csr_array  # here, as scipy takes a while to import

    K, where = len(votes.names), (votes.annotator * len(votes.names) + votes.label, votes.item)
    shape = (len(votes.annotators) * K, len(votes.items))
    return csr_array((np.ones(len(votes)), where), shape=shape)


def _expected(counts: Any, probs: Array, K: int) -> Array:
    """Expected number of votes [A, truth, label]."""
    return (counts @ probs).reshape(-1, K, K).transpose(0, 2, 1)


def _matrices(expected: Array, shrink: float) -> Array:
    """T_a; a label that an annotator never gives has probability 0, unless it is shrunk."""
    used = expected.sum(1, keepdims=True) > 0
    filled = np.where(used, np.maximum(expected, FLOOR), 0.0)
    if shrink:
        filled = expected + shrink * common_matrix(expected)
    total = filled.sum(2, keepdims=True)  # 0 of an annotator without a vote
    out = np.broadcast_to(common_matrix(expected), filled.shape).copy()
    return np.divide(filled, total, out=out, where=total > 0)


def common_matrix(expected: Array) -> Array:
    """The T [K, K] of all annotators together, with one vote more in each row: half of it right."""
    K = expected.shape[-1]
    total = expected.sum(0) + 0.5 * np.eye(K) + 0.5 / K
    return total / total.sum(1, keepdims=True)


def _coins(expected: Array) -> Array:
    K = expected.shape[-1]
    total = expected.sum((1, 2))
    voted = total > 0
    right = np.trace(expected, axis1=1, axis2=2)[voted] / total[voted]
    others = right.mean() if len(right) else 0.5
    rates = np.full(len(total), others)  # who says nothing is taken to be like the others
    rates[voted] = right
    right = np.clip(rates, FLOOR, 1 - FLOOR)[:, None, None]
    return np.where(np.eye(K, dtype=bool), right, (1 - right) / (K - 1))
