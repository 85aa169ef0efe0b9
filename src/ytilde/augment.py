"""On-device batch augmentation: float images [B, C, H, W] in [0, 1], each with its own draws.

Every transform is a function of its inputs and of uniform draws, so a whole recipe needs one call
of the generator, gives the same bits for the same generator, and can be captured in a CUDA graph.
With pixel labels y [B, H, W] what moves the image moves the labels too; what comes from outside
the image is 0 in x and -1 (ignore) in y. Class labels [B] pass through.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeGuard, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from ytilde.data import IGNORE, BadInput

__all__ = [
    "Augment",
    "ColorJitter",
    "CropFlip",
    "Cutout",
    "Grey",
    "Jitter",
    "ResizedCrop",
    "make_augment",
    "two_views",
]

Pair = tuple[Tensor, Tensor | None]  # x and its labels, if they were given


class Transform(Protocol):
    """transform(x, y, u): u [draws, B] are uniform in [0, 1), one column a sample."""

    @property
    def draws(self) -> int: ...
    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair: ...


class Augment:
    """Transforms one after another, fed by one draw. Returns x, or the pair where y is given."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    @overload
    def __call__(self, x: Tensor, y: None = None, *, generator: torch.Generator) -> Tensor: ...
    @overload
    def __call__(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]: ...
    def __call__(self, x, y=None, *, generator):
        if self.transforms:
            draws = [transform.draws for transform in self.transforms]
            u = torch.rand(sum(draws), len(x), generator=generator, device=x.device)
            for transform, part in zip(self.transforms, u.split(draws), strict=True):
                x, y = transform(x, y, part)
        return x if y is None else (x, y)


def two_views(augment: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent random views of each image, made in one pass over the doubled batch."""
    first, second = augment(torch.cat([x, x])).chunk(2)
    return first, second


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
        if _pixels(y):
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
            if _pixels(y):
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
        rows = self._hole(u[0], height, x.device)[:, :, None]
        cols = self._hole(u[1], width, x.device)[:, None, :]
        return x * ~(rows & cols)[:, None], y

    def _hole(self, u: Tensor, length: int, device: torch.device) -> Tensor:
        start = (u * length).long()[:, None] - self.size // 2
        return _within(torch.arange(length, device=device) - start, self.size)  # [B, length]


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


@dataclass(frozen=True)
class Jitter:
    """Gaussian noise on features [B, D], in their own units (so for standardised features)."""

    std: float
    draws: int  # D: the number of features

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        tiny = 2.0**-24  # uniforms start at 0, whose normal quantile is -inf
        noise = torch.special.ndtri(u.clamp(tiny, 1 - tiny)).T
        return x + self.std * noise.to(x.dtype), y


def make_augment(recipe: str, shape: tuple[int, ...]) -> Augment:
    """The augmentation that a recipe names: parts joined by '+', each with an optional number.

    none; crop[PAD], reflect[PAD] (a crop with mirrored borders), flip, cutout[SIZE],
    color[STRENGTH], grey[P], resize[SMALLEST AREA], scale[LARGEST ZOOM] (in and out, for pixel
    labels), simclr (= resize+flip+color+grey); jitter[STD] for features.
    """
    parts = [_parse(part, recipe) for part in recipe.replace("simclr", _SIMCLR).split("+")]
    wanted = [part for part in parts if part[0] != "none"]
    images = len(shape) == 3
    unfit = [name for name, _ in wanted if (name == "jitter") == images]
    if unfit:
        here, use = ("images", "crop+flip") if images else ("features", "jitter0.1")
        raise BadInput(
            f"augmentation {unfit[0]!r} does not work on {here} of shape {shape}: use none or {use}"
        )
    transforms: list[Transform] = []
    for name, number in wanted:
        last = transforms[-1] if transforms else None
        if name == "flip" and isinstance(last, CropFlip) and not last.flip:
            transforms[-1] = replace(last, flip=True)  # one gather does both
        else:
            transforms.append(_PARTS[name](number, shape))
    return Augment(*transforms)


_SIMCLR = "resize0.2+flip+color0.5+grey0.2"  # Chen et al., ICML 2020, at its strength for 32x32
_PARTS: dict[str, Callable[[float | None, tuple[int, ...]], Transform]] = {
    "crop": lambda n, shape: CropFlip(_pad(n, shape)),
    "reflect": lambda n, shape: CropFlip(_pad(n, shape), reflect=True),
    "flip": lambda n, shape: CropFlip(0, flip=True),
    "cutout": lambda n, shape: Cutout(int(n or max(1, min(shape[1:]) // 2))),
    "color": lambda n, shape: _color(0.5 if n is None else n),
    "grey": lambda n, shape: Grey(0.2 if n is None else n),
    "resize": lambda n, shape: ResizedCrop((n or 0.2, 1.0)),
    "scale": lambda n, shape: ResizedCrop(((n or 2.0) ** -2, (n or 2.0) ** 2), (1.0, 1.0)),
    "jitter": lambda n, shape: Jitter(0.1 if n is None else n, math.prod(shape)),
}
# The smallest and largest number that a part takes; sizes of crop and cutout are whole.
_RANGE = {
    "cutout": (1.0, math.inf),
    "color": (0.0, 1.25),
    "grey": (0.0, 1.0),
    "resize": (0.01, 1.0),
    "scale": (1.0, 8.0),
}


def _parse(part: str, recipe: str) -> tuple[str, float | None]:
    match = re.fullmatch(r"([a-z]+):?(\d*\.?\d+)?", part.strip())
    name, text = match.groups() if match else (part, None)
    if name not in (*_PARTS, "none") or (text and name in ("none", "flip")):
        raise BadInput(
            f"unknown augmentation {part!r} in {recipe!r}: join any of none, simclr, "
            f"{', '.join(_PARTS)} with '+', each with an optional number, as in crop4+flip"
        )
    number = float(text) if text else None
    low, high = _RANGE.get(name, (0.0, math.inf))
    whole = name in ("crop", "reflect", "cutout")
    if number is not None and (not low <= number <= high or (whole and number != int(number))):
        raise BadInput(
            f"the number in augmentation {part!r} must be "
            + (f"whole and at least {low:g}" if whole else f"between {low:g} and {high:g}")
        )
    return name, number


def _pad(number: float | None, shape: tuple[int, ...]) -> int:
    smallest = min(shape[1:])
    pad = int(smallest // 8 if number is None else number)
    if pad >= smallest:
        raise BadInput(f"a crop by {pad} pixels leaves nothing of images of shape {shape}")
    return pad


def _color(strength: float) -> ColorJitter:
    s = 0.8 * strength
    return ColorJitter(s, s, s, 0.2 * strength)


def _pixels(y: Tensor | None) -> TypeGuard[Tensor]:
    return y is not None and y.ndim > 1


def _within(index: Tensor, length: int) -> Tensor:
    return (index >= 0) & (index < length)


def _mirror(index: Tensor, length: int) -> Tensor:
    """-1 -> 1, length -> length - 2: the border pixel itself is not repeated."""
    return (length - 1) - ((length - 1) - index.abs()).abs()


def _sample(x: Tensor, grid: Tensor, mode: str) -> Tensor:
    return F.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False)


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
