"""Decoupling: two networks learn only where they disagree. Malach and Shalev-Shwartz, 2017.

Fidelity: NeurIPS 2017, algorithm 1: both take the mean loss over the examples of the batch for
which their predicted classes differ, and nothing happens where all agree. The paper recommends to
start from trained networks: here both learn from all examples for a fraction of training first.
The prediction is network 1's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import IGNORE, Batch, Spec, StepInfo
from ..losses import ce, weighted_mean
from ..method import Method, register, view
from ..selection import disagreement


@register("decoupling")
@dataclass(eq=False, repr=False)
class Decoupling(Method):
    warm_up: float = 0.05  # share of training in which both networks learn from all examples

    ranges = "0 <= warm_up <= 1"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        logits, peer_logits = self.net(x), self.peer(x)
        differ = disagreement(logits, peer_logits)
        weights = torch.where(step.progress < self.warm_up, torch.ones_like(differ), differ)
        weights = weights * (y != IGNORE)
        return weighted_mean(ce(logits, y), weights) + weighted_mean(ce(peer_logits, y), weights)
