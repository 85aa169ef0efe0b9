"""Does the noise depend on the input? Two questions, asked of cheap models on all rows.

Ridge regressions of the labels, whose leave-one-out predictions cost one matrix product, say what
class each row seems to have. Under one transition matrix the labels depend on that class and on
nothing else of the row.

- Do neighbours share their wrong labels more than that allows?
- Is a wrong label likelier in some places? A weak model errs in some places more than in others,
  which looks alike. So the models are asked again, of their own first answers instead of the
  labels: how sure they are then tells how far a row is from another class, however noisy its
  surroundings are. What class and scores explain of the wrong labels is taken off, and the rest
  must have nothing to do with the features.

Both compare with labels drawn under H0, for which everything from the first prediction on is done
anew, so that the models' errors are in the null distribution too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .audit import overlap
from .kernel import Kernel, Ridge, standardised

CLEAR = 0.5  # share of the rows of a class, those of the largest margin, whose neighbours are asked
CLEARER = 0.35  # the same where classes overlap: the model's own errors lie in patches, like noise
OVERLAP = 0.09  # share of rows of which the model is wrong from which on classes overlap
NEIGHBOURS = 15
NEAR_ROWS = 4000  # that are asked at most: their distances are kept
SURE = (0.35, 0.6)  # shares of the rows of a class that are tested for places
WEAK = 0.04  # more labels missed among all rows than among the surest: the model errs
FEW = 20  # wrong labels under which there is nothing to test
TIE = 0.1  # a class whose two likeliest labels are closer than this may be taken for the other
PARTS = (5, 4)  # of equal size that the two margins of a class are cut into, at most
DIRECTIONS = 50  # principal components that the test looks along


@dataclass(frozen=True)
class Dependence:
    """The test of H0: one T explains the labels. Small p_value: the noise depends on the input.

    gain: nats a label by which the neighbours' labels say more than the class's row of T, on rows
    whose class is clear; expected: the mean of that under H0. score: how far, in standard
    deviations of H0, wrong labels depend on the place. p_neighbours, p_place: of either; p_value:
    twice the smaller. conclusive: False where there are too few wrong labels, or a class has two
    labels that are nearly as likely.
    """

    gain: float
    expected: float
    score: float
    p_neighbours: float
    p_place: float
    p_value: float
    draws: int
    conclusive: bool = True


# ---- the test ------------------------------------------------------------------------------------


def dependence(
    x: Tensor,
    y: Tensor,
    num_classes: int,
    *,
    model: Kernel,
    draws: int,
    generator: torch.Generator,
) -> Dependence:
    """Asks both questions; either may answer yes at half the level.

    Args:
        x: the features [N, D].
        y: the labels [N].
        num_classes: K.
        model: of these labels.
        draws: of labels under H0; the smallest p-value is 2 / (draws + 1).
        generator: of every draw.
    """
    gain, expected, p_neighbours, conclusive = _ask_neighbours(
        model, y, num_classes, draws, generator
    )
    score, p_place = _ask_places(x, model, y, num_classes, draws, generator)
    return Dependence(
        gain=gain,
        expected=expected,
        score=score,
        p_neighbours=p_neighbours,
        p_place=p_place,
        p_value=min(1.0, 2 * min(p_neighbours, p_place)),
        draws=draws,
        conclusive=conclusive,
    )


def _draws(rows: Tensor, draws: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Labels [N, some] drawn from their probabilities [N, K], some at once: one product serves."""
    at_once = max(1, min(10, int(2e7) // rows.numel()))
    for done in range(0, draws, at_once):
        yield torch.multinomial(rows, min(at_once, draws - done), True, generator=generator)


def _predicted(ridge: Ridge | Kernel, labels: Tensor, num_classes: int) -> Tensor:
    """Leave-one-out scores [N, some, K] of labels [N, some]."""
    Y = one_hot(labels, num_classes).float().flatten(1)
    return ridge.leave_one_out(Y).reshape(*labels.shape, num_classes)


# ---- do neighbours share their wrong labels? -----------------------------------------------------


def _ask_neighbours(
    model: Kernel, y: Tensor, num_classes: int, draws: int, generator: torch.Generator
) -> tuple[float, float, float, bool]:
    """(gain, its mean under H0, p-value, whether there is enough to tell)."""
    scores = _predicted(model, y[:, None], num_classes)[:, 0]
    p = scores.double().clamp(min=1e-3)
    clear = CLEAR if overlap(p / p.sum(1, keepdim=True), y) < OVERLAP else CLEARER
    some = torch.randperm(len(y), generator=generator)[:NEAR_ROWS].sort().values
    distance = torch.cdist(model.x[some], model.x[some])
    gain, predicted, T = _local_gain(distance, scores[some], y[some], clear)
    rows = T[scores.argmax(1)]
    null = []
    for simulated in _draws(rows, draws, generator):
        again = _predicted(model, simulated, num_classes)[some]
        for k in range(simulated.shape[1]):
            null.append(_local_gain(distance, again[:, k], simulated[some, k], clear)[0])
    # gains that differ by rounding alone are ties, and ties count against dependence
    higher = sum(value >= gain - 1e-9 for value in null)
    first, second = T[predicted.unique()].topk(2, 1).values.T
    enough = int((y[some] != predicted).sum()) >= FEW and bool((first - second).min() >= TIE)
    return gain, sum(null) / max(draws, 1), (1 + higher) / (draws + 1), enough


def _local_gain(
    distance: Tensor, scores: Tensor, y: Tensor, clear: float
) -> tuple[float, Tensor, Tensor]:
    """(mean gain in nats of neighbours over T on the clear rows, predicted classes [N], T [K, K]).

    Both guesses of a row's label leave its own out. The neighbours' counts are shrunk to the
    class's row of T, which weighs as much as they do.
    """
    num_classes = scores.shape[1]
    best = scores.topk(2, 1)
    predicted, margin = best.indices[:, 0], best.values[:, 0] - best.values[:, 1]
    T = torch.eye(num_classes)
    gain, count = 0.0, 0
    for c in range(num_classes):
        rows = (predicted == c).nonzero().squeeze(1)
        rows = rows[margin[rows].argsort(descending=True)[: int(clear * len(rows))]]
        near = min(NEIGHBOURS, len(rows) // 4)
        if near < 3:
            continue
        Y = one_hot(y[rows], num_classes).float()
        total = Y.sum(0)
        T[c] = total / len(rows)
        base = (total - Y + 0.5 / num_classes) / (len(rows) - 0.5)
        between = distance[rows][:, rows]
        between.fill_diagonal_(torch.inf)
        votes = Y[between.topk(near, largest=False).indices].sum(1)
        local = (votes + near * base) / (2 * near)
        own = y[rows, None]
        gain += float((local.gather(1, own) / base.gather(1, own)).log().double().sum())
        count += len(rows)
    return gain / max(count, 1), predicted, T


# ---- are wrong labels likelier in some places? ---------------------------------------------------


class Judged(NamedTuple):
    """What is made of labels: of the observed ones, and of each draw of H0's."""

    scores: Tensor  # [shares of clear rows, views] dependence of the rest on the features
    expected: Tensor  # [N, K] the labels' probabilities by class and scores: H0
    errs: float  # share of labels missed among all rows less that among the surest


def _ask_places(
    x: Tensor,
    model: Kernel,
    y: Tensor,
    num_classes: int,
    draws: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """(score, p-value). Of a weak model the smaller score and the larger p-value of two count,
    among the surest rows and among more of them: its errors seldom look alike in both."""
    z = _directions(standardised(x), generator)
    linear = Ridge.of(z, (1.0,))[0]
    views = _views(z, generator)
    (found,) = _judge(model, linear, views, y[:, None], num_classes)
    null = [
        each.scores
        for simulated in _draws(found.expected, draws, generator)
        for each in _judge(model, linear, views, simulated, num_classes)
    ]
    every = torch.stack([found.scores, *null])  # [1 + draws, shares, views]
    every = every if found.errs > WEAK else every[:, -1:]
    highest = ((every - every.mean(0)) / every.std(0, correction=0).clamp_min(1e-12)).amax(2)
    # scores that differ by rounding alone are ties, and ties count against dependence
    higher = int((highest[1:] >= highest[0] - 1e-6).sum(0).max())
    sd, mean = every[1:].std(0, correction=0), every[1:].mean(0)
    score = float(((every[0] - mean) / sd.clamp_min(1e-12)).amax(1).min()) if draws else 0.0
    return score, (1 + higher) / (draws + 1)


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
    model: Kernel,
    linear: Ridge,
    views: list[tuple[Tensor, Tensor]],
    y: Tensor,
    num_classes: int,
) -> list[Judged]:
    """What is made of each column of labels y [N, some]."""
    first = _predicted(model, y, num_classes).argmax(2)
    second, beside = (_predicted(ridge, first, num_classes) for ridge in (model, linear))
    return [_judge_one(views, y[:, k], second[:, k], beside[:, k]) for k in range(y.shape[1])]


def _judge_one(
    views: list[tuple[Tensor, Tensor]], y: Tensor, second: Tensor, beside: Tensor
) -> Judged:
    Y = one_hot(y, second.shape[1]).float()
    guess = second.argmax(1)
    margins = [_margin(scores, guess) for scores in (second, beside)]
    expected = torch.zeros_like(Y)
    sure = torch.zeros(len(SURE), len(y))
    for k in range(Y.shape[1]):
        rows = (guess == k).nonzero().squeeze(1)
        if not len(rows):
            continue
        expected[rows] = _explained(Y[rows], second[rows], beside[rows], margins, rows, k)
        rows = rows[margins[0][rows].argsort(descending=True)]
        for part, share in zip(sure, SURE, strict=True):
            part[rows[: int(share * len(rows))]] = 1.0
    missed = (y != guess).float()
    rest = missed - 1 + expected.gather(1, guess[:, None]).squeeze(1)
    scores = torch.stack([_scores(views, rest * part) for part in sure])
    odds = expected.clamp_min(1e-4)
    errs = float(missed.mean() - (missed * sure[0]).sum() / sure[0].sum().clamp_min(1))
    return Judged(scores, odds / odds.sum(1, keepdim=True), errs)


def _scores(views: list[tuple[Tensor, Tensor]], rest: Tensor) -> Tensor:
    """Squared products of the rest with each view, less what a row shares with itself."""
    square = rest.square()
    found = [(view.T @ rest).square().sum() - (square * length).sum() for view, length in views]
    return torch.stack(found) / square.sum().clamp_min(1e-9)


def _margin(scores: Tensor, guess: Tensor) -> Tensor:
    """How far the guess is ahead of the best other class; negative where it is behind."""
    own = scores.gather(1, guess[:, None])
    return (own - scores.scatter(1, guess[:, None], -torch.inf).amax(1, keepdim=True)).squeeze(1)


def _explained(
    Y: Tensor, second: Tensor, beside: Tensor, margins: list[Tensor], rows: Tensor, own: int
) -> Tensor:
    """The labels of the rows of one class as their margins and scores explain them, [n, K].

    Least squares on fifths of the one margin and fourths of the other, and on the linear model's
    scores of the four classes that are likeliest beside.
    """
    n, num_classes = Y.shape
    parts = [torch.ones(n, 1)]
    for margin, most in zip(margins, PARTS, strict=True):
        count = min(most, n // 40)
        if count > 1:
            place = margin[rows].argsort().argsort() * count // n
            parts.append(one_hot(place, count)[:, 1:].float())
    others = min(4, num_classes - 1, n // 60)
    if others:
        mass = second.mean(0)
        mass[own] = -torch.inf
        beside_it = mass.topk(others).indices
        parts.append(beside[:, beside_it])  # the kernel's own would follow the noise
    Z = torch.cat([parts[0], *(part - part.mean(0) for part in parts[1:])], 1)
    A = Z.T @ Z
    A.diagonal()[1:].add_(1.0)
    return Z @ torch.linalg.solve(A, Z.T @ Y)
