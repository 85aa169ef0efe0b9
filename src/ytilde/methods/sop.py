"""Sparse over-parametrisation: learn each label's error beside the network. Liu et al., ICML 2022.

Fidelity: eq. 5-7. The network and u learn from cross-entropy of p + U - V, u and v from the squared
error with the hard prediction, each by plain SGD at a constant rate of its own. That step touches
the rows of the batch alone, so u and v are buffers and their gradient is taken here, not by the
engine, which would hold a dense [N, K] gradient. The rates are the paper's for CIFAR-10: batches of
128 (a mean loss) and 120 epochs. Errors grow exponentially from 1e-8, so in half the epochs they
would not leave it; the rates are therefore scaled with 120 / epochs and do not depend on the batch
size, and the paper's setting gives the paper's rates. CIFAR-100: lr_u 1, lr_v 10.

Memory: N (K + 1) float32 numbers, 4.8 GB for 1.2 million rows of 1000 classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Batch, Spec, StepInfo
from ..losses import mean, sop
from ..method import Method, register

BATCH_SIZE, EPOCHS = 128, 120  # that the paper's rates of u and v belong to


@register("sop")
@dataclass(eq=False, repr=False)
class SOP(Method):
    lr_u: float = 10.0  # learning rate of u, how much of the given label is wrong
    lr_v: float = 10.0  # learning rate of v, how much each other class is missing
    init: float = 1e-8  # standard deviation of u and v at first; at exactly 0 nothing would move

    ranges = "lr_u >= 0, lr_v >= 0, init > 0"
    pixels = False

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.u: Tensor
        self.v: Tensor
        for name, width in (("u", 1), ("v", spec.num_classes)):
            start = torch.randn(spec.num_train, width, generator=spec.generator)
            self.register_buffer(name, self.init * start)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        return self.fitted(self.net(step.augment(batch.x)), batch, step)

    def fitted(self, logits: Tensor, batch: Batch, step: StepInfo) -> Tensor:
        """The network's loss with the errors so far; then one step of the errors."""
        u, v = self.u[batch.index], self.v[batch.index]
        nll, _ = sop(logits, batch.y, u, v)
        with torch.enable_grad():
            u, v = u.requires_grad_(), v.requires_grad_()
            total = torch.stack(sop(logits.detach(), batch.y, u, v)).sum()
            slope_u, slope_v = torch.autograd.grad(total, (u, v))
        scale = EPOCHS / step.epochs / BATCH_SIZE
        self.u.index_add_(0, batch.index, slope_u, alpha=-scale * self.lr_u)
        self.v.index_add_(0, batch.index, slope_v, alpha=-scale * self.lr_v)
        return mean(nll, batch.y)
