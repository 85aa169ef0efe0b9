"""Does the noise depend on the input? Two cheap models, and a test that knows their weaknesses.

Ridge regressions of the labels, whose leave-one-out predictions cost one matrix product, say what
class each row seems to have. Under one transition matrix the labels then depend on that class, and
on nothing else of the row; but a weak model errs in some places more than in others, which looks
alike. So the models are asked again, of their own first answers instead of the labels: how sure
they are then tells how far a row is from another class, however noisy its surroundings are. What
the class and these scores explain of the labels is taken off, and the rest must have nothing to do
with the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)  # more for noisier labels; the leave-one-out error chooses
LANDMARKS = 1000  # rows that span the kernel
RELEVANCE = 30  # features up to which each gets a weight of its own
CLEAR = 0.6  # share of the rows of a class, those of the largest margin, that is tested
FEW = 20  # wrong labels under which there is nothing to test
TIE = 0.1  # a class whose two likeliest labels are closer than this may be taken for the other
DIRECTIONS = 50  # principal components that the test looks along


@dataclass(frozen=True)
class Dependence:
    """The test of H0: one T explains the labels. Small p_value: the noise depends on the input.

    score: how far, in standard deviations of H0, the labels' rest depends on the features in the
    way (of eight) in which it does so most; expected: the mean of that under H0. conclusive: False
    where there are too few wrong labels, or a class has two labels that are nearly as likely.
    """

    score: float
    expected: float
    p_value: float
    draws: int
    conclusive: bool = True


# ---- the models ----------------------------------------------------------------------------------


class Ridge(NamedTuple):
    """Ridge regression over fixed rows: everything about it that labels do not change.

    Its predictions are basis @ basis.T @ labels; leverage: the diagonal of that matrix.
    """

    basis: Tensor
    leverage: Tensor

    @staticmethod
    def of(features: Tensor, ridges: tuple[float, ...]) -> list[Ridge]:
        """One for each penalty."""
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
    sd = centred.std(0)
    varies = sd > 1e-6 * sd.max().clamp_min(1e-30)
    return (centred[:, varies] / sd[varies]).float()


def kernel_features(x: Tensor, landmarks: int, generator: torch.Generator) -> Tensor:
    """Features [N, m] whose products are a Gaussian kernel's, spanned by m rows (Nystroem).

    Its width is the median distance to the tenth neighbour.
    """
    order = torch.randperm(len(x), generator=generator)
    x = x.double()  # in float32 the kernel of equal rows may have no root
    centres, some = x[order[:landmarks]], x[order[:500]]
    near = torch.cdist(some, x).topk(min(11, len(x)), largest=False).values[:, -1].median()
    width = 2 * near.square().clamp_min(1e-12)
    K = torch.exp(-torch.cdist(centres, centres).square() / width)
    K.diagonal().add_(1e-5)
    across = torch.exp(-torch.cdist(x, centres).square() / width)
    root = torch.linalg.cholesky(K)
    return torch.linalg.solve_triangular(root, across.T, upper=False).T.float()


def fit_kernel(x: Tensor, y: Tensor, num_classes: int, generator: torch.Generator) -> Ridge:
    """Kernel ridge regression; scaling and penalty by the leave-one-out error of y, chosen once."""
    Y = one_hot(y, num_classes).float()
    centred = (x.double() - x.double().mean(0)).float()
    scalings = [centred / centred.norm(dim=1).mean().clamp_min(1e-12), standardised(x)]
    if 1 < scalings[1].shape[1] <= RELEVANCE:
        scalings.append(scalings[1] * _relevance(scalings[1], Y, generator))
    found = [
        ridge
        for scaled in scalings
        for ridge in Ridge.of(kernel_features(scaled, LANDMARKS, generator), RIDGES)
    ]
    return min(found, key=lambda ridge: ridge.error(Y))


def _relevance(x: Tensor, Y: Tensor, generator: torch.Generator, sweeps: int = 2) -> Tensor:
    """A weight for each feature: halved, doubled or 0 where the leave-one-out error falls."""
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


# ---- the test ------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """What is made of labels: of the observed ones, and of each draw of H0's."""

    scores: Tensor  # [ways] dependence of the rest on the features
    expected: Tensor  # [N, K] the labels' probabilities by class and scores: H0
    wrong: int  # labels among the clear rows that are not the class's
    tie: bool


