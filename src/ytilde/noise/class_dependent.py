"""Noise that depends on the class alone: symmetric, asymmetric, pair, classwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..data import IGNORE
from ..datasets.classes import CIFAR100_COARSE
from ..errors import BadInput
from .noisy import Noisy, _cdf, _known, _labels, _rate, _uniform

# Redraw probability of each of ten classes: softmax-temperature paper, 5.1, C.2 and C.3.
SETTINGS = {
    "main": (0, 0, 0, 0, 0, 0.2, 0.3, 0.4, 0.5, 0.6),
    "uniform": (0.2,) * 10,
    "reduced": (0, 0, 0, 0, 0, 0.10, 0.15, 0.20, 0.25, 0.30),
    "increased": (0, 0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75),
}


def _next_within(groups: Sequence[int]) -> dict[int, int]:
    """Each class to the next one of its group, the last to the first."""
    found: dict[int, int] = {}
    for group in set(groups):
        members = [c for c, g in enumerate(groups) if g == group]
        found |= dict(zip(members, members[1:] + members[:1], strict=True))
    return found


# name: (classes, true class -> wrong class)
MAPS: dict[str, tuple[int, dict[int, int]]] = {
    "mnist": (10, {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}),
    # The literature's map (Patrini et al. 2017), which also made the logistic-normal paper's
    # numbers; that paper's text leaves truck -> automobile out.
    "cifar10": (10, {2: 0, 3: 5, 5: 3, 4: 7, 9: 1}),
    "cifar10_text": (10, {2: 0, 3: 5, 5: 3, 4: 7}),
    "cifar100": (100, _next_within([0] * 100)),
    "cifar100_coarse": (100, _next_within(CIFAR100_COARSE)),
}


def symmetric(
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    inclusive: bool = True,
    exact: bool = False,
    generator: torch.Generator,
) -> Noisy:
    """With probability `rate`, a label drawn uniformly from all classes.

    Args:
        y: true labels [N], or [N, H, W] for pixels; -1 stays -1.
        num_classes: K.
        rate: of the redrawn labels.
        inclusive: the own class is among those drawn, T = (1 - r) I + r/K, so r (K-1)/K of the
            labels are wrong (logistic-normal and softmax-temperature papers); else
            T_ij = r/(K-1) off the diagonal (Co-teaching, VolMinNet).
        exact: redraw round(rate N) labels, the first of a permutation, instead of each by chance.
        generator: where all draws come from; results lie on the CPU.

    Returns:
        The labels and the T that they were drawn from.

    Example:
        >>> y = torch.arange(1000) % 10
        >>> generator = torch.Generator().manual_seed(0)
        >>> made = symmetric(y, 10, rate=0.4, inclusive=False, exact=True, generator=generator)
        >>> made.rate, made.matrix[0, :2]
        (0.4, tensor([0.6000, 0.0444]))
    """
    clean = _labels(y, num_classes)
    redraw = torch.full((num_classes,), _rate(rate), dtype=torch.float64)
    target = torch.ones(num_classes, num_classes, dtype=torch.float64)
    if not inclusive:
        target.fill_diagonal_(0)
    chosen = _exactly(clean != IGNORE, rate, generator) if exact else None
    return _redraw("symmetric", clean, redraw, target, generator, chosen)


def asymmetric(
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    mapping: str | Mapping[int, int],
    exact: bool = False,
    generator: torch.Generator,
) -> Noisy:
    """Each class in `mapping` flips to its wrong class with probability `rate`.

    Args:
        y: true labels [N], or [N, H, W] for pixels; -1 stays -1.
        num_classes: K.
        rate: of the flips.
        mapping: {true class: wrong class}, or "mnist", "cifar10", "cifar10_text" (without trucks;
            both logistic-normal paper), "cifar100" (c -> c+1) or "cifar100_coarse" (the next class
            of the same superclass).
        exact: flip round(rate n_c) labels of each mapped class instead of each by chance.
        generator: where all draws come from; results lie on the CPU.

    Returns:
        The labels and the T that they were drawn from.

    Example:
        >>> y = torch.arange(1000) % 10
        >>> generator = torch.Generator().manual_seed(0)
        >>> made = asymmetric(y, 10, rate=0.4, mapping={9: 1}, exact=True, generator=generator)
        >>> made.rate, made.matrix[9, [1, 9]]
        (0.04, tensor([0.4000, 0.6000]))
    """
    return _mapped("asymmetric", y, num_classes, rate, mapping, exact, generator)


def pair(
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    exact: bool = False,
    generator: torch.Generator,
) -> Noisy:
    """Pair flip (Co-teaching): c -> c+1 mod K with probability `rate`.

    Args:
        y: true labels [N], or [N, H, W] for pixels; -1 stays -1.
        num_classes: K.
        rate: of the flips.
        exact: flip round(rate n_c) labels of each class instead of each by chance.
        generator: where all draws come from; results lie on the CPU.

    Returns:
        The labels and the T that they were drawn from.

    Example:
        >>> y = torch.tensor([0, 1, 2])
        >>> pair(y, 3, rate=1.0, generator=torch.Generator().manual_seed(0)).y
        tensor([1, 2, 0])
    """
    mapping = _next_within([0] * num_classes)
    return _mapped("pair", y, num_classes, rate, mapping, exact, generator)


def classwise(
    y: Tensor,
    num_classes: int,
    *,
    setting: str | None = None,
    rates: Sequence[float] | None = None,
    generator: torch.Generator,
) -> Noisy:
    """A label of class c is drawn anew from all classes, its own included, with its class's rate.

    Softmax-temperature paper, 5.1.

    Args:
        y: true labels [N], or [N, H, W] for pixels; -1 stays -1.
        num_classes: K.
        setting: for ten classes, of that paper: "main" (5.1), "uniform" (C.2), "reduced" or
            "increased" (C.3).
        rates: in the place of a setting, one a class.
        generator: where all draws come from; results lie on the CPU.

    Returns:
        The labels and the T that they were drawn from.

    Example:
        >>> y = torch.arange(1000) % 10
        >>> made = classwise(y, 10, setting="main", generator=torch.Generator().manual_seed(0))
        >>> made.matrix.diagonal()
        tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 0.8200, 0.7300, 0.6400, 0.5500,
                0.4600])
    """
    clean = _labels(y, num_classes)
    if (setting is None) == (rates is None):
        raise BadInput("classwise noise needs either a setting or rates; give one of the two.")
    if setting is not None:
        rates = SETTINGS[_known("setting of classwise noise", setting, SETTINGS)]
    assert rates is not None
    if len(rates) != num_classes:
        raise BadInput(
            f"classwise noise has {len(rates)} rates for {num_classes} classes; give one per class."
        )
    redraw = torch.tensor([_rate(rate) for rate in rates], dtype=torch.float64)
    target = torch.ones(num_classes, num_classes, dtype=torch.float64)
    return _redraw("classwise", clean, redraw, target, generator)


def _mapped(
    kind: str,
    y: Tensor,
    num_classes: int,
    rate: float,
    mapping: str | Mapping[int, int],
    exact: bool,
    generator: torch.Generator,
) -> Noisy:
    clean = _labels(y, num_classes)
    if isinstance(mapping, str):
        size, mapping = MAPS[_known("mapping", mapping, MAPS)]
        if size != num_classes:
            raise BadInput(f"this mapping is of {size} classes, not {num_classes}; give a dict.")
    redraw = torch.zeros(num_classes, dtype=torch.float64)
    target = torch.eye(num_classes, dtype=torch.float64)
    chosen = torch.zeros_like(clean, dtype=torch.bool) if exact else None
    for c, wrong in mapping.items():
        if not (0 <= c < num_classes and 0 <= wrong < num_classes):
            raise BadInput(f"the mapping {c} -> {wrong} leaves the {num_classes} classes.")
        redraw[c] = _rate(rate)
        target[c] = torch.eye(num_classes)[wrong]
        if chosen is not None:
            chosen |= _exactly(clean == c, rate, generator)
    return _redraw(kind, clean, redraw, target, generator, chosen)


def _redraw(
    kind: str,
    clean: Tensor,
    redraw: Tensor,
    target: Tensor,
    generator: torch.Generator,
    chosen: Tensor | None = None,
) -> Noisy:
    """Noise of the class alone: T = diag(1 - redraw) + redraw target.

    redraw [K]: how likely a label of the class is drawn anew. target [K, K]: with which weights.
    chosen: a mask of the labels to draw anew, where chance shall not decide.
    """
    target = target / target.sum(-1, keepdim=True)
    noisy = clean.clone()
    for c, row in enumerate(target):
        members = clean == c
        count = int(members.sum())
        again = _uniform(count, generator) < redraw[c] if chosen is None else chosen[members]
        drawn = torch.searchsorted(_cdf(row), _uniform(count, generator), right=True)
        noisy[members] = torch.where(again, drawn, c)
    matrix = torch.diag(1 - redraw) + redraw.unsqueeze(-1) * target
    return Noisy(noisy, clean, kind, matrix.float())


def _exactly(members: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """A mask of round(rate n) of the n members, at random."""
    count = int(members.sum())
    rank = _uniform(count, generator).argsort()
    return members.masked_scatter(members, rank < round(rate * count))
