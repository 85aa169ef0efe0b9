"""Kernel ridge regression of labels: what the other rows' labels say of each row.

For any labels, leave-one-out predictions cost one matrix product. That makes it cheap to judge a
row without its own label (`panel`), and to redraw the labels a hundred times (`dependence`). The
kernel is spanned by LANDMARKS rows (Nystroem); its scaling and its penalty are those with the
smallest leave-one-out error.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)  # more for noisier labels; the leave-one-out error chooses
LANDMARKS = 1000  # rows that span the kernel
CHOOSE = 4000  # rows, of more, by which scaling and penalty are chosen
RELEVANCE = 30  # up to this many features, each gets a weight of its own


class Ridge(NamedTuple):
    """Ridge regression over fixed rows: the part that does not depend on the labels.

    Its predictions are basis @ basis.T @ labels; leverage is the diagonal of basis @ basis.T.
    """

    basis: Tensor
    leverage: Tensor

    @staticmethod
    def of(features: Tensor, ridges: tuple[float, ...]) -> list[Ridge]:
        """One regression for each penalty."""
        values, vectors = torch.linalg.eigh(features.T @ features)
        along = features @ vectors
        bases = [along / (values.clamp_min(0) + ridge).sqrt() for ridge in ridges]
        return [Ridge(basis, basis.square().sum(1)) for basis in bases]

    def leave_one_out(self, Y: Tensor) -> Tensor:
        """What the other rows' labels Y [N, K] say of each row; sums to 1, but may leave [0, 1]."""
        rest = Y - Y.mean(0)
        own = (rest - self.basis @ (self.basis.T @ rest)) / (1 - self.leverage)[:, None]
        return Y - own

    def error(self, Y: Tensor) -> float:
        return float((self.leave_one_out(Y) - Y).square().sum(1).mean())


def standardised(x: Tensor) -> Tensor:
    """Features of zero mean and unit variance, float32; constant ones are left out."""
    centred = x.double() - x.double().mean(0)
    sd, varies = _spread(centred)
    return (centred[:, varies] / sd[varies]).float()


def _spread(centred: Tensor) -> tuple[Tensor, Tensor]:
    """The standard deviation of each feature, and whether it varies at all."""
    sd = centred.std(0)
    return sd, sd > 1e-6 * sd.max().clamp_min(1e-30)


class Span(NamedTuple):
    """A Gaussian kernel spanned by a few rows (Nystroem)."""

    centres: Tensor
    width: Tensor
    root: Tensor

    @staticmethod
    def of(x: Tensor, landmarks: int, generator: torch.Generator) -> Span:
        """Spanned by some rows of x; its scale is the median distance to the tenth neighbour."""
        order = torch.randperm(len(x), generator=generator)
        x = x.double()  # in float32 the kernel of equal rows may have no root
        centres, some = x[order[:landmarks]], x[order[:500]]
        distance = torch.cdist(some, x)
        near = distance.topk(min(11, len(x)), largest=False).values[:, -1].median()
        rounding = 1e-5 * distance.mean()  # and more: the kernel of equal rows needs a root
        if near <= rounding:  # most rows have ten that are equal: the nearest different one, then
            nearest = distance.where(distance > rounding, torch.inf).amin(1)
            near = nearest[nearest.isfinite()].median() if rounding > 0 else torch.ones_like(near)
        width = 2 * near.square().clamp_min(1e-12)
        K = torch.exp(-torch.cdist(centres, centres).square() / width)
        K.diagonal().add_(1e-5)
        return Span(centres, width, torch.linalg.cholesky(K))

    def features(self, x: Tensor) -> Tensor:
        """Features [N, m] whose products are the kernel's."""
        across = torch.exp(-torch.cdist(x.double(), self.centres).square() / self.width)
        return torch.linalg.solve_triangular(self.root, across.T, upper=False).T.float()


