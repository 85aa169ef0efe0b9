"""ELR+: ELR with two networks, averaged weights and mixup. Liu et al., NeurIPS 2020.

Fidelity: each network trains on mixup of labels and of running targets; its targets come from the
weight average of the OTHER network on the unmixed view, and the mean of both weight averages
predicts. Both networks read the same batch here, each with its own view and mixing (the authors
shuffle twice). The weight average starts as a plain mean of the weights so far, so that a short run
is not held at the initial weights (the authors raise its decay over 40,000 steps instead). The
averages see batches in training mode, so batch norm's statistics are their own. ramp: the authors
raise lam over 0.4 of training on CIFAR-100, not on CIFAR-10, whose settings are the defaults. Not
here: with a hundred classes their code multiplies the mixed labels by the running targets.

Memory: twice `elr`'s, and four networks.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import IGNORE, Batch, Spec, StepInfo
from ..losses import elr, mixup, soft_ce
from ..method import Net, register
from ._shared import Memory, ramp_up
from .elr import ELR


@register("elr_plus")
@dataclass(eq=False, repr=False)
class ELRPlus(ELR):
    alpha: float = 1.0  # mixup's Beta(alpha, alpha)
    decay: float = 0.997  # of the weight average that makes the targets and the predictions
    ramp: float = 0.0  # share of training in which lam rises to its full strength

    ranges = "alpha > 0, 0 <= decay < 1, 0 <= ramp <= 1"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.peer = self.new_net()
        self.peer_memory = Memory(spec.num_train, spec.num_classes, self.top_k, self.dtype)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.peer_average = copy.deepcopy(self.peer).requires_grad_(False)
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros(()))

    def param_groups(self) -> list[Any]:
        return [*self.net.parameters(), *self.peer.parameters()]

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        self.move_averages()
        lam = self.lam * self.strength(step)
        first = self.one_loss(batch, step, lam, self.net, self.peer_average, self.memory)
        return first + self.one_loss(batch, step, lam, self.peer, self.average, self.peer_memory)

    def one_loss(
        self, batch: Batch, step: StepInfo, lam: Tensor, net: Net, teacher: Net, memory: Memory
    ) -> Tensor:
        x = step.augment(batch.x)
        with torch.no_grad():
            targets = memory.update(batch.index, teacher(x), self.beta)
        given = batch.y[:, None] == torch.arange(memory.num_classes, device=x.device)
        known = (batch.y != IGNORE).to(targets.dtype)[:, None]
        both = torch.cat([given.to(targets.dtype), targets * known], 1)  # mixed alike
        x, own, other, share = mixup(x, both, self.alpha, generator=step.generator)
        given, targets = (share * own + (1 - share) * other).chunk(2, 1)
        logits = net(x)
        losses = soft_ce(logits, given) + lam * elr(logits, targets)
        return losses.sum() / known.sum().clamp(min=1)

    def strength(self, step: StepInfo) -> Tensor:
        """exp(-5 (1 - t)^2), t the part of the ramp that is done (Laine and Aila, ICLR 2017)."""
        return torch.exp(-5 * (1 - ramp_up(step, self.ramp)) ** 2)

    @torch.no_grad()
    def move_averages(self) -> None:
        """The averages follow the weights that the last step left."""
        self.steps += 1
        part = (1 / self.steps).clamp(min=1 - self.decay)
        for average, net in ((self.average, self.net), (self.peer_average, self.peer)):
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, part)

    def predict_proba(self, x: Tensor) -> Tensor:
        return (self.average.log_probs(x).exp() + self.peer_average.log_probs(x).exp()) / 2
