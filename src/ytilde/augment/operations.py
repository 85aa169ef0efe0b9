"""The operations of RandAugment and AutoAugment on a batch, each image with its own.

They do to 8-bit pictures what Pillow does (ImageOps, ImageEnhance, Image.rotate and transform with
the nearest pixel), bit for bit on hardware that rounds as IEEE 754 says. All images pass through
one pipeline of few kernels, and an operation that is not theirs has settings that change nothing:

    a look-up table for each channel    autocontrast, equalize, invert, posterize, solarize
    a blend with a degenerate picture   brightness, color, contrast, sharpness
    an affine map of the coordinates    rotate, shear, translate
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ytilde.data import IGNORE

from .transform import Pair, has_pixel_labels

# What an operation sets, and to what at its full strength; the rest of its settings are 0. Angles
# are in degrees, shifts in parts of the side (10 of 32 pixels), `bits` are the lowest ones, which
# go, `solarize` is the number of levels that are inverted, from the highest downwards, and `factor`
# the distance of Pillow's enhancement factor from 1.
_SETTINGS = (
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y", "factor", "bits", "solarize",
)  # fmt: skip
_MARKS = ("autocontrast", "equalize", "contrast", "color", "sharpness")
_OPERATIONS: dict[str, dict[str, float]] = {
    "identity": {},
    "autocontrast": {"autocontrast": 1},
    "equalize": {"equalize": 1},
    "rotate": {"rotate": 30},
    "solarize": {"solarize": 256},
    "color": {"factor": 0.9, "color": 1},
    "contrast": {"factor": 0.9, "contrast": 1},
    "brightness": {"factor": 0.9},
    "sharpness": {"factor": 0.9, "sharpness": 1},
    "shear_x": {"shear_x": 0.3},
    "translate_x": {"translate_x": 10 / 32},
    "translate_y": {"translate_y": 10 / 32},
    "posterize": {"bits": 4},
    "shear_y": {"shear_y": 0.3},
    "invert": {"solarize": 256},  # at full strength
}
OPERATIONS = tuple(_OPERATIONS)
TWO_SIDED = {name for name in OPERATIONS if name.startswith(("rotate", "shear", "translate"))}
_TABLE = tuple(tuple(own.get(name, 0) for name in _SETTINGS) for own in _OPERATIONS.values())
_MARKED = tuple(tuple(name in own for name in _MARKS) for own in _OPERATIONS.values())


def code(name: str) -> int:
    """The number by which `operate` knows an operation."""
    return OPERATIONS.index(name)


@cache
def constant(values: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A table of numbers on the device, made once: a captured step cannot copy from the host."""
    return torch.tensor(values, dtype=dtype, device=device)


@torch.no_grad()
def operate(x: Tensor, y: Tensor | None, kind: Tensor, strength: Tensor, fill: int) -> Pair:
    """The operations kind [n, B] (by `code`) at these strengths [n, B], one after another.

    x is rounded to 8 bits. A strength is in [-1, 1]; only rotations, shears, translations and the
    four enhancements heed its sign. fill: what comes in from outside the image, 0 to 255.
    """
    with torch.autocast(x.device.type, enabled=False):
        settings = _settings(kind, strength.double(), *x.shape[-2:])
        out = (x.float() * 255).round_().clamp_(0, 255)
        for slot in zip(*settings, strict=True):
            own = _Settings(*slot)
            out = _tone(_enhance(out, own), own)
            out, y = _warp(out, y, own.matrix, fill)
        return (out / 255).to(x.dtype), y


class _Settings(NamedTuple):
    """What the operations do to B images; for n operations a step, each with n in front."""

    factor: Tensor  # [B, 1, 1, 1], like the marks of what is blended with
    contrast: Tensor
    color: Tensor
    sharpness: Tensor
    table: Tensor  # [B, 1, 256] float64: posterize, solarize and invert
    not_stretched: Tensor  # [B, 1, 1]: no autocontrast
    equalize: Tensor
    matrix: Tensor  # [B, 2, 3] int32: from a target pixel (col, row, 1) to 65536 times its source


