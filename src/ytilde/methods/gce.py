"""Generalised cross-entropy (1 - p_y^q) / q. Zhang and Sabuncu, NeurIPS 2018, eq. 6.

Fidelity: the paper's loss and its q = 0.7; its truncated form is `truncated_gce`. "auto" chooses q
from the grid of Englesson et al. (TMLR 2023) by noisy validation accuracy, as they do.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import gce, mean
from ..method import Method, register, view


@register("gce")
@dataclass(eq=False, repr=False)
class GCE(Method):
    q: float | str = 0.7  # in (0, 1]: towards 0 cross-entropy, at 1 half the absolute error

    ranges = "0 < q <= 1"

    grid = {"q": (0.1, 0.3, 0.5, 0.7, 0.9)}

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        return mean(gce(self.net(x), y, float(self.q)), y)
