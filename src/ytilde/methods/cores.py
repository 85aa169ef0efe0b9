"""CORES: confidence-regularised cross-entropy with a sample sieve. Cheng et al., ICLR 2021.

Fidelity: the paper's regulariser (eq. 3) with a uniform prior of the noisy labels, and its dynamic
sample sieve: an example is left out while its label fits worse than the mean over all classes
(the regulariser stands on both sides of the paper's inequality and cancels). beta is 0 for 10 of
100 epochs, then rises to 2 in 30, and the sieve starts at epoch 30: here fractions. The second
phase (CORES^2*: consistency training on what the sieve left out) is not part of it. Each
subtracted -log p is held below 10, for the difference has no lower bound.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import IGNORE, Batch, StepInfo
from ..losses import ce, cores, soft_ce, weighted_mean
from ..method import Method, register, view
from ._shared import ramp_up


@register("cores")
@dataclass(eq=False, repr=False)
class Cores(Method):
    beta: float = 2.0  # weight of the regulariser, which rewards confident predictions
    warm_up: float = 0.1  # share of training before beta begins to rise
    ramp: float = 0.3  # share of training that the rise takes
    sieve: float = 0.3  # share of training after which examples are left out

    ranges = "beta >= 0, 0 <= warm_up <= 1, 0 <= ramp <= 1, 0 <= sieve <= 1"
    renamed = {"warmup": "warm_up"}

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        logits = self.net(x)
        beta = self.beta * ramp_up(step, self.ramp, start=self.warm_up)
        with torch.no_grad():
            over_classes = soft_ce(logits, torch.full_like(logits, 1 / logits.shape[-1]))
            fits = (ce(logits, y) <= over_classes) | (step.progress < self.sieve)
            kept = fits & (y != IGNORE)
        nll = cores(logits, y, beta)
        return weighted_mean(nll, kept.to(nll.dtype))
