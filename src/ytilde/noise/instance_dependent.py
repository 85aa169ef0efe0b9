"""Noise that depends on the input, and the law that any row of its T(x) follows from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data import IGNORE, Rows
from ..data.precision import keep_double
from ..errors import BadInput
from .noisy import Noisy, _cdf, _known, _labels, _rate, _uniform

FEATURES = ("standardized", "raw255")
SPREAD = 0.1  # standard deviation of the flip rates of instance noise (Xia et al. 2020, alg. 2)
CHUNK = 2**25  # input values held as float32 at a time: 128 MB


def instance(
    x: Rows,
    y: Tensor,
    num_classes: int,
    *,
    rate: float,
    features: str = "standardized",
    temperature: float = 1.0,
    generator: torch.Generator,
) -> Noisy:
    """Instance-dependent noise: Xia et al., NeurIPS 2020, algorithm 2.

    q ~ TruncNormal(rate, 0.1, [0, 1]); a = x^T W[clean] with W ~ N(0, 1) of shape [K, S, K];
    row = q softmax(a / temperature) over the other classes and 1 - q on the own. E[q] exceeds a
    small rate (0.129 for 0.1, 0.2055 for 0.2); rate 0 alone means no noise at all.

    Args:
        x: features [N, D] or images [N, C, H, W], in memory or as a lazy reader.
        y: true labels [N]; -1 stays -1.
        num_classes: K.
        rate: about how many labels become wrong.
        features: "standardized" (each to mean 0, variance 1; constant ones to 0), or "raw255", the
            pixels as 0..255 that made the published tables (other features as they are). The mean
            image then dominates a, and the class all but decides the wrong label.
        temperature: above 1 the wrong label depends less on the input.
        generator: where all draws come from; results lie on the CPU.

    Returns:
        The labels, the row of T(x) that each was drawn from, and any row's full T(x).

    Example:
        >>> x, y = torch.randn(1000, 5), torch.arange(1000) % 4
        >>> made = instance(x, y, 4, rate=0.3, generator=torch.Generator().manual_seed(0))
        >>> made.rows.shape, made.transition(torch.tensor([0, 1])).shape, round(made.rate, 1)
        (torch.Size([1000, 4]), torch.Size([2, 4, 4]), 0.3)
    """
    clean = _labels(y, num_classes)
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    _known("features", features, FEATURES)
    if clean.ndim != 1 or len(x) != len(clean):
        raise BadInput(
            f"instance noise needs one label per input, not labels {list(clean.shape)} "
            f"for inputs {list(x.shape)}."
        )
    rate = _rate(rate)
    if not temperature > 0:
        raise BadInput(f"temperature must be above 0, not {temperature}.")
    shift, scale = _moments(x) if features == "standardized" else _raw255(x)
    q = _flip_rates(rate, _uniform(len(clean), generator))
    seeds = (_uniform(num_classes, generator) * 2**53).long().tolist()
    law = _Law(x, shift, scale / temperature, q.float(), seeds)

    u = _uniform(len(clean), generator)
    rows, noisy = torch.zeros(len(clean), num_classes), clean.clone()
    for c in clean[clean != IGNORE].unique().tolist():
        projection = law.projection(c)
        for index in _chunks(x, (clean == c).nonzero().flatten()):
            rows[index] = row = law.row(law.inputs(index), index, c, projection)
            noisy[index] = torch.searchsorted(_cdf(row), u[index, None], right=True).flatten()
    return _InstanceNoisy(noisy, clean, "instance", _class_means(rows, clean), law, rows)


@dataclass(frozen=True, eq=False, repr=False)
class _Law:
    """How instance noise depends on the input; enough to compute any row of T again.

    Neither W [K, S, K] nor T [N, K, K] is ever held: W[c] is drawn from its own seed when needed.
    """

    x: Rows
    shift: Tensor  # input = (x - shift) * scale, [S] or a scalar
    scale: Tensor
    q: Tensor  # flip rates, [N]
    seeds: list[int]  # of W[c]

    def projection(self, c: int) -> Tensor:
        """W[c], [S, K]."""
        generator = torch.Generator().manual_seed(self.seeds[c])
        return torch.randn(_size(self.x), len(self.seeds), generator=generator)

    def inputs(self, index: Tensor) -> Tensor:
        # Not in place on the first step: a reader may hand out what it keeps.
        return (_read(self.x, index) - self.shift).mul_(self.scale).float()

    def row(self, inputs: Tensor, index: Tensor, c: int, projection: Tensor) -> Tensor:
        """Row c of T(x), [n, K]: p(y | true class c, x)."""
        a = inputs @ projection
        if not a.isfinite().all():
            raise BadInput("x holds values that are not finite; replace them first.")
        q = self.q[index]
        a[:, c] = -torch.inf
        row = a.softmax(-1) * q.unsqueeze(-1)
        row[:, c] = 1 - q
        return row


@dataclass(frozen=True, eq=False, repr=False)
class _InstanceNoisy(Noisy):
    """`matrix` is the mean of T(x) over each class's own examples (identity where it has none)."""

    law: _Law
    own_rows: Tensor

    @property
    def rows(self) -> Tensor:
        return self.own_rows

    def transition(self, index: Tensor) -> Tensor:
        index, num_classes = torch.as_tensor(index), len(self.matrix)
        found = torch.empty(len(index), num_classes, num_classes)
        for place in _chunks(self.law.x, torch.arange(len(index))):
            part = index[place]
            inputs = self.law.inputs(part)
            for c in range(num_classes):
                found[place, c] = self.law.row(inputs, part, c, self.law.projection(c))
        # The labels were drawn from the stored rows; a product over another chunk rounds otherwise.
        own = self.clean[index]
        known = (own != IGNORE).nonzero().flatten()
        found[known, own[known]] = self.own_rows[index[known]]
        return found

    def _weighted_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        known = self.clean != IGNORE
        return self.own_rows[known], self.clean[known], known[known].double()


