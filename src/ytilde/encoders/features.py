"""Features that what uses them never trains."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.precision import as_weights
from ..data.types import Spec


class Features(nn.Module):
    """x -> features [B, dim], never trained by what uses them.

    An encoder's, of length one; or, raw, the standardised inputs.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, raw: bool) -> None:
        super().__init__()
        self.register_buffer("mean", spec.mean.clone())
        self.register_buffer("std", spec.std.clone())
        self.backbone = nn.Flatten() if raw else spec.backbone()
        self.raw, self.dim = raw, spec.mean.new_empty(spec.shape).numel() if raw else spec.dim
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Features:
        return super().train(False)  # its batch statistics stay as they are

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(as_weights((x - self.mean) / self.std, self)).float()
        return h if self.raw else F.normalize(h, dim=-1)


class Components(nn.Module):
    """x -> its first principal components [B, dim], of mean squared length one.

    Images of more than `SIDE` pixels a side are averaged down to that first.
    """

    SIDE = 32
    mean: Tensor
    directions: Tensor

    def __init__(self, shape: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.sides = [min(self.SIDE, side) for side in shape[1:]]
        size = math.prod((shape[0], *self.sides))
        self.dim = min(dim, size)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("directions", torch.zeros(size, self.dim))

    def flat(self, x: Tensor) -> Tensor:
        """[B, D]."""
        x = x.float()
        if self.sides:
            height, width = self.sides
            x = F.adaptive_avg_pool2d(x, (height, width))
        return x.flatten(1)

    @staticmethod
    def solve(rows: Tensor, dim: int) -> Tensor:
        """The mean and the scaled directions of the flat rows [N, D]: one tensor [1 + dim, D]."""
        rows = rows.double()
        spread = (rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows)
        values, vectors = torch.linalg.eigh(spread)
        scale = values[-dim:].sum().clamp_min(1e-12).rsqrt()
        return torch.cat([rows.mean(0)[None], scale * vectors[:, -dim:].flip(1).T]).float()

    def take(self, solved: Tensor) -> None:
        self.mean.copy_(solved[0])
        self.directions.copy_(solved[1:].T)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return (self.flat(x) - self.mean) @ self.directions
