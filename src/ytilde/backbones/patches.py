"""Features of pictures that need no training of a network: patches of the pictures themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadInput
from .registry import Backbone, Shape, register

DRAWN = 20_000  # patches that the whitening is estimated from
CONTRAST = 0.01  # added to the variance of a patch, so that a flat one stays flat
SMOOTH = 0.1  # of the mean eigenvalue, added to all of them before whitening
THRESHOLD = 0.25  # of a response, in the units of whitened patches


@register("patches")
class Patches(Backbone):
    """Pooled responses to random patches of the pictures; learnt without labels, in seconds.

    Coates and Ng, "Learning feature representations with k-means" (2012), with their finding that
    whitened random patches do nearly as well as k-means. A picture is scaled to `side` pixels; at
    every place its patch, brightness and contrast taken out, is compared with `filters` whitened
    patches of other pictures; what exceeds a threshold, on either side, is averaged over a grid of
    `pool` x `pool` fields. The square root evens out how often and how strongly.
    """

    smallest = 16
    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor
    down: Tensor
    across: Tensor

    def __init__(
        self, shape: Shape, *, filters: int = 128, patch: int = 5, pool: int = 4, side: int = 32
    ) -> None:
        super().__init__()
        places = side - patch + 1
        if places < pool or places % pool:
            raise BadInput(
                f"patches of {patch} pixels have {max(0, places)} places along a side of {side}, "
                f"which a grid of pool={pool} does not divide; try side=32,patch=5,pool=4"
            )
        channels, height, width = shape
        self.patch, self.field, self.dim = patch, places // pool, 2 * filters * pool * pool
        self.register_buffer("weight", torch.zeros(filters, channels, patch, patch))
        self.register_buffer("bias", torch.zeros(filters))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))
        self.register_buffer("down", _scaling(height, side), persistent=False)
        self.register_buffer("across", _scaling(width, side), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = (self.scaled(x.float()) - self.mean) / self.std
            level = F.avg_pool2d(x.mean(1, keepdim=True), self.patch, 1)
            square = F.avg_pool2d(x.square().mean(1, keepdim=True), self.patch, 1)
            contrast = (square - level.square()).clamp(min=0) + CONTRAST
            z = F.conv2d(x, self.weight) / contrast.sqrt() - self.bias[:, None, None]
            sides = (F.relu(z - THRESHOLD), F.relu(-z - THRESHOLD))
            return torch.cat([F.avg_pool2d(t, self.field) for t in sides], 1).sqrt().flatten(1)

    def scaled(self, x: Tensor) -> Tensor:
        """The pictures with `side` pixels a side; those that have them stay as they are."""
        return self.down @ x @ self.across.T if x.shape[-2:] != (len(self.down),) * 2 else x

    @torch.no_grad()
    def learn(self, x: Tensor, generator: torch.Generator) -> None:
        """Choose the patches, and whiten them, from pictures [N, C, H, W] in [0, 1]."""
        x = self.scaled(x.float())
        self.mean.copy_(x.mean())
        self.std.copy_(x.std(correction=0).clamp(min=1e-3))
        x = (x - self.mean) / self.std
        windows = x.unfold(2, self.patch, 1).unfold(3, self.patch, 1)
        ends = (len(x), windows.shape[2], windows.shape[3])
        row, i, j = (torch.randint(0, end, (DRAWN,), generator=generator) for end in ends)
        drawn = windows[row, :, i, j].flatten(1)
        drawn = drawn - drawn.mean(1, keepdim=True)
        drawn = drawn / (drawn.square().mean(1, keepdim=True) + CONTRAST).sqrt()
        centre = drawn.mean(0)
        size, axes = torch.linalg.eigh((drawn - centre).T.double() @ (drawn - centre).double())
        size = size.clamp(min=0) / DRAWN
        shrunk = (size + SMOOTH * size.mean().clamp(min=1e-6)).rsqrt()
        whiten = (axes * shrunk @ axes.T).float()
        some = torch.randperm(DRAWN, generator=generator)[: len(self.weight)]
        filters = F.normalize((drawn[some] - centre) @ whiten, dim=1) @ whiten
        self.bias.copy_(filters @ centre)
        filters = filters - filters.mean(1, keepdim=True)  # takes a patch's brightness out
        self.weight.copy_(filters.view_as(self.weight))


def _scaling(length: int, side: int) -> Tensor:
    """[side, length]: a linear scaling along one axis, which averages where it makes smaller."""
    scale = length / side
    centre = (torch.arange(side) + 0.5) * scale - 0.5
    apart = (torch.arange(length) - centre[:, None]).abs()
    weight = (1 - apart / max(1.0, scale)).clamp(min=0)
    return weight / weight.sum(1, keepdim=True)
