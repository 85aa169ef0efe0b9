"""How often each annotator is right, with a 95 % interval that knows the consensus is a guess.

Counting the votes that agree with the consensus takes it for the truth: the interval would be too
narrow, and too high, as each vote has a part in the consensus that it is measured by. So the truths
are drawn with everything else from their posterior, by Gibbs sampling of this model (the likelihood
is that of Hovy et al., NAACL 2013): annotator a knows the answer with chance s_a, and else guesses
by a habit g_a [K] of their own; they are right with chance s_a + (1 - s_a) sum_k prior_k g_a[k].

It has few numbers for each annotator, so that it does not fit the votes too well, and sees through
those who always give the same answer. It takes nobody to be worse than guessing. Annotators who
make the same mistakes on the same items look right to it, as to anybody who sees votes alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.votes import Votes
from .consensus import majority

Array = NDArray[np.float64]
HABIT = 3.0  # guesses of every class that each annotator is believed to have made already
MOST, LEAST = 400, 100  # sweeps of the sampler, with few and with many votes
WORK = 20_000_000  # votes drawn in all, where that is between the two


class Skills(NamedTuple):
    """Of each annotator [A]: the chance to be right, and its 95 % interval."""

    accuracy: Array
    low: Array
    high: Array


def skills(votes: Votes, *, seed: int = 0) -> Skills:
    """How often each annotator is right.

    Args:
        votes: of all annotators.
        seed: of the draws.

    Example:
        >>> item, label = np.repeat(range(30), 3), np.repeat(np.arange(30) % 3, 3)
        >>> label[2::3] = 0
        >>> votes = Votes(item, np.tile(range(3), 30), label, range(30), "abc", "012")
        >>> skills(votes).accuracy.round(1)
        array([0.9, 0.9, 0.4])
    """
    generator, K = np.random.default_rng(seed), len(votes.names)
    n, N, who = votes.per_annotator, len(votes.items), votes.annotator
    cell, guess = votes.item * K + votes.label, who * K + votes.label
    truth = (majority(votes).probs + 1e-6 * generator.random((N, K))).argmax(1)
    knows, habit, draws = np.full(len(n), 0.5), np.full((len(n), K), 1 / K), []
    sweeps = int(np.clip(WORK // max(len(votes), 1), LEAST, MOST))
    for sweep in range(sweeps):
        lucky = (1 - knows)[who] * habit.ravel()[guess]
        right = truth[votes.item] == votes.label
        knew = right & (generator.random(len(votes)) * (knows[who] + lucky) < knows[who])
        known = np.bincount(who, knew, len(n))
        knows = np.clip(generator.beta(known + 0.5, n - known + 0.5), 1e-6, 1 - 1e-6)
        shares = generator.gamma(HABIT + np.bincount(guess, ~knew, len(n) * K).reshape(-1, K))
        habit = np.maximum(shares / shares.sum(1, keepdims=True), 1e-9)
        prior = generator.dirichlet(np.bincount(truth, minlength=K) + 0.5)
        weight = np.log1p((knows / (1 - knows))[who] / habit.ravel()[guess])
        joint = np.bincount(cell, weight, N * K).reshape(N, K) + np.log(np.maximum(prior, 1e-300))
        # the largest after Gumbel noise is a draw of the softmax
        truth = (joint + generator.gumbel(size=joint.shape)).argmax(1)
        if sweep >= sweeps // 4:  # it has forgotten its start
            draws.append(knows + (1 - knows) * (habit @ prior))
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return Skills(np.mean(draws, axis=0), low, high)