def _settings(kind: Tensor, strength: Tensor, height: int, width: int) -> _Settings:
    def pair(of_x: float, of_y: float) -> Tensor:
        return constant((of_x, of_y), torch.float64, kind.device)[:, None, None]

    own = constant(_TABLE, torch.float64, kind.device)[kind] * strength[..., None]  # [n, B, 8]
    rotate, shear, shift, factor, bits, solarize = own.movedim(2, 0).split((1, 2, 2, 1, 1, 1))
    marked = constant(_MARKED, torch.bool, kind.device)[kind][..., None, None].movedim(2, 0)
    autocontrast, equalize, contrast, color, sharpness = marked
    level = torch.arange(256, device=kind.device)
    table = level - level.remainder(bits[0].abs().round().exp2()[..., None])  # [n, B, 256]
    table = torch.where(table >= (256 - solarize[0].abs())[..., None], 255 - table, table)
    # Rotations are about the centre and shears about the corner; pixels lie at their middles.
    angle = torch.deg2rad(rotate)
    cos, sin = angle.cos(), angle.sin()
    across = shear + pair(-1, 1) * sin  # [2, n, B]: what a row adds to x and a column to y
    start = (
        pair(width / 2, height / 2)
        .addcmul(pair(0.5 - width / 2, 0.5 - height / 2), cos)
        .addcmul(pair(0.5 - height / 2, 0.5 - width / 2), across)
        .addcmul(pair(height / 2, width / 2), shear)
        .addcmul(pair(width, height), shift)
    )
    matrix = torch.stack([cos[0], across[0], start[0], across[1], cos[0], start[1]], -1)
    matrix = (matrix * 65536 + 0.5).floor_().int().unflatten(-1, (2, 3))
    return _Settings(
        (1 + factor[0]).float()[..., None, None, None],
        contrast[..., None],
        color[..., None],
        sharpness[..., None],
        table[:, :, None],
        ~autocontrast,
        equalize,
        matrix,
    )


def _enhance(x: Tensor, own: _Settings) -> Tensor:
    """Away from black, the mean grey, the grey picture or the smooth one; still to be cut off."""
    luma = _luma(x)
    mean = (luma.mean((1, 2, 3), keepdim=True) + 0.5).floor()
    dull = torch.where(own.color, luma, mean * own.contrast)
    dull = torch.where(own.sharpness, _smooth(x), dull)
    return (x - dull).mul_(own.factor).add_(dull).clamp_(0, 255)


def _luma(x: Tensor) -> Tensor:
    """[B, 1, H, W]: Pillow's grey of RGB, rounded; else the mean of the channels."""
    if x.shape[1] == 1:
        return x
    if x.shape[1] != 3:
        return (x.mean(1, keepdim=True) + 0.5).floor()
    red, green, blue = x.split(1, dim=1)
    luma = torch.add(red * (19595 / 65536), green, alpha=38470 / 65536)  # all of it is exact
    return luma.add_(blue, alpha=7471 / 65536).add_(0.5).floor_()


def _smooth(x: Tensor) -> Tensor:
    """Weights 1 and, in the middle, 5; pixels at the border stay."""
    if min(x.shape[-2:]) < 3:
        return x
    out, inner = x.clone(), x[..., 1:-1, 1:-1]
    three = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
    nine = three[..., :-2] + three[..., 1:-1] + three[..., 2:]
    out[..., 1:-1, 1:-1] = nine.add_(inner, alpha=4).div_(13).round_()
    return out


def _tone(x: Tensor, own: _Settings) -> Tensor:
    """Each channel, cut off to whole numbers, through a table of 256 values."""
    index = x.flatten(2).long()  # [B, C, H * W]
    low, high = index.aminmax(dim=2, keepdim=True)
    count = torch.zeros(*index.shape[:2], 256, dtype=torch.int32, device=x.device)
    count.scatter_add_(2, index, constant((1,), torch.int32, x.device).expand_as(index))
    last = count.gather(2, high)
    kept = own.not_stretched | (high == low)
    white = constant((255,), torch.float64, x.device)  # a number over a tensor is not rounded well
    scale = white / (high - low).masked_fill_(kept, 255)
    table = (own.table * scale - low.masked_fill(kept, 0) * scale).int()
    step = (index.shape[2] - last) // 255  # of pixels from one level to the next
    equal = (count.cumsum(2, dtype=torch.int32) - count + step // 2) // step.clamp(min=1)
    table = torch.where(own.equalize & (step > 0), equal.clamp(max=255), table)
    return table.float().gather(2, index).view(x.shape)


def _warp(x: Tensor, y: Tensor | None, matrix: Tensor, fill: int) -> Pair:
    """The nearest source pixel of each pixel; in y, what comes from outside is ignored."""
    height, width = x.shape[-2:]
    by_col, by_row, start = matrix[..., None, None].unbind(2)  # [B, 2, 1, 1] each
    col = torch.arange(width, device=x.device, dtype=torch.int32)
    row = torch.arange(height, device=x.device, dtype=torch.int32)[:, None]
    source = start.addcmul(by_col, col).addcmul(by_row, row) >> 16  # [B, 2, H, W]
    col, row = source.unbind(1)
    near_col, near_row = col.clamp(0, width - 1), row.clamp(0, height - 1)
    outside = (near_col != col) | (near_row != row)  # [B, H, W]
    index = near_col.add(near_row, alpha=width).flatten(1).long()
    moved = x.flatten(2).gather(2, index[:, None].expand(-1, x.shape[1], -1)).view(x.shape)
    if has_pixel_labels(y):
        y = y.flatten(1).gather(1, index).view(y.shape).masked_fill(outside, IGNORE)
    return moved.masked_fill_(outside[:, None], fill), y
