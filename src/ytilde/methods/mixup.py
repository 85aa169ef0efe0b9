"""mixup: train on random convex combinations of two examples. Zhang et al., ICLR 2018, eq. 1.

Fidelity: one lam ~ Beta(alpha, alpha) a batch and partners from the same batch, as in the authors'
code (the paper draws a lam for each pair). alpha = 1 is their CIFAR setting; for heavy label noise
the paper's table 2 also tries 2, 8 and 32. Pixel labels: the losses of both label maps are mixed.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import ce, mean, mixup
from ..method import Method, register, view


@register("mixup")
@dataclass(eq=False, repr=False)
class Mixup(Method):
    alpha: float = 1.0  # of Beta(alpha, alpha): small is hardly mixed, large is half and half

    ranges = "alpha > 0"

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        mixed, y, other, lam = mixup(x, y, self.alpha, generator=step.generator)
        logits = self.net(mixed)
        return lam * mean(ce(logits, y), y) + (1 - lam) * mean(ce(logits, other), other)
