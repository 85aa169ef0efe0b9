"""What changes colours and leaves pixels where they are: SimCLR's jitter and greys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .transform import Pair


@dataclass(frozen=True)
class ColorJitter:
    """Random brightness, contrast, saturation and hue, with probability p for each image.

    Factors are uniform in [1 - s, 1 + s] (hue: shift in turns, [-s, s]). The order is fixed: a
    random one per image would cost each step four times over. Images without three channels
    have no saturation and hue.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    p: float = 0.8

    draws = 5

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        signed = (2 * u[:4] - 1)[..., None, None, None]  # [4, B, 1, 1, 1] in [-1, 1)
        out = (x * (1 + self.brightness * signed[0])).clamp(0, 1)
        mean = _luma(out).mean((-2, -1), keepdim=True)
        out = _blend(out, mean, 1 + self.contrast * signed[1])
        if x.shape[1] == 3:
            out = _blend(out, _luma(out), 1 + self.saturation * signed[2])
            out = _turn_hue(out, self.hue * signed[3])
        return torch.where(u[4, :, None, None, None] < self.p, out.to(x.dtype), x), y


@dataclass(frozen=True)
class Grey:
    """All channels become the luma, with probability p for each image."""

    p: float = 0.2

    draws = 1

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        return torch.where(u[0, :, None, None, None] < self.p, _luma(x).to(x.dtype), x), y


def _luma(x: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, 1, H, W]: ITU-R 601 for RGB, else the mean of the channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (other + factor * (x - other)).clamp(0, 1)


def _turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """RGB -> HSV -> RGB with the hue turned; turns [B, 1, 1, 1], a full circle is 1."""
    red, green, blue = x.split(1, dim=1)
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    safe = chroma.clamp(min=1e-12)  # grey pixels have no hue and stay as they are
    hue = torch.where(
        red == value,
        (green - blue) / safe,
        torch.where(green == value, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    # Distance on the colour circle (in sixths) from each channel's opposite colour.
    around = [(hue + 6 * turns + n).remainder(6) for n in (5, 3, 1)]
    share = torch.cat([torch.minimum(k, 4 - k).clamp(0, 1) for k in around], 1)
    return (value - chroma * share).clamp(0, 1)
