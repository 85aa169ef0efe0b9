"""Peer loss: punish agreement with a random label. Liu and Guo, ICML 2020, eq. 3.

Fidelity: CE(f(x_i), y_i) - alpha CE(f(x_j), y_k) with j and k drawn anew in each batch; alpha rises
from 0 after a warm-up of plain cross-entropy, for from the start it keeps the network from
learning anything (the paper tunes alpha; its deep experiments warm up too). The paper wants a
bounded loss; cross-entropy is not, so the subtracted term is held below 10.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import mean, peer_loss
from ..method import Method, register, view
from ._shared import ramp_up


@register("peer_loss")
@dataclass(eq=False, repr=False)
class PeerLoss(Method):
    alpha: float = 1.0  # weight of the random pairs
    warm_up: float = 0.1  # share of training before alpha begins to rise
    ramp: float = 0.3  # share of training that the rise takes

    ranges = "alpha >= 0, 0 <= warm_up <= 1, 0 <= ramp <= 1"
    renamed = {"warmup": "warm_up"}

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        alpha = self.alpha * ramp_up(step, self.ramp, start=self.warm_up)
        return mean(peer_loss(self.net(x), y, alpha, generator=step.generator), y)
