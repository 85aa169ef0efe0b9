"""Rows to train on and rows to hold out."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadInput


def split(
    y: Tensor | int, fraction: float, generator: torch.Generator, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold out, sorted; y is the observed labels, or a number of rows.

    `round(fraction * n)` rows are held out, of each observed class its share (to within one row).
    groups [N]: so many of the groups instead, each as a whole and by the class of its first row.
    """
    if groups is not None:
        group, first = _first_rows(groups)
        _, held = split(len(first) if isinstance(y, int) else y[first], fraction, generator)
        out = torch.isin(group, held)
        return (~out).nonzero()[:, 0], out.nonzero()[:, 0]
    if not 0 <= fraction < 1:
        raise BadInput(f"The held-out fraction is {fraction}; it must be at least 0 and below 1.")
    n = y if isinstance(y, int) else len(y)
    order = torch.randperm(n, generator=generator, device=generator.device).cpu()
    if isinstance(y, Tensor) and y.ndim == 1:
        order = order[torch.argsort(y.cpu()[order], stable=True)]
    m = min(n - 1, max(1, round(fraction * n))) if fraction > 0 else 0
    held = torch.zeros(n, dtype=torch.bool)
    held[order[(torch.arange(m) * n + n // 2) // max(1, m)]] = True  # evenly along the classes
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def _first_rows(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each row's group, from 0, and the first row of each group."""
    names, group = groups.unique(return_inverse=True)
    rows = torch.arange(len(groups))
    first = torch.full((len(names),), len(groups)).scatter_reduce(0, group, rows, "amin")
    return group, first
