"""Rows to train on and rows to hold out."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadInput
from .types import IGNORE


def split(
    y: Tensor | int, fraction: float, generator: torch.Generator, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold out, sorted; y is the observed labels, or a number of rows.

    `round(fraction * n)` rows are held out, of each observed class its share (to within one row).
    A whole number, 1 or more, is that of rows of each observed class, of a small one half of them.
    groups [N]: so many of the groups instead, each as a whole and by the class of its first row.
    """
    if groups is not None:
        group, first = _first_rows(groups)
        _, held = split(len(first) if isinstance(y, int) else y[first], fraction, generator)
        out = torch.isin(group, held)
        return (~out).nonzero()[:, 0], out.nonzero()[:, 0]
    if fraction < 0 or (fraction >= 1 and fraction != int(fraction)):
        raise BadInput(
            f"The held-out fraction is {fraction}; it must be at least 0 and below 1, or a whole "
            "number of rows of each class."
        )
    n = y if isinstance(y, int) else len(y)
    order = torch.randperm(n, generator=generator, device=generator.device).cpu()
    if fraction >= 1:
        return _of_each_class(y, order, int(fraction))
    if isinstance(y, Tensor) and y.ndim == 1:
        small = y.cpu().to(torch.int16 if y.max() < 2**15 else torch.int32)  # sorting copies it
        order = order[torch.argsort(small[order], stable=True)]
    m = min(n - 1, max(1, round(fraction * n))) if fraction > 0 else 0
    held = torch.zeros(n, dtype=torch.bool)
    held[order[(torch.arange(m) * n + n // 2) // max(1, m)]] = True  # evenly along the classes
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def folds(
    y: Tensor, count: int, generator: torch.Generator, groups: Tensor | None = None
) -> Tensor:
    """The fold of each row, 0 to count - 1: of every class as many rows in each, within one.

    groups [N]: a group is in one fold, by the class of its first row. Pixel labels [N, H, W] are no
    classes of rows.
    """
    if groups is not None:
        group, first = _first_rows(groups)
        return folds(y[first], count, generator)[group]
    order = torch.randperm(len(y), generator=generator, device=generator.device).cpu()
    if y.ndim == 1:
        order = order[torch.argsort(y.cpu()[order], stable=True)]
    fold = torch.empty(len(y), dtype=torch.int64)
    fold[order] = torch.arange(len(y)) % count
    return fold


def _first_rows(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each row's group, from 0, and the first row of each group."""
    names, group = groups.unique(return_inverse=True)
    rows = torch.arange(len(groups))
    first = torch.full((len(names),), len(groups)).scatter_reduce(0, group, rows, "amin")
    return group, first


def _of_each_class(y: Tensor | int, order: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if isinstance(y, int) or y.ndim != 1:
        raise BadInput("Rows of each class can be held out only where every row has one label.")
    held = torch.zeros(len(y), dtype=torch.bool)
    label = y.cpu()[order]
    for c in label[label != IGNORE].unique():
        own = order[label == c]
        held[own[: min(count, len(own) // 2)]] = True
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]
