"""Bi-tempered logistic loss: bounded, with a heavy-tailed softmax. Amid et al., NeurIPS 2019.

Fidelity: the paper's loss (eq. 8) and closed gradient. t1 = 0.8 and t2 = 1.2 are mild: under heavy
noise digits need about t1 = 0.5, t2 = 4, and "auto" chooses from the grid of Englesson et al. (TMLR
2023) by noisy validation accuracy, as they do. The normaliser is found by Newton's method to
rounding, where the authors' five fixed-point steps leave the probabilities off by up to 0.2.
Predictions are the tempered softmax, the distribution that was trained (same argmax).
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import bi_tempered, mean, tempered_softmax
from ..method import Method, register, view


@register("bi_tempered")
@dataclass(eq=False, repr=False)
class BiTempered(Method):
    t1: float | str = 0.8  # below 1 the loss is bounded; 1: logarithmic
    t2: float | str = 1.2  # above 1 the softmax has heavy tails; 1: softmax
    smoothing: float = 0.0  # of the labels, over the classes

    ranges = "0 <= t1 <= 1, t2 > 0, 0 <= smoothing < 1"

    grid = {"t1": (0.5, 0.7, 0.9), "t2": (1.1, 2, 4)}

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        nll = bi_tempered(self.net(x), y, float(self.t1), float(self.t2), self.smoothing)
        return mean(nll, y)

    def predict_proba(self, x: Tensor) -> Tensor:
        return tempered_softmax(self.net(x), float(self.t2))
