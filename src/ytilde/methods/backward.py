"""Backward correction: the losses times the inverse of T. Patrini et al., CVPR 2017, theorem 1.

Fidelity: the paper's loss, unbiased for the clean one, by solving with T instead of inverting it.
It is unbounded below, and a nearly singular T blows it up: a given T like that is refused, and an
estimated one is mixed with the identity until it can be inverted. T is estimated as in `forward`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Spec
from ..method import register
from ..transition import backward_loss, check_invertible
from .forward import Forward


@register("backward")
@dataclass(eq=False, repr=False)
class Backward(Forward):
    """Forward with the other correction."""

    condition: float = 20.0  # the largest condition number of an estimated T

    ranges = "condition >= 1"

    def build(self, spec: Spec) -> None:
        super().build(spec)
        check_invertible(self.matrix)

    def corrected(self, log_p: Tensor, T: Tensor, y: Tensor) -> Tensor:
        return backward_loss(log_p, T, y)

    def matrix_of(self, probs: Tensor, y: Tensor) -> Tensor:
        T = super().matrix_of(probs, y)
        eye = torch.eye(len(T), device=T.device)
        mixtures = torch.stack([torch.lerp(T, eye, 0.1 * step) for step in range(11)])
        usable = torch.linalg.cond(mixtures.double()) <= self.condition
        return mixtures[usable.long().argmax()]  # the first one; the identity always is
