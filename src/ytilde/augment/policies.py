"""Random choices of operations: RandAugment and AutoAugment's policy for CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ytilde.data import BadInput

from .operations import OPERATIONS, TWO_SIDED, code, constant, operate
from .transform import Pair

FOURTEEN = tuple(name for name in OPERATIONS if name != "invert")
GREY = 128  # what comes in from outside an image in the authors' code


@dataclass(frozen=True)
class RandAugment:
    """n of the 14 operations, drawn with replacement for each image. Cubuk et al., 2020.

    magnitude: M of the paper, 0 (nothing) to 10; None draws a strength for each image and operation
    uniformly, as FixMatch and ProMix do. Full strength: 30 degrees, shear 0.3, 10 of 32 pixels,
    factors 0.1 and 1.9, 4 bits, all values solarised. Strength is always the distance from the
    image as it was (in the authors' code a factor of 1 lies in the middle of the scale, and M = 10
    does not solarise), and signs are fair coins. p: the probability of each of the n.
    """

    n: int = 2
    magnitude: float | None = None
    p: float = 1.0
    fill: int = GREY
    operations: tuple[str, ...] = FOURTEEN

    def __post_init__(self) -> None:
        for name in self.operations:
            if name not in OPERATIONS:
                raise BadInput(f"unknown operation {name!r}; choose from {', '.join(OPERATIONS)}")
        if not (self.n >= 1 and 0 < self.p <= 1 and self.operations):
            raise BadInput(f"{self} does nothing: n must be 1 or more, and p in (0, 1]")
        if self.magnitude is not None and not 0 <= self.magnitude <= 10:
            raise BadInput(f"RandAugment's magnitude is {self.magnitude}, but it goes from 0 to 10")

    @property
    def draws(self) -> int:
        return 2 * self.n

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        which, strength = u.unflatten(0, (2, self.n))
        codes = constant((*map(code, self.operations), code("identity")), torch.int64, x.device)
        count = len(self.operations)
        kind = codes[(which * (count / self.p)).long().clamp_(max=count)]
        strength = 2 * strength - 1  # uniform on either side of the image as it is
        if self.magnitude is not None:
            strength = torch.where(strength < 0, -self.magnitude / 10, self.magnitude / 10)
        return operate(x, y, kind, strength, self.fill)


@dataclass(frozen=True)
class AutoAugment:
    """One of the 25 pairs of operations that were found on CIFAR-10. Cubuk et al., CVPR 2019.

    Each operation has a probability and a level of 0 to 9 (a tenth of the full strength each).
    Enhancement factors are 0.1 + 0.18 level; rotations, shears and translations take either side.
    """

    fill: int = GREY

    draws = 5

    def __call__(self, x: Tensor, y: Tensor | None, u: Tensor) -> Pair:
        pair = (u[0] * len(_POLICY)).long().clamp(max=len(_POLICY) - 1)
        kind, p, strength, two_sided = (
            constant(table, dtype, x.device)[pair].T for table, dtype in _TABLES
        )  # [2, B] each
        kind = torch.where(u[1:3] < p, kind, code("identity"))
        strength = torch.where(two_sided & (u[3:] < 0.5), -strength, strength)
        return operate(x, y, kind, strength, self.fill)


# The paper's table 7: operation, probability, level (0 where it means nothing, 10 for all of it).
_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 10), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 10)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 10)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)
_FACTORS = ("brightness", "color", "contrast", "sharpness")


def _table(value: Callable[[str, float, int], float]) -> tuple:
    return tuple(tuple(value(*part) for part in pair) for pair in _POLICY)


# Codes, probabilities, strengths, and whether a strength takes either side: [25][2] each. A factor
# of 0.1 + 0.18 level becomes its distance from 1 over the largest, 0.9.
_TABLES = (
    (_table(lambda name, p, level: code(name)), torch.int64),
    (_table(lambda name, p, level: p), torch.float32),
    (
        _table(lambda name, p, level: level / (5 if name in _FACTORS else 10) - (name in _FACTORS)),
        torch.float64,
    ),
    (_table(lambda name, p, level: name in TWO_SIDED), torch.bool),
)
