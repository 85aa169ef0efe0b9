"""Views of features [B, D]."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .transform import Pair


@dataclass(frozen=True)
class Jitter:
    """Gaussian noise on features [B, D], of `std` times their `scale`.

    scale: a number or [D], as the standard deviations of raw features, on the inputs' device.
    """

    std: float
    draws: int  # D: the number of features
    scale: Tensor | float = field(default=1.0, compare=False)

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        tiny = 2.0**-24  # uniforms start at 0, whose normal quantile is -inf
        noise = torch.special.ndtri(u.clamp(tiny, 1 - tiny)).T
        return x + self.std * (self.scale * noise).to(x.dtype), y
