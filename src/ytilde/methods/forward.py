"""Forward correction: fit p @ T to the observed labels. Patrini et al., CVPR 2017, theorem 2.

Fidelity: the paper's loss, in log space. T comes from anchor points (its eq. 12-13) of a network
trained early and briefly on the noisy labels: the epoch with the lowest noisy validation loss,
97th percentile instead of the maximum (the maximum above 16 classes, as in the paper for 100; of a
rare class no more than half of the rows predicted so are passed over), un-augmented inputs. The
paper estimates from a fully trained network, which has learnt the wrong labels by heart and gives
T = I. The corrected network starts afresh, as in the paper. With `T=` nothing is estimated and all
epochs are corrected ones.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data import Batch, Data, Spec, StepInfo
from ..engine import Trainer
from ..losses import mean
from ..method import Method, register, view
from ..transition import anchor, forward_nll, validate_transition
from ._shared import stage_epochs, warmed_up


@register("forward")
@dataclass(eq=False, repr=False)
class Forward(Method):
    """Class-level T, given or estimated first; the methods beside it override a step of this."""

    T: Any = None  # known transition matrix [K, K]: nested list, array, or path to .npy/.csv
    warm_up: float = 0.2  # fraction of the epochs spent on estimating T
    percentile: float | str = "auto"  # of P(y = i | x) at anchors; auto: 97 (K > 16: the top)

    ranges = "0 <= warm_up <= 1, 0 < percentile <= 100"

    afresh: ClassVar[bool] = True  # does the corrected network start anew?

    def build(self, spec: Spec) -> None:
        super().build(spec)
        k = spec.num_classes
        self.matrix: Tensor
        T = torch.eye(k) if self.T is None else validate_transition(self.T, k)
        self.register_buffer("matrix", T)

    def fit(self, data: Data, trainer: Trainer) -> None:
        start = {name: value.clone() for name, value in self.net.state_dict().items()}
        spent = 0 if self.T is not None else self.estimate(data, trainer)
        if self.afresh:
            self.net.load_state_dict(start)
        rest = max(1, trainer.recipe.epochs - spent)
        trainer.train("main", self.loss, self.param_groups(), data, epochs=rest)

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(self.corrected(self.net.log_probs(x), self.transition(batch), y), y)

    def corrected(self, log_p: Tensor, T: Tensor, y: Tensor) -> Tensor:
        """The corrected loss of each element, [...]."""
        return forward_nll(log_p, T, y)

    def transition(self, batch: Batch) -> Tensor:
        return self.matrix

    def estimate(self, data: Data, trainer: Trainer) -> int:
        """Put T into `matrix`; returns the epochs spent. Leaves the warmed-up network in `net`."""
        epochs = stage_epochs(trainer.recipe.epochs, self.warm_up)
        probs = warmed_up(self, data, trainer, epochs).flatten(0, -2)
        self.matrix.copy_(self.matrix_of(probs, data.y.flatten().to(probs.device)))
        return epochs

    def matrix_of(self, probs: Tensor, y: Tensor) -> Tensor:
        """T [K, K] from noisy posteriors [N, K] and the labels [N]."""
        return anchor(probs, self.percentile)
