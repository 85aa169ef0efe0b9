"""Importance reweighting: each loss times p_y / (p @ T)_y. Liu & Tao, TPAMI 2016, eq. 8.

Fidelity: the weight is detached and clipped, as in the code of T-Revision, which made this the
baseline that tables report; as there, the network goes on from the one that estimated T (see
`forward` for the estimate).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..losses import ce
from ..method import register
from ..transition import reweight
from .forward import Forward


@register("reweight")
@dataclass(eq=False, repr=False)
class Reweight(Forward):
    """Cross-entropy, weighted by how much likelier the label is clean than observed."""

    afresh: ClassVar[bool] = False
    clip: float = 10.0  # the largest weight

    ranges = "clip > 0"

    def corrected(self, log_p: Tensor, T: Tensor, y: Tensor) -> Tensor:
        return reweight(log_p.detach(), T, y, self.clip) * ce(log_p, y)
