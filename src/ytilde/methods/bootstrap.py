"""Bootstrapping: part of each target is the network's own prediction. Reed et al., ICLR 2015.

`bootstrap_soft` mixes in the probabilities (eq. 6), `bootstrap_hard` the likeliest class (eq. 7).

Fidelity: the paper's targets and its beta, 0.95 and 0.8. The probabilities in a soft target are
differentiated as in the paper (the term is then the entropy); some public codes hold them fixed:
`detach`. Collier et al. (2020) compare with beta = 0.8 "as in the original", which is the hard one.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import bootstrap_hard, bootstrap_soft, mean
from ..method import Method, register, view


@register("bootstrap_soft")
@dataclass(eq=False, repr=False)
class BootstrapSoft(Method):
    """Here its probabilities."""

    beta: float = 0.95  # weight of the given label; the rest is the prediction's
    detach: bool = False  # hold the prediction in the target fixed

    ranges = "0 <= beta <= 1"

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(bootstrap_soft(self.net(x), y, self.beta, self.detach), y)


@register("bootstrap_hard")
@dataclass(eq=False, repr=False)
class BootstrapHard(Method):
    """Here its likeliest class."""

    beta: float = 0.8  # weight of the given label; the rest is the predicted class's

    ranges = "0 <= beta <= 1"

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(bootstrap_hard(self.net(x), y, self.beta), y)
