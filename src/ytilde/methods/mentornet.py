"""MentorNet with a predefined mentor: weights from the size of the loss. Jiang et al., ICML 2018.

Fidelity: the mentor that is itself a learnt network is not here; the papers' tables use these two.
self_paced (as in Collier et al., 2020): eq. 5's weights clip(1 - (loss - lam1) / lam2, 0, 1),
1[loss <= lam1] at lam2 = 0, with lam1 the moving average (decay 0.9) of the batch's
(1 - rate)-quantile, weights 1 in the warm-up. lam1 starts at the first quantile: the original
starts at 0, which gives weight 0 to everything for many steps. small_loss (CausalNL's authors'
code): lam1 is the largest of the batch's floor(R n) smallest losses, R falling as in co-teaching
during the warm-up, and two networks that never meet are averaged. Both divide the weighted sum by
the batch's size.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import mean
from ..method import Method, register, view
from ..selection import keep_schedule, pace_threshold, self_paced, small_loss
from ._shared import auto_rate


@register("mentornet")
@dataclass(eq=False, repr=False)
class MentorNet(Method):
    rate: float | str = "auto"  # share of wrong labels; auto: estimated from the noisy data alone
    mentor: Literal["self_paced", "small_loss"] = "self_paced"  # one network, or two, averaged
    lam2: float = 0.0  # how softly weights fall beyond the threshold; 0 = at once
    warm_up: float = 0.05  # share of training before the mentor is fully at work

    ranges = "0 <= rate < 1, lam2 >= 0, 0 <= warm_up <= 1"
    renamed = {"burn_in": "warm_up"}

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net() if self.mentor == "small_loss" else None
        self.noise_rate: Tensor
        self.register_buffer("noise_rate", torch.zeros(()))
        self.threshold: Tensor  # lam1 of each network
        self.register_buffer("threshold", torch.full((2 if self.peer else 1,), torch.nan))

    def fit(self, data: Data, trainer: Trainer) -> None:
        self.noise_rate.fill_(auto_rate(self.rate, self.net, data, trainer))
        super().fit(data, trainer)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        total = self.paced(self.net.nll(x, y), y, step, self.threshold[0])
        if self.peer is None:
            return total
        return total + self.paced(self.peer.nll(x, y), y, step, self.threshold[1])

    def paced(self, nll: Tensor, y: Tensor, step: StepInfo, threshold: Tensor) -> Tensor:
        """The mean of weight * nll; moves the threshold, a view of the buffer."""
        early = step.progress < self.warm_up
        if self.mentor == "self_paced":
            threshold.copy_(pace_threshold(threshold, nll, self.noise_rate, y))
        else:
            keep = keep_schedule(step.epoch, step.epochs, self.noise_rate, self.warm_up)
            kept = small_loss(nll, keep, y) > 0
            threshold.copy_(torch.where(kept, nll.detach(), -torch.inf).max())
            early = torch.zeros_like(early)
        weights = self_paced(nll, threshold, self.lam2)
        return mean(torch.where(early, torch.ones_like(weights), weights) * nll, y)

    def predict_proba(self, x: Tensor) -> Tensor:
        p = self.net.log_probs(x).exp()
        return p if self.peer is None else (p + self.peer.log_probs(x).exp()) / 2
