"""Heads: features -> a distribution over labels. Class axis last, any leading axes before it.

A head is a plain module for anybody's own loop: `head.nll(features, y).mean()` is a loss,
`head.log_probs(features)` a prediction. Everything here runs in the precision of the head's own
weights (float32) with autocast off.

Layers keep torch's default initialisation whatever the temperature is: the Monte-Carlo heads depend
on mean / tau and scale / tau alone, so tau acts through the initial scale, and an initialisation
that followed tau would undo it. Below tau = 0.1 the softmax starts saturated: lower the rate.
"""

from .head import Head, Softmax
from .heteroscedastic import Heteroscedastic, HetXL
from .logistic_normal import COVARIANCES, Covariance, LogisticNormal
from .sampling import EVAL_SEED, SampledHead
from .upsampled import Upsampled

__all__ = [
    "COVARIANCES",
    "EVAL_SEED",
    "Covariance",
    "Head",
    "HetXL",
    "Heteroscedastic",
    "LogisticNormal",
    "SampledHead",
    "Softmax",
    "Upsampled",
]
