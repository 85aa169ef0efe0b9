"""Co-teaching: two networks choose small-loss examples for each other. Han et al., NeurIPS 2018.

Fidelity: algorithm 1. Both networks see the same view of the same batch, each learns from the
floor(R n) examples with the smallest losses of the other, and R falls linearly from 1 to 1 - rate
within T_k = 10 of 200 epochs (here a fraction of training), c = 1. The loss is the mean over the
chosen; the authors' code divides that mean by their number once more, which Adam does not feel and
a sum of losses would. They train with Adam at 1e-3 and without augmentation: a matter of the
recipe. The prediction is network 1's. Paper 000's baselines report the mean of both networks'
accuracies, which differs from it by chance alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import weighted_mean
from ..method import Method, register, view
from ..selection import co_teaching, keep_schedule
from ._shared import auto_rate


@register("co_teaching")
@dataclass(eq=False, repr=False)
class CoTeaching(Method):
    rate: float | str = "auto"  # share of wrong labels; auto: estimated from the noisy data alone
    warm_up: float = 0.05  # share of training in which the kept share falls from 1 to 1 - rate

    ranges = "0 <= rate < 1, 0 <= warm_up <= 1"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.noise_rate: Tensor
        self.register_buffer("noise_rate", torch.zeros(()))

    def fit(self, data: Data, trainer: Trainer) -> None:
        self.noise_rate.fill_(auto_rate(self.rate, self.net, data, trainer))
        super().fit(data, trainer)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        nll, peer_nll = self.net.nll(x, y), self.peer.nll(x, y)
        keep = keep_schedule(step.epoch, step.epochs, self.noise_rate, self.warm_up)
        weights, peer_weights = co_teaching(nll, peer_nll, keep, y)
        return weighted_mean(nll, weights) + weighted_mean(peer_nll, peer_weights)
