"""What a transform is, and transforms one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard, overload

import torch
from torch import Tensor

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


def has_pixel_labels(y: Tensor | None) -> TypeGuard[Tensor]:
    """Labels [B, H, W], which move with their pixels."""
    return y is not None and y.ndim > 1
