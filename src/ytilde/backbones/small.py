"""Networks for features and for small images."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import batch_norm, he_init, mean_pool
from .registry import Backbone, Shape, register


@register("identity")
class Identity(Backbone):
    """The inputs are features already."""

    smallest = None

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dim = math.prod(shape)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@register("mlp")
class MLP(Backbone):
    """`depth` layers of `width` units, or layers of the widths in `hidden`."""

    smallest = None

    def __init__(
        self,
        shape: Shape,
        *,
        width: int = 256,
        depth: int = 2,
        hidden: tuple[int, ...] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [math.prod(shape), *(hidden or [width] * depth)]
        layers: list[nn.Module] = [nn.Flatten()]
        for d_in, d_out in pairwise(widths):
            layers += [nn.Linear(d_in, d_out), nn.ReLU(True), nn.Dropout(dropout)]
        self.layers, self.dim = nn.Sequential(*layers), widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@register("lenet5")
class LeNet5(Backbone):
    """LeNet-5 with ReLU and max-pooling, in the two forms that the tables use.

    valid: 6@5 (padded), pool, 16@5 unpadded, pool, dense 120, 84 (T-Revision, VolMinNet).
    same: all padded, a third one, 120@5, on the 7x7 map, dense 84 (Logistic-Normal).
    """

    smallest = 12

    def __init__(self, shape: Shape, *, variant: Literal["valid", "same"] = "valid") -> None:
        super().__init__()
        channels, height, width = shape
        pad = 2 if variant == "same" else 0
        layers = [nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(True), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(6, 16, 5, padding=pad), nn.ReLU(True), nn.MaxPool2d(2)]
        height, width = ((side // 2 - 4 + 2 * pad) // 2 for side in (height, width))
        if variant == "same":
            last = [nn.Conv2d(16, 120, 5, padding=2), nn.ReLU(True), nn.Flatten()]
            flat = 120 * height * width
        else:
            last = [nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU(True)]
            flat = 120
        self.layers = nn.Sequential(*layers, *last, nn.Linear(flat, 84), nn.ReLU(True))
        self.dim = 84

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _GroupNorm(nn.GroupNorm):
    """In the precision of its input: autocast would make it float32, and every map twice as large.

    The kernel sums in float32 either way.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, weight, bias, self.eps)


@register("cnn9")
class CNN9(Backbone):
    """The nine-layer CNN of Co-teaching (Han et al. 2018, Table 2); with GroupNorm(2): of Het-tau.

    32x32 inputs: three convolutions at 32x32, three at 16x16, three unpadded 8 -> 6 -> 4 -> 2, or
    padded as well (last="same"). Dropout takes whole maps, or single units.
    """

    smallest = 28

    def __init__(
        self,
        shape: Shape,
        *,
        width: int = 128,
        norm: Literal["batch", "group"] = "batch",
        dropout: float = 0.25,
        drop: Literal["maps", "units"] = "maps",
        last: Literal["valid", "same"] = "valid",
    ) -> None:
        super().__init__()
        pad = 1 if last == "same" else 0
        dropped = nn.Dropout2d if drop == "maps" else nn.Dropout

        def conv(c_in: int, c_out: int, pad: int) -> nn.Sequential:
            after = batch_norm(c_out) if norm == "batch" else _GroupNorm(2, c_out)
            layer = nn.Conv2d(c_in, c_out, 3, padding=pad, bias=norm == "group")
            return nn.Sequential(layer, after, nn.LeakyReLU(0.01, True))

        def stage(c_in: int, c_out: int) -> nn.Sequential:
            convs = [conv(c_in, c_out, 1), conv(c_out, c_out, 1), conv(c_out, c_out, 1)]
            return nn.Sequential(*convs, nn.MaxPool2d(2), dropped(dropout))

        width += width % 2  # two groups
        self.stage1, self.stage2 = stage(shape[0], width), stage(width, 2 * width)
        self.stage3 = nn.Sequential(
            conv(2 * width, 4 * width, pad),
            conv(4 * width, 2 * width, pad),
            conv(2 * width, width, pad),
        )
        self.dim = width
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return mean_pool(self.stage3(self.stage2(self.stage1(x))))
