"""What moves pixels or hides them: crops, flips, zooms, holes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ytilde.data import IGNORE

from .transform import Pair, has_pixel_labels


@dataclass(frozen=True)
class CropFlip:
    """Translation by up to `pad` pixels each way and a fair horizontal flip, in one gather.

    The same as padding by `pad`, cropping to the old size and flipping; `reflect` mirrors the
    image at its border instead of padding it with zeros.
    """

    pad: int = 4
    flip: bool = False
    reflect: bool = False

    draws = 3

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        height, width = x.shape[-2:]
        down, right = (u[:2] * (2 * self.pad + 1)).long() - self.pad  # [B] each
        row = torch.arange(height, device=x.device) + down[:, None]  # [B, H]: where it comes from
        col = torch.arange(width, device=x.device) + right[:, None]  # [B, W]
        if self.flip:
            col = torch.where(u[2, :, None] < 0.5, col.flip(1), col)
        if self.reflect:
            row, col = _mirror(row, height), _mirror(col, width)
        inside = _within(row, height)[:, :, None] & _within(col, width)[:, None, :]  # [B, H, W]
        row, col = row.clamp(0, height - 1), col.clamp(0, width - 1)
        source = (row[:, :, None] * width + col[:, None, :]).flatten(1)  # [B, H * W]
        index = source[:, None, :].expand(-1, x.shape[1], -1)
        moved = x.flatten(2).gather(2, index).view(x.shape) * inside[:, None]
        if has_pixel_labels(y):
            y = y.flatten(1).gather(1, source).view(y.shape).masked_fill(~inside, IGNORE)
        return moved, y


@dataclass(frozen=True)
class ResizedCrop:
    """A box of random area and aspect, resized to the image's size (bilinear; labels nearest).

    scale: range of the box's area over the image's; above 1 it zooms out, and what lies outside
    is padding. ratio: range of width over height, log-uniform. float32 as a grid needs.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    draws = 4

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        area = self.scale[0] + u[0] * (self.scale[1] - self.scale[0])
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        aspect = (low + u[1] * (high - low)).exp()
        limit = max(1.0, math.sqrt(self.scale[1]))  # scales up to 1 never look outside the image
        height = (area / aspect).sqrt().clamp(max=limit)  # over the image's, like width
        width = (area * aspect).sqrt().clamp(max=limit)
        top, left = (1 - height) * (2 * u[2] - 1), (1 - width) * (2 * u[3] - 1)  # centres
        zero = torch.zeros_like(top)
        theta = torch.stack([width, zero, left, zero, height, top], 1).view(-1, 2, 3)
        with torch.autocast(x.device.type, enabled=False):
            grid = F.affine_grid(theta, [len(x), 1, *x.shape[-2:]], align_corners=False)
            inside = (grid.abs() <= 1).all(-1)  # [B, H, W]
            moved = _sample(x.float(), grid, "bilinear").to(x.dtype) * inside[:, None]
            if has_pixel_labels(y):
                # float32 holds class numbers exactly; grid_sample has no integers
                nearest = _sample(y[:, None].float(), grid, "nearest")[:, 0].to(y.dtype)
                y = nearest.masked_fill(~inside, IGNORE)
        return moved, y


@dataclass(frozen=True)
class Cutout:
    """A black square at a random centre, cut off at the border. DeVries and Taylor, 2017."""

    size: int = 16

    draws = 2

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        height, width = x.shape[-2:]
        hole = _hole(u[0], height, self.size)[:, :, None] & _hole(u[1], width, self.size)[:, None]
        return x * ~hole[:, None], y


@dataclass(frozen=True)
class RandomCutout:
    """A black square of random side, uniform up to a share of the image's smaller one."""

    largest: float = 0.5

    draws = 3

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        height, width = x.shape[-2:]
        size = (u[2, :, None] * (int(self.largest * min(height, width)) + 1)).long()  # [B, 1]
        hole = _hole(u[0], height, size)[:, :, None] & _hole(u[1], width, size)[:, None]
        return x * ~hole[:, None], y


def _hole(u: Tensor, length: int, size: Tensor | int) -> Tensor:
    """[B, length]: where a hole of this size about a random pixel is."""
    start = (u * length).long()[:, None] - size // 2
    return _within(torch.arange(length, device=u.device) - start, size)


def _within(index: Tensor, length: Tensor | int) -> Tensor:
    return (index >= 0) & (index < length)


def _mirror(index: Tensor, length: int) -> Tensor:
    """-1 -> 1, length -> length - 2: the border pixel itself is not repeated."""
    return (length - 1) - ((length - 1) - index.abs()).abs()


def _sample(x: Tensor, grid: Tensor, mode: str) -> Tensor:
    return F.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False)
