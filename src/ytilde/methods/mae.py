"""Mean absolute error |onehot - p| = 2 (1 - p_y), a symmetric loss. Ghosh et al., AAAI 2017.

Fidelity: nothing to choose. Its gradient vanishes where p_y is small, so it underfits many classes
(Zhang and Sabuncu, NeurIPS 2018, section 3.2); `gce` is the way between it and cross-entropy.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import mae, mean
from ..method import Method, register, view


@register("mae")
@dataclass(eq=False, repr=False)
class MAE(Method):
    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(mae(self.net(x), y), y)