def _flip_rates(rate: float, u: Tensor) -> Tensor:
    """TruncNormal(rate, SPREAD, [0, 1]) of uniform u, by the inverse of its distribution."""
    if rate == 0:  # a study's column "no noise" means none, not the half normal's 8%
        return torch.zeros_like(u)
    low, high = torch.special.ndtr((torch.tensor([0.0, 1.0]).double() - rate) / SPREAD)
    return (rate + SPREAD * torch.special.ndtri(low + u * (high - low))).clamp(0, 1)


def _moments(x: Rows) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of each feature over the data set (0 if constant), [S]."""
    # Sums are taken of differences from a rough mean: exact for constants, and nothing cancels.
    some = _read(x, torch.arange(min(64, len(x))))
    rough = some.double().mean(0).to(some.dtype)
    first = second = torch.zeros(len(rough), dtype=torch.float64)
    for index in _chunks(x, torch.arange(len(x))):
        offset = _read(x, index) - rough
        first = first + offset.sum(0)
        second = second + offset.square_().sum(0)
    mean = first / len(x)
    variance = second / len(x) - mean.square()
    scale = torch.where(variance > 0, variance.clamp(min=1e-300).rsqrt(), 0.0)
    scale = torch.where(variance.isnan(), torch.nan, scale)
    return (rough + mean).to(rough.dtype), scale.to(rough.dtype)


def _raw255(x: Rows) -> tuple[Tensor, Tensor]:
    is_unit = len(x.shape) > 2 and x[torch.arange(1)].is_floating_point()  # an image in [0, 1]
    return torch.tensor(0.0), torch.tensor(255.0 if is_unit else 1.0)


def _size(x: Rows) -> int:
    return int(torch.Size(x.shape[1:]).numel())


def _read(x: Rows, index: Tensor) -> Tensor:
    return keep_double(x[index].cpu().flatten(1))


def _chunks(x: Rows, index: Tensor) -> Iterator[Tensor]:
    """The index in parts whose inputs fit in CHUNK values; none if it is empty."""
    return (part for part in index.split(max(1, CHUNK // _size(x))) if len(part))


def _class_means(rows: Tensor, clean: Tensor) -> Tensor:
    means = torch.eye(rows.shape[-1])
    for c in clean.unique().tolist():
        if c != IGNORE:
            means[c] = rows[clean == c].mean(0)
    return means
