"""Networks for pixel labels: DeepLabv3+ and U-Net."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import conv_bn, dilate, he_init, pixels_last, separable
from .registry import FULL, Backbone, Shape, create_backbone, register


class _ASPP(nn.Module):
    """Atrous spatial pyramid pooling with separable convolutions, and the image's mean."""

    def __init__(self, c_in: int, c_out: int, rates: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.point = conv_bn(c_in, c_out, 1)
        self.atrous = nn.ModuleList(separable(c_in, c_out) for _ in rates)
        for branch, rate in zip(self.atrous, rates, strict=True):
            dilate([branch], rate)
        # No BatchNorm here: with one image in the batch it would have one value a channel.
        self.image = nn.Sequential(nn.Conv2d(c_in, c_out, 1), nn.ReLU(True))
        self.join = nn.Sequential(conv_bn((2 + len(rates)) * c_out, c_out, 1), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        image = self.image(x.mean((-2, -1), keepdim=True)).expand(-1, -1, *x.shape[-2:])
        return self.join(torch.cat([self.point(x), *(b(x) for b in self.atrous), image], 1))


@register("deeplab")
class DeepLab(Backbone):
    """DeepLabv3+ (Chen et al., ECCV 2018) up to its last layer: [B, C, H, W] -> [B, H/4, W/4, dim].

    Sides that 4 does not divide are rounded up. features: channels of ASPP and decoder (= dim).
    """

    stride = 4

    def __init__(
        self,
        shape: Shape,
        *,
        encoder: Literal["resnet18", "resnet34", "resnet50", "xception65"] = "resnet18",
        width: int = FULL,
        features: int = 256,
        output_stride: Literal[16, 8] = 16,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        stem = {} if encoder == "xception65" else {"stem": "imagenet"}
        net: Any = create_backbone(encoder, shape, width=width, **stem)
        at16, at32 = net.stages()
        dilate(at32 if output_stride == 16 else at16 + at32)
        self.encoder, self.dim = net, features
        rates = tuple(r * 16 // output_stride for r in (6, 12, 18))
        self.aspp = _ASPP(net.dim, features, rates, dropout)
        reduced = max(1, features * 48 // 256)  # the paper's 48 beside its 256
        self.low = conv_bn(net.low_dim, reduced, 1)
        self.decoder = nn.Sequential(
            separable(features + reduced, features), separable(features, features)
        )
        for part in (self.aspp, self.low, self.decoder):
            he_init(part)

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.encoder.maps(x)
        high = F.interpolate(
            self.aspp(high), size=low.shape[-2:], mode="bilinear", align_corners=False
        )
        return pixels_last(self.decoder(torch.cat([high, self.low(low)], 1)))


@register("unet")
class UNet(Backbone):
    """U-Net (Ronneberger et al., MICCAI 2015), padded, with BatchNorm: -> [B, H, W, width].

    Any size: pooling rounds up and what upsampling adds is cut off again. depth: of poolings.
    """

    def __init__(
        self, shape: Shape, *, width: int = 32, depth: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()

        def double(c_in: int, c_out: int) -> nn.Sequential:
            return nn.Sequential(conv_bn(c_in, c_out), conv_bn(c_out, c_out))

        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double(a, b) for a, b in zip([shape[0], *widths], widths, strict=False)
        )
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(double(2 * b, b) for _, b in pairs)
        self.pool, self.dropout = nn.MaxPool2d(2, ceil_mode=True), nn.Dropout2d(dropout)
        self.dim = width
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, double in enumerate(self.down):
            x = double(self.pool(x) if level else x)
            skips.append(x)
        x = self.dropout(skips.pop())
        for up, merge in zip(self.up, self.merge, strict=True):
            skip = skips.pop()
            x = up(x)[..., : skip.shape[-2], : skip.shape[-1]]
            x = merge(torch.cat([skip, x], 1))
        return pixels_last(x)
