"""p_wrong, set right by the rows that somebody checked.

logit p' = a + b logit p with b > 0: the order of the rows stays. With few checked rows a stays near
0 and b near 1. What was checked is known: p_wrong 0 or 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data import IGNORE
from .checked import DRAWN, NO_CLASS, Checked
from .inputs import Array, Labels
from .verdict import Verdict, expit, log_odds, with_p_wrong

LESS_SURE, SURER = 1.0, 0.25  # of log b on either side of 0: models are too sure, seldom too modest
SUREST = 100.0  # larger logits tell no more


def recalibrate(verdict: Verdict, y: Labels, checked: Checked) -> Verdict:
    """The verdict on rows with the labels y, after these were checked."""
    known = checked.truth != IGNORE
    if not known.any():
        return verdict
    logit = log_odds(verdict.p_wrong, verdict.quality)
    weight = np.where(checked.role == DRAWN, 1 / np.clip(checked.probability, 1e-9, 1), 1.0)
    wrong = (checked.truth != y)[known]
    shift, slope = fit(logit[known], wrong, weight[known])
    logit = shift + slope * logit
    p_wrong, quality = expit(logit), expit(-logit)
    p_wrong[known], quality[known] = wrong, ~wrong
    verdict = with_p_wrong(verdict, y, p_wrong, quality)
    verdict = verdict._replace(rates=np.append(verdict.rates, p_wrong.mean()))
    return _known(verdict, checked.truth, known)


def fit(logit: Array, wrong: NDArray[np.bool_], weight: Array) -> tuple[float, float]:
    """a and b, by the likelihood of what was found and a prior around 0 and 1.

    weight: one over the probability of being drawn. Together the rows count as many as equally
    likely ones would that tell as much (Kish, 1965).
    """
    from scipy.optimize import minimize  # here, as scipy takes a while to import

    weight = weight * weight.sum() / (weight**2).sum()
    x, sign = np.clip(logit, -SUREST, SUREST), np.where(wrong, 1.0, -1.0)

    def cost(at: Array) -> float:
        a, log_b = at
        slope = log_b / (SURER if log_b > 0 else LESS_SURE)
        prior = (a**2 + slope**2) / 2  # a has standard deviation 1 before anything was checked
        loss = np.logaddexp(0, -sign * (a + np.exp(np.clip(log_b, -20, 20)) * x))
        return float(weight @ loss + prior)

    a, log_b = minimize(cost, np.zeros(2), method="Nelder-Mead", options={"maxiter": 600}).x
    return float(a), float(np.exp(np.clip(log_b, -20, 20)))


def _known(verdict: Verdict, truth: Labels, known: NDArray[np.bool_]) -> Verdict:
    """The checked rows' true labels in the place of suggestions.

    A bad item keeps a suggestion, whose probability is 0.
    """
    is_named = known & (truth != NO_CLASS)
    predicted = np.where(is_named, truth, verdict.predicted)
    freed = known & (verdict.runner_up == predicted)  # the truth was the runner-up
    runner_up = np.where(freed, verdict.predicted, verdict.runner_up)
    return verdict._replace(
        predicted=predicted,
        predicted_prob=np.where(known, is_named, verdict.predicted_prob),
        runner_up=runner_up,
        runner_up_prob=np.where(known, 0.0, verdict.runner_up_prob),
    )
