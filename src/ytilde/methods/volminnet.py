"""VolMinNet: T of smallest volume, learnt with the classifier. Li et al., ICML 2021, eq. 8.

Fidelity: the authors' parametrisation (sigmoids, diagonal 1, rows normalised) and lam; T starts
with one half on the diagonal (two thirds for two classes), near their starts for 10 and 100. It has
its own optimiser, Adam 0.01 without decay, as their code does for MNIST and CIFAR-100 (plain SGD
with the same rate for CIFAR-10). With `T=` this is forward correction with that T.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data import Batch, Spec, StepInfo
from ..losses import mean
from ..method import Method, register, view
from ..transition import SigmoidT, forward_nll, forward_nll_log, validate_transition, volume


@register("volminnet")
@dataclass(eq=False, repr=False)
class VolMinNet(Method):
    """Forward likelihood plus lam log |det T|."""

    T: Any = None  # known transition matrix [K, K]: nested list, array, or path to .npy/.csv
    lam: float = 1e-4  # weight of the volume
    t_lr: float = 0.01  # Adam's rate for T

    ranges = "lam >= 0, t_lr >= 0"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        if self.T is None:
            self.learnt = SigmoidT(spec.num_classes)
        else:
            self.matrix: Tensor
            self.register_buffer("matrix", validate_transition(self.T, spec.num_classes))

    def param_groups(self) -> list[Any]:
        groups: list[Any] = list(self.net.parameters())
        if self.T is None:
            own = {"lr": self.t_lr, "optimizer": "adam", "weight_decay": 0.0}
            groups.append({"params": list(self.learnt.parameters())} | own)
        return groups

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        log_p = self.net.log_probs(x)
        if self.T is not None:
            return mean(forward_nll(log_p, self.matrix, y), y)
        log_T = self.learnt.log_T()
        return mean(forward_nll_log(log_p, log_T, y), y) + self.lam * volume(log_T.exp())

    def transition(self, batch: Batch) -> Tensor:
        return self.matrix if self.T is not None else self.learnt.T()