def dependence(
    x: Tensor,
    y: Tensor,
    num_classes: int,
    *,
    model: Ridge,
    draws: int,
    generator: torch.Generator,
) -> Dependence:
    """Do the labels depend on the features beyond what the class and the models' scores explain?

    H0's labels are drawn from what these explain, and everything from the first prediction on is
    done anew for each draw, so that the models' errors are in the null distribution too.
    """
    z = _directions(standardised(x), generator)
    linear = Ridge.of(z, (1.0,))[0]
    views = _views(z, generator)
    (found,) = _judge(model, linear, views, y[:, None], num_classes)
    null: list[Tensor] = []
    at_once = max(1, min(10, int(2e7) // (len(y) * num_classes)))  # one product for many labels
    while len(null) < draws:
        count = min(at_once, draws - len(null))
        simulated = torch.multinomial(found.expected, count, True, generator=generator)
        null += [each.scores for each in _judge(model, linear, views, simulated, num_classes)]
    every = torch.stack([found.scores, *null])
    highest = ((every - every.mean(0)) / every.std(0, correction=0).clamp_min(1e-12)).amax(1)
    # scores that differ by rounding alone are ties, and ties count against dependence
    higher = int((highest[1:] >= highest[0] - 1e-6).sum())
    sd, mean = every[1:].std(0, correction=0), every[1:].mean(0)
    score = float(((found.scores - mean) / sd.clamp_min(1e-12)).max()) if draws else 0.0
    return Dependence(
        score=score,
        expected=float(highest[1:].mean()) if draws else 0.0,
        p_value=(1 + higher) / (draws + 1),
        draws=draws,
        conclusive=found.wrong >= FEW and not found.tie,
    )


def _directions(z: Tensor, generator: torch.Generator) -> Tensor:
    """The features themselves, or their first principal components where there are many."""
    if z.shape[1] <= DIRECTIONS:
        return z
    if z.shape[1] > 2000:
        z = z @ torch.randn(z.shape[1], 500, generator=generator) / 500**0.5
    vectors = torch.linalg.eigh(z.T @ z).eigenvectors[:, -DIRECTIONS:]
    return standardised(z @ vectors)


def _views(z: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Ways to look for dependence, [N, m] features each: along the directions, over and under
    their quartiles, near to rows and not so near. With the squared length of each row."""
    some = z[torch.randperm(len(z), generator=generator)[:5000]]
    quartiles = some.quantile(torch.tensor([0.25, 0.5, 0.75]), dim=0)
    steps = torch.cat([(z > cut).float() for cut in quartiles], 1)
    found = [z, steps[:, steps.std(0) > 0.05]]
    centres = z[torch.randperm(len(z), generator=generator)[:200]]
    near = torch.cdist(some[:500], z).square()
    width = 2 * near.topk(min(11, len(z)), largest=False).values[:, -1].median().clamp_min(1e-12)
    distance = torch.cdist(z, centres).square()
    found += [torch.exp(-distance / width), torch.exp(-distance / (4 * width))]
    views = [view - view.mean(0) for view in found if view.shape[1]]
    views = [view / view.square().sum(1).mean().sqrt().clamp_min(1e-12) for view in views]
    return [(view, view.square().sum(1)) for view in views]


def _judge(
    model: Ridge, linear: Ridge, views: list[tuple[Tensor, Tensor]], y: Tensor, num_classes: int
) -> list[Judged]:
    """What is made of each column of labels y [N, draws]."""
    shape = (*y.shape, num_classes)

    def predicted(ridge: Ridge, labels: Tensor) -> Tensor:
        Y = one_hot(labels, num_classes).float().flatten(1)
        return ridge.leave_one_out(Y).reshape(shape)

    first = predicted(model, y).argmax(2)
    second, beside = predicted(model, first), predicted(linear, first)
    return [_judge_one(views, y[:, k], second[:, k], beside[:, k]) for k in range(y.shape[1])]


def _judge_one(
    views: list[tuple[Tensor, Tensor]], y: Tensor, second: Tensor, beside: Tensor
) -> Judged:
    Y = one_hot(y, second.shape[1]).float()
    guess = second.argmax(1)
    margins = [_margin(scores, guess) for scores in (second, beside)]
    expected, clear, tie = torch.zeros_like(Y), torch.zeros(len(y)), False
    tested = []
    for k in range(Y.shape[1]):
        rows = (guess == k).nonzero().squeeze(1)
        if not len(rows):
            continue
        expected[rows] = _explained(Y[rows], second[rows], beside[rows], margins, rows, k)
        sure = rows[margins[0][rows].argsort(descending=True)[: int(CLEAR * len(rows))]]
        clear[sure] = 1.0
        if len(sure):
            tested.append(sure)
            shares = Y[sure].mean(0).topk(2).values
            tie |= bool(shares[0] - shares[1] < TIE)
    rest = (Y - expected) * clear[:, None]
    off = rest.gather(1, guess[:, None]).squeeze(1)  # how far the class's own label is missed
    scores = []
    for view, length in views:
        together = (view.T @ off).square().sum() - (off.square() * length).sum()
        apart = sum(float((view[rows].T @ rest[rows]).square().sum()) for rows in tested)
        apart -= float((rest.square().sum(1) * length).sum())
        scores += [together / off.square().sum().clamp_min(1e-9)]
        scores += [torch.as_tensor(apart) / rest.square().sum().clamp_min(1e-9)]
    odds = expected.clamp_min(1e-4)
    wrong = int(((y != guess) & (clear > 0)).sum())
    return Judged(torch.stack(scores), odds / odds.sum(1, keepdim=True), wrong, tie)


def _margin(scores: Tensor, guess: Tensor) -> Tensor:
    """How far the guess is ahead of the best other class; negative where it is behind."""
    own = scores.gather(1, guess[:, None])
    return (own - scores.scatter(1, guess[:, None], -torch.inf).amax(1, keepdim=True)).squeeze(1)


def _explained(
    Y: Tensor, second: Tensor, beside: Tensor, margins: list[Tensor], rows: Tensor, own: int
) -> Tensor:
    """The labels of the rows of one class as their margins and scores explain them, [n, K].

    Least squares on fifths of the one margin and fourths of the other, and on the scores of the
    four classes that are likeliest beside.
    """
    n, num_classes = Y.shape
    parts = [torch.ones(n, 1)]
    for margin, most in zip(margins, (5, 4), strict=True):
        count = min(most, n // 40)
        if count > 1:
            place = margin[rows].argsort().argsort() * count // n
            parts.append(one_hot(place, count)[:, 1:].float())
    others = min(4, num_classes - 1, n // 60)
    if others:
        mass = second.mean(0)
        mass[own] = -torch.inf
        beside_it = mass.topk(others).indices
        parts += [second[:, beside_it], beside[:, beside_it]]
    Z = torch.cat([parts[0], *(part - part.mean(0) for part in parts[1:])], 1)
    A = Z.T @ Z
    A.diagonal()[1:].add_(1.0)
    return Z @ torch.linalg.solve(A, Z.T @ Y)
