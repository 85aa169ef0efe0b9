"""Augmentations by name, as in crop4+flip, and the strong view that fits an input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ytilde.data import BadInput

from .colour import ColorJitter, Grey
from .features import GaussianNoise, Jitter
from .geometry import CropFlip, Cutout, RandomCutout, ResizedCrop
from .policies import GREY, AutoAugment, RandAugment
from .transform import Augment, Transform


def make_augment(recipe: str, shape: tuple[int, ...]) -> Augment:
    """The augmentation that a recipe names: parts joined by '+', each with an optional number.

    none; crop[PAD], reflect[PAD] (a crop with mirrored borders), flip, cutout[SIZE],
    randomcutout[LARGEST SHARE OF THE SIDE], color[STRENGTH], grey[P], resize[SMALLEST AREA],
    scale[LARGEST ZOOM] (in and out, for pixel labels), simclr (= resize+flip+color+grey),
    randaugment[N] (N operations at random strength), autoaugment (CIFAR-10's policy), as in
    crop+flip+randaugment2+cutout16; jitter[STD] for features. Pixel labels move along with all of
    them.
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


def strong_view(shape: tuple[int, ...], std: Tensor | float | None = None) -> Augment:
    """The strong view that fits inputs of this shape, for methods that want one beside the weak.

    Images: a crop (a flip too, if they have colours), two operations of RandAugment (one below 16
    pixels) and a random cutout. Features: noise of 0.6 standard deviations; `std` [D] are those of
    raw features, as `Net.std` holds them (on the inputs' device; without it, 1).
    """
    if len(shape) != 3:
        return GaussianNoise(0.6, 1.0 if std is None else std)
    crop = CropFlip(_pad(None, shape), flip=shape[0] == 3)
    operations = RandAugment(2 if min(shape[1:]) >= 16 else 1, fill=_fill(shape))
    return Augment(crop, operations, RandomCutout())


_SIMCLR = "resize0.2+flip+color0.5+grey0.2"  # Chen et al., ICML 2020, at its strength for 32x32
_PARTS: dict[str, Callable[[float | None, tuple[int, ...]], Transform]] = {
    "crop": lambda n, shape: CropFlip(_pad(n, shape)),
    "reflect": lambda n, shape: CropFlip(_pad(n, shape), reflect=True),
    "flip": lambda n, shape: CropFlip(0, flip=True),
    "cutout": lambda n, shape: Cutout(int(n or max(1, min(shape[1:]) // 2))),
    "randomcutout": lambda n, shape: RandomCutout(n or 0.5),
    "randaugment": lambda n, shape: RandAugment(int(n or 2), fill=_fill(shape)),
    "autoaugment": lambda n, shape: AutoAugment(_fill(shape)),
    "color": lambda n, shape: _color(0.5 if n is None else n),
    "grey": lambda n, shape: Grey(0.2 if n is None else n),
    "resize": lambda n, shape: ResizedCrop((n or 0.2, 1.0)),
    "scale": lambda n, shape: ResizedCrop(((n or 2.0) ** -2, (n or 2.0) ** 2), (1.0, 1.0)),
    "jitter": lambda n, shape: Jitter(0.1 if n is None else n, math.prod(shape)),
}
# The smallest and largest number that a part takes; sizes of crop and cutout are whole.
_RANGE = {
    "cutout": (1.0, math.inf),
    "randomcutout": (0.01, 1.0),
    "randaugment": (1.0, math.inf),
    "color": (0.0, 1.25),
    "grey": (0.0, 1.0),
    "resize": (0.01, 1.0),
    "scale": (1.0, 8.0),
}


def _parse(part: str, recipe: str) -> tuple[str, float | None]:
    match = re.fullmatch(r"([a-z]+):?(\d*\.?\d+)?", part.strip())
    name, text = match.groups() if match else (part, None)
    if name not in (*_PARTS, "none") or (text and name in ("none", "flip", "autoaugment")):
        raise BadInput(
            f"unknown augmentation {part!r} in {recipe!r}: join any of none, simclr, "
            f"{', '.join(_PARTS)} with '+', each with an optional number, as in crop4+flip"
        )
    number = float(text) if text else None
    low, high = _RANGE.get(name, (0.0, math.inf))
    whole = name in ("crop", "reflect", "cutout", "randaugment")
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


def _fill(shape: tuple[int, ...]) -> int:
    """What an operation that moves pixels lets in: grey, but black for images without colours."""
    return 0 if shape[0] == 1 else GREY


def _color(strength: float) -> ColorJitter:
    s = 0.8 * strength
    return ColorJitter(s, s, s, 0.2 * strength)
