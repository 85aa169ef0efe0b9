"""Symmetric cross-entropy: cross-entropy and its reverse, which is bounded. Wang et al., ICCV 2019.

Fidelity: alpha CE + beta RCE (eq. 7) with log 0 = log 1e-4 as in the paper's experiments. The
defaults are the paper's for ten classes; for CIFAR-100 it has alpha = 6, beta = 0.1.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import mean, symmetric_ce
from ..method import Method, register, view


@register("symmetric_ce")
@dataclass(eq=False, repr=False)
class SymmetricCE(Method):
    alpha: float = 0.1  # weight of cross-entropy: convergence
    beta: float = 1.0  # weight of the reverse: robustness

    ranges = "alpha >= 0, beta >= 0"

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(symmetric_ce(self.net(x), y, self.alpha, self.beta), y)
