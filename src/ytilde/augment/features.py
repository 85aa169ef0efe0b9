"""Views of features [B, D]."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .transform import Augment, Pair


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


class GaussianNoise(Augment):
    """Noise on features [B, D] like `Jitter`'s, drawn at once.

    Normal quantiles of uniforms would cost five times as much, and nearly all of a step where
    features are thousands. Labels stay where they are.
    """

    def __init__(self, std: float, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        self.std, self.scale = std, scale

    def __call__(self, x, y=None, *, generator):  # type: ignore[no-untyped-def,override]
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=torch.float32)
        x = x + (self.std * self.scale * noise).to(x.dtype)
        return x if y is None else (x, y)
