"""Dual-T: T as a product of two matrices, each easier to estimate. Yao et al., NeurIPS 2020, eq. 3.

Fidelity: the paper's T = T_club T_spade; the first factor by anchor points of the warmed-up
network, the second counted over the training labels. A class that is never predicted keeps the
identity's row (the authors' code: a row of zeros). The paper feeds T to several corrections; here
it is `forward`.
"""

from dataclasses import dataclass

from torch import Tensor

from ..method import register
from ..transition import dual
from .forward import Forward


@register("dual_t")
@dataclass(eq=False, repr=False)
class DualT(Forward):
    """Forward with the dual estimate of T."""

    def matrix_of(self, probs: Tensor, y: Tensor) -> Tensor:
        return dual(probs, y, super().matrix_of(probs, y))
