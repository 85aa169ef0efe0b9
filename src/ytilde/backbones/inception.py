"""Inception-ResNet-v2."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import batch_norm, he_init, mean_pool
from .registry import FULL, Backbone, Shape, register


def _conv_inc(
    c_in: int,
    c_out: int,
    size: int | tuple[int, int] = 1,
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, size, stride, pad, bias=False)
    return nn.Sequential(conv, batch_norm(c_out, eps=1e-3), nn.ReLU(True))


class _Branches(nn.Module):
    """Branches side by side, their channels joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _Scaled(nn.Module):
    """x + scale * conv1x1(branches(x)), then ReLU unless it is the last block."""

    def __init__(
        self, channels: int, joined: int, branches: _Branches, scale: float, relu: bool = True
    ) -> None:
        super().__init__()
        self.branches, self.conv = branches, nn.Conv2d(joined, channels, 1)
        self.scale, self.relu = scale, relu

    def forward(self, x: Tensor) -> Tensor:
        out = x + self.scale * self.conv(self.branches(x))
        return F.relu(out) if self.relu else out


@register("inception_resnet_v2")
class InceptionResNetV2(Backbone):
    """Inception-ResNet-v2 (Szegedy et al., AAAI 2017, figures 3 and 15-19); WebVision's tables.

    299x299 inputs give an 8x8 map of 1536 channels at width 64.
    """

    smallest = 75

    def __init__(self, shape: Shape, *, width: int = FULL) -> None:
        super().__init__()
        conv = _conv_inc

        def w(channels: int) -> int:
            return max(1, round(channels * width / FULL))

        def chain(c_in: int, *widths: int) -> nn.Sequential:
            """1x1, then padded 3x3 convolutions."""
            layers = [conv(c_in, w(widths[0]))]
            for a, b in pairwise(widths):
                layers.append(conv(w(a), w(b), 3, 1, 1))
            return nn.Sequential(*layers)

        def halve(c_in: int, *widths: int) -> nn.Sequential:
            """As chain, with a last unpadded 3x3 convolution of stride 2."""
            return nn.Sequential(
                chain(c_in, *widths[:-1]), conv(w(widths[-2]), w(widths[-1]), 3, 2)
            )

        def strip(c_in: int, a: int, b: int, c: int, size: int) -> nn.Sequential:
            """1x1, then a 1 x size and a size x 1 convolution."""
            pad = size // 2
            across = conv(w(a), w(b), (1, size), 1, (0, pad))
            return nn.Sequential(conv(c_in, w(a)), across, conv(w(b), w(c), (size, 1), 1, (pad, 0)))

        def block35() -> _Scaled:
            parts = _Branches(chain(c35, 32), chain(c35, 32, 32), chain(c35, 32, 48, 64))
            return _Scaled(c35, 2 * w(32) + w(64), parts, 0.17)

        def block17() -> _Scaled:
            parts = _Branches(chain(c17, 192), strip(c17, 128, 160, 192, 7))
            return _Scaled(c17, 2 * w(192), parts, 0.1)

        def block8(scale: float, relu: bool) -> _Scaled:
            parts = _Branches(chain(c8, 192), strip(c8, 192, 224, 256, 3))
            return _Scaled(c8, w(192) + w(256), parts, scale, relu)

        stem: list[nn.Module] = [
            conv(shape[0], w(32), 3, 2),
            conv(w(32), w(32), 3),
            conv(w(32), w(64), 3, 1, 1),
        ]
        stem += [nn.MaxPool2d(3, 2), conv(w(64), w(80)), conv(w(80), w(192), 3), nn.MaxPool2d(3, 2)]
        mean = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        five = nn.Sequential(conv(w(192), w(48)), conv(w(48), w(64), 5, 1, 2))
        pooled = nn.Sequential(mean, conv(w(192), w(64)))
        mixed5 = _Branches(chain(w(192), 96), five, chain(w(192), 64, 96, 96), pooled)
        c35 = 2 * w(96) + 2 * w(64)
        mixed6 = _Branches(conv(c35, w(384), 3, 2), halve(c35, 256, 256, 384), nn.MaxPool2d(3, 2))
        c17 = c35 + 2 * w(384)
        mixed7 = _Branches(
            halve(c17, 256, 384), halve(c17, 256, 288), halve(c17, 256, 288, 320),
            nn.MaxPool2d(3, 2),
        )  # fmt: skip
        c8 = c17 + w(384) + w(288) + w(320)
        self.layers = nn.Sequential(
            *stem,
            mixed5,
            *(block35() for _ in range(10)),
            mixed6,
            *(block17() for _ in range(20)),
            mixed7,
            *(block8(0.2, True) for _ in range(9)),
            block8(1.0, False),
            conv(c8, w(1536)),
        )
        self.dim = w(1536)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        return mean_pool(self.layers(x))