def kernel_features(x: Tensor, landmarks: int, generator: torch.Generator) -> Tensor:
    """Features [N, m] whose products are a Gaussian kernel's, spanned by m of the rows."""
    return Span.of(x, landmarks, generator).features(x)


class Kernel(NamedTuple):
    """Kernel ridge regression, with the scaled features."""

    ridge: Ridge
    x: Tensor
    scale: Tensor  # [D], multiplies the given features
    penalty: float

    def leave_one_out(self, Y: Tensor) -> Tensor:
        return self.ridge.leave_one_out(Y)


def fit_kernel(x: Tensor, y: Tensor, num_classes: int, generator: torch.Generator) -> Kernel:
    """Kernel ridge regression; scaling and penalty by the leave-one-out error of y, chosen once."""
    Y = one_hot(y, num_classes).float()
    centred = x.double() - x.double().mean(0)
    sd, varies = _spread(centred)
    even = 1 / centred.norm(dim=1).mean().clamp_min(1e-12)
    scales = [even.expand(len(sd)), torch.where(varies, 1 / sd.clamp_min(1e-30), 0.0)]
    if 1 < int(varies.sum()) <= RELEVANCE:
        weights = scales[1].clone()
        weights[varies] *= _relevance((centred[:, varies] / sd[varies]).float(), Y, generator)
        scales.append(weights)
    found = []
    for scale in scales:
        scaled = (centred * scale).float()
        bases = Ridge.of(kernel_features(scaled, LANDMARKS, generator), RIDGES)
        found += [Kernel(b, scaled, scale, r) for b, r in zip(bases, RIDGES, strict=True)]
    return min(found, key=lambda kernel: kernel.ridge.error(Y))


def kernel_scores(x: Tensor, y: Tensor, asked: Tensor, num_classes: int) -> Tensor:
    """What the labels of the rows `asked` say of each row [N, K]; never the row's own label.

    Scaling and penalty are chosen by CHOOSE rows.
    """
    generator = torch.Generator().manual_seed(0)
    some = asked[torch.randperm(len(asked), generator=generator)[:CHOOSE]]
    chosen = fit_kernel(x[some], y[some], num_classes, generator)
    scaled = (x.double() - x[some].double().mean(0)) * chosen.scale
    span = Span.of(scaled[asked], LANDMARKS, generator)
    features, Y = span.features(scaled[asked]), one_hot(y[asked], num_classes).float()
    rest = Y - Y.mean(0)
    gram = features.T @ features
    gram.diagonal().add_(chosen.penalty)
    weights = torch.linalg.solve(gram, features.T @ rest)
    scores = torch.cat([span.features(part) @ weights for part in scaled.split(4096)]) + Y.mean(0)
    (ridge,) = Ridge.of(features, (chosen.penalty,))
    scores[asked] = ridge.leave_one_out(Y)
    return scores


def _relevance(x: Tensor, Y: Tensor, generator: torch.Generator, sweeps: int = 2) -> Tensor:
    """A weight for each feature: halved, doubled or set to 0 if that lowers the error."""
    rows = torch.randperm(len(x), generator=generator)[:LANDMARKS]
    x, Y = x[rows], Y[rows]
    seed = int(torch.randint(2**31, (1,), generator=generator))

    def error(weights: Tensor) -> float:
        same = torch.Generator().manual_seed(seed)
        features = kernel_features(x * weights, 150, same)
        return min(ridge.error(Y) for ridge in Ridge.of(features, (1.0, 5.0)))

    weights = torch.ones(x.shape[1])
    least = error(weights)
    for _ in range(sweeps):
        before = weights
        for k in range(x.shape[1]):
            for factor in (0.0, 0.5, 2.0):
                tried = weights.clone()
                tried[k] = tried[k] * factor if tried[k] else factor
                if tried.any() and (now := error(tried)) < 0.998 * least:
                    weights, least = tried, now
        if before is weights:
            break
    return weights
