"""Residual networks: ResNet, pre-activation ResNet-18, Wide ResNet and the fast ResNet-9."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from .layers import batch_norm, conv, he_init, mean_pool
from .registry import FULL, Backbone, Shape, register


class _Residual(nn.Module):
    """A residual block with torchvision's names: two 3x3 convolutions, or a bottleneck.

    He et al., CVPR 2016. The bottleneck has its stride in the 3x3 convolution, as torchvision's.
    """

    def __init__(self, c_in: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        c_out = 4 * width if bottleneck else width
        first, second = (1, stride) if bottleneck else (stride, 1)
        self.conv1, self.bn1 = conv(c_in, width, 1 if bottleneck else 3, first), batch_norm(width)
        self.conv2, self.bn2 = conv(width, width, 3, second), batch_norm(width)
        if bottleneck:
            self.conv3, self.bn3 = conv(width, c_out, 1), batch_norm(c_out)
        self.bottleneck = bottleneck
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(conv(c_in, c_out, 1, stride), batch_norm(c_out))

    @property
    def last_bn(self) -> nn.BatchNorm2d:
        return self.bn3 if self.bottleneck else self.bn2

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        if self.bottleneck:
            out = self.bn3(self.conv3(out.relu_()))
        return (out + skip).relu_()


@register("resnet18", blocks=(2, 2, 2, 2), bottleneck=False)
@register("resnet34", blocks=(3, 4, 6, 3), bottleneck=False)
@register("resnet50", blocks=(3, 4, 6, 3), bottleneck=True)
class ResNet(Backbone):
    """ResNet (He et al., CVPR 2016), parameters named as torchvision's.

    stem: "imagenet" 7x7/2 and pooling; "cifar" 3x3/1; "cifar_valid" the same without padding, as
    T-Revision and its family; "auto" is "cifar" up to 64 pixels a side.
    zero_init: each block starts as the identity.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        blocks: tuple[int, ...],
        bottleneck: bool,
        width: int = FULL,
        stem: Literal["auto", "cifar", "cifar_valid", "imagenet"] = "auto",
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        if stem == "auto":
            stem = "cifar" if max(shape[1:]) <= 64 else "imagenet"
        size, stride, pad = {"imagenet": (7, 2, 3), "cifar": (3, 1, 1), "cifar_valid": (3, 1, 0)}[
            stem
        ]
        self.conv1 = nn.Conv2d(shape[0], width, size, stride, pad, bias=False)
        self.bn1 = batch_norm(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        grow = 4 if bottleneck else 1

        def stage(number: int, c_in: int) -> nn.Sequential:
            inner, stride = width * 2**number, 1 if number == 0 else 2
            first = _Residual(c_in, inner, stride, bottleneck)
            rest = [_Residual(grow * inner, inner, 1, bottleneck) for _ in range(1, blocks[number])]
            return nn.Sequential(first, *rest)

        self.layer1 = stage(0, width)
        self.layer2 = stage(1, grow * width)
        self.layer3 = stage(2, 2 * grow * width)
        self.layer4 = stage(3, 4 * grow * width)
        self.dim, self.low_dim = 8 * grow * width, grow * width
        he_init(self)
        if zero_init:
            for block in self.modules():
                if isinstance(block, _Residual):
                    nn.init.zeros_(block.last_bn.weight)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The map after the first stage (stride 4 with the imagenet stem) and the last map."""
        low = self.layer1(self.maxpool(self.bn1(self.conv1(x)).relu_()))
        return low, self.layer4(self.layer3(self.layer2(low)))

    def stages(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """What runs at stride 16 and at stride 32: DeepLab dilates these."""
        return [self.layer3], [self.layer4]

    def forward(self, x: Tensor) -> Tensor:
        return mean_pool(self.maps(x)[1])


class _PreAct(nn.Module):
    """Pre-activation block (He et al., ECCV 2016); dropout as Zagoruyko and Komodakis, 2016."""

    def __init__(self, c_in: int, c_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1, self.conv1 = batch_norm(c_in), conv(c_in, c_out, 3, stride)
        self.bn2, self.conv2 = batch_norm(c_out), conv(c_out, c_out)
        self.dropout = nn.Dropout(dropout)
        changes = stride != 1 or c_in != c_out
        self.shortcut = conv(c_in, c_out, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.bn1(x).relu_()
        skip = x if self.shortcut is None else self.shortcut(active)
        out = self.conv1(active)
        return skip + self.conv2(self.dropout(self.bn2(out).relu_()))


class _PreActNet(Backbone):
    def __init__(self, channels: int, widths: tuple[int, ...], blocks: int, dropout: float) -> None:
        """widths: of the stem and of each stage; the second and later stages halve the map."""
        super().__init__()
        self.stem = conv(channels, widths[0])
        layers: list[nn.Module] = []
        c_in = widths[0]
        for number, width in enumerate(widths[1:]):
            for block in range(blocks):
                stride = 2 if number > 0 and block == 0 else 1
                layers.append(_PreAct(c_in, width, stride, dropout))
                c_in = width
        self.blocks, self.bn, self.dim = nn.Sequential(*layers), batch_norm(c_in), c_in
        he_init(self, "fan_in")  # Keras's he_normal, with which Logistic-Normal's authors trained

    def forward(self, x: Tensor) -> Tensor:
        return mean_pool(self.bn(self.blocks(self.stem(x))).relu_())


@register("preact_resnet18")
class PreActResNet18(_PreActNet):
    """ResNet-18 of pre-activation blocks, 3x3 stem: the network of DivideMix."""

    def __init__(self, shape: Shape, *, width: int = FULL, dropout: float = 0.0) -> None:
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        super().__init__(shape[0], widths, 2, dropout)


@register("wide_resnet")
class WideResNet(_PreActNet):
    """WRN-depth-widen (Zagoruyko and Komodakis, 2016), by default WRN-28-2."""

    def __init__(
        self, shape: Shape, *, depth: int = 28, widen: int = 2, dropout: float = 0.0
    ) -> None:
        if depth < 10 or depth % 6 != 4:
            raise BadInput(f"the depth of a wide_resnet must be 10, 16, 22, 28, ..., not {depth}")
        widths = (16, 16 * widen, 32 * widen, 64 * widen)
        super().__init__(shape[0], widths, (depth - 4) // 6, dropout)


class _Pooled(nn.Module):
    """A convolution whose map is halved before it is normalised, then a residual block."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv, self.bn = conv(c_in, c_out), batch_norm(c_out)
        self.conv1, self.bn1 = conv(c_out, c_out), batch_norm(c_out)
        self.conv2, self.bn2 = conv(c_out, c_out), batch_norm(c_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.bn(F.max_pool2d(self.conv(x), 2)))
        out = F.gelu(self.bn1(self.conv1(x)))
        return F.gelu(self.bn2(self.conv2(out)) + x)


@register("resnet9")
class ResNet9(Backbone):
    """ResNet-9 (Page, 2018) with the widths of Jordan (2024): made to train small images fast.

    Few and wide convolutions, small maps: about the operations of a ResNet-18 in half of its
    layers. Three halvings, then the mean of what is left of the map.
    """

    smallest = 8

    def __init__(self, shape: Shape, *, width: int = FULL) -> None:
        super().__init__()
        widths = (width // 2 or 1, 2 * width, 6 * width, 8 * width)
        self.stem = conv(shape[0], widths[0])
        self.bn = batch_norm(widths[0])
        self.blocks = nn.Sequential(*(_Pooled(a, b) for a, b in pairwise(widths)))
        self.dim = widths[-1]
        he_init(self, "fan_in")

    def forward(self, x: Tensor) -> Tensor:
        return mean_pool(self.blocks(F.gelu(self.bn(self.stem(x)))))
