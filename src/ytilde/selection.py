"""Sample selection: weights instead of subsets, thresholds on the device, and the noise rate.

What is used inside a training step (`keep_schedule` to `self_paced`) has static shapes and never
asks the device for a value. What is used between epochs (`two_component_mixture`,
`out_of_fold_knn`, `estimate_rate`, `auto_rate`) may.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .data import IGNORE, BadInput

__all__ = [
    "auto_rate",  # noqa: F822  its old place: see __getattr__
    "co_teaching",
    "disagreement",
    "estimate_rate",
    "keep_schedule",
    "out_of_fold_knn",
    "pace_threshold",
    "quantile",
    "self_paced",
    "small_loss",
    "two_component_mixture",
]


# ------------------------------------------------------------------------------ small loss


def keep_schedule(
    epoch: Tensor, epochs: int, rate: float | Tensor, warmup_fraction: float = 0.05
) -> Tensor:
    """The share R(T) of examples to keep, a scalar on the epoch's device. Han et al., 2018, Alg. 1.

    Falls linearly from 1 in epoch 0 to 1 - rate in the last epoch of the warm-up, which is a
    fraction of training: 0.05 are the paper's 10 epochs of 200.
    """
    last = max(round(warmup_fraction * epochs) - 1, 1)
    return 1 - rate * (epoch / last).clamp(max=1.0)


def small_loss(loss: Tensor, keep: float | Tensor, y: Tensor | None = None) -> Tensor:
    """Weights [...]: 1 for the floor(keep * n) smallest losses, at least one, else 0.

    Han et al., NeurIPS 2018, Alg. 1 lines 4-5. All leading axes are ranked together; of equal
    losses the first is kept. Where y is given, ignored elements weigh 0 and n counts the others.
    """
    flat = loss.detach().flatten()
    valid = torch.ones_like(flat, dtype=torch.bool) if y is None else y.flatten() != IGNORE
    order = torch.where(valid, flat, torch.inf).argsort(stable=True)
    places = torch.arange(len(flat), device=flat.device)
    rank = torch.empty_like(places).scatter_(0, order, places)
    # The small constant: 0.9 * 10 in float32 is to keep nine, not eight.
    count = torch.floor(keep * valid.sum() + 1e-4).clamp_min(1)
    return ((rank < count) & valid).to(loss.dtype).view(loss.shape)


def co_teaching(
    loss1: Tensor, loss2: Tensor, keep: float | Tensor, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights for network 1, chosen by network 2's losses, and the other way round. Han et al."""
    return small_loss(loss2, keep, y), small_loss(loss1, keep, y)


def disagreement(logits1: Tensor, logits2: Tensor) -> Tensor:
    """Weights [...]: 1 where two networks predict different classes, else 0.

    Malach and Shalev-Shwartz, "Decoupling", NeurIPS 2017, Alg. 1.
    """
    return (logits1.argmax(-1) != logits2.argmax(-1)).float()


# ------------------------------------------------------------------------------ self-paced


def quantile(values: Tensor, q: float | Tensor, y: Tensor | None = None) -> Tensor:
    """The value of nearest rank to q in [0, 1], a scalar; of elements that y does not ignore."""
    flat = values.detach().flatten()
    valid = torch.ones_like(flat, dtype=torch.bool) if y is None else y.flatten() != IGNORE
    ordered = torch.where(valid, flat, torch.inf).sort().values
    place = torch.round(q * (valid.sum() - 1).clamp_min(0)).long()
    return ordered.gather(0, place.view(1)).squeeze(0)


def pace_threshold(
    threshold: Tensor,
    loss: Tensor,
    rate: float | Tensor,
    y: Tensor | None = None,
    decay: float = 0.9,
) -> Tensor:
    """The new threshold: moving average of the (1 - rate)-quantile of a batch's losses.

    MentorNet's predefined curriculum (Jiang et al., ICML 2018) as the papers' tables use it.
    threshold: the buffer so far, NaN before the first batch, whose quantile is then taken whole
    (a start at 0 would give weight 0 to everything for many steps).
    """
    now = quantile(loss, 1 - rate, y)
    return torch.where(threshold.isnan(), now, decay * threshold + (1 - decay) * now)


def self_paced(loss: Tensor, threshold: Tensor, softness: float = 0.0) -> Tensor:
    """Weights clip(1 - (loss - threshold) / softness, 0, 1) [...]; 1[loss <= threshold] at 0.

    Jiang et al., ICML 2018, eq. 5, with lambda_1 = threshold and lambda_2 = softness.
    """
    over = loss.detach() - threshold
    if softness == 0:
        return (over <= 0).to(loss.dtype)
    return (1 - over / softness).clamp(0, 1)


# ------------------------------------------------------------------------------ mixture


def two_component_mixture(
    values: Tensor, max_iter: int = 10, tol: float = 1e-2, reg: float = 5e-4
) -> Tensor:
    """P(lower component | value) [N] under two Gaussians fitted by EM to values [N].

    Arazo et al., ICML 2019, and Li et al., "DivideMix", ICLR 2020, section 3.1 (whose settings are
    the defaults); the values are first scaled to [0, 1]. Starts from a two-means split. Values
    that are not finite have probability 0; when the others are all equal, theirs is 1.
    """
    _check(
        values.dim() == 1, f"values must have one axis, but their shape is {tuple(values.shape)}."
    )
    finite = values.isfinite()
    x = values[finite].double()
    posterior = torch.zeros_like(values, dtype=torch.float64)
    if len(x):
        posterior[finite] = _lower_posterior(x, max_iter, tol, reg)
    return posterior.to(values.dtype)


def _lower_posterior(x: Tensor, max_iter: int, tol: float, reg: float) -> Tensor:
    span = x.max() - x.min()
    if span <= 1e-12 * x.abs().max().clamp_min(1e-12):
        return torch.ones_like(x)
    x = (x - x.min()) / span
    responsibility = _two_means(x)
    previous = -math.inf
    for _ in range(max_iter):
        mass = responsibility.sum(0) + 1e-10
        means = (responsibility * x[:, None]).sum(0) / mass
        variances = (responsibility * (x[:, None] - means) ** 2).sum(0) / mass + reg
        density = -0.5 * ((x[:, None] - means) ** 2 / variances + (2 * math.pi * variances).log())
        joint = density + (mass / len(x)).log()
        evidence = joint.logsumexp(1)
        responsibility = (joint - evidence[:, None]).exp()
        now = float(evidence.mean())
        if abs(now - previous) < tol:
            break
        previous = now
    return responsibility[:, int(means.argmin())]


def _two_means(x: Tensor, steps: int = 20) -> Tensor:
    """One-hot membership [N, 2] of the two clusters of x in [0, 1]; neither is ever empty."""
    low, high = x.min(), x.max()
    for _ in range(steps):
        upper = (x > (low + high) / 2).to(x.dtype)
        low = (x * (1 - upper)).sum() / (1 - upper).sum()
        high = (x * upper).sum() / upper.sum()
    return torch.stack([1 - upper, upper], 1)


# ------------------------------------------------------------------------------ noise rate


def out_of_fold_knn(
    features: Tensor,
    y: Tensor,
    num_classes: int,
    folds: int = 5,
    k: int = 30,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Class shares [N, K] among the k nearest rows of the other folds, by centred cosine.

    features [N, ...] are flattened; rows labelled -1 vote for nothing. k is at most half of the
    mean class size. No row's own label takes part in its probabilities.
    """
    _check(len(features) == len(y), f"There are {len(features)} rows but {len(y)} labels.")
    x = features.flatten(1).float()
    x = x - x.mean(0)
    x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
    fold = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device) % folds
    valid = y != IGNORE
    probs = torch.empty(len(x), num_classes, device=x.device)
    for part in range(folds):
        voters = ((fold != part) & valid).nonzero().squeeze(1)
        nearest = max(1, min(k, len(voters) // (2 * num_classes)))
        _check(len(voters) > 0, "There are too few labelled rows for this number of folds.")
        votes = torch.nn.functional.one_hot(y[voters], num_classes).float()
        reference = x[voters].T.contiguous()
        for rows in (fold == part).nonzero().squeeze(1).split(1024):
            near = (x[rows] @ reference).topk(nearest, 1, sorted=False).indices
            probs[rows] = votes[near].mean(1)
    return probs


def estimate_rate(pred_probs: Tensor, y: Tensor) -> float:
    """The share of wrong labels, from out-of-fold probabilities [N, K] and noisy labels y [N].

    A label disagrees with the prediction where the label is wrong or where the model is. The
    second fades with the model's confidence, so disagreement is fitted by a + b u + c u^8 with
    a, b, c >= 0, u in (0, 1) the row's place by falling confidence within its predicted class,
    and the answer is a: disagreement where the model is surest. The two powers are for models
    that are unsure everywhere and for those that are at the border only. (A confident joint keeps
    the model's own errors: +0.1 on Fashion-MNIST with nearest neighbours.)
    Assumes that wrong labels are not confined to what the model finds hard.
    """
    from scipy.optimize import nnls  # here, as scipy takes a while to import

    _check(
        pred_probs.dim() == 2 and pred_probs.shape[:1] == y.shape,
        f"pred_probs must be [N, K] and y [N], but they are {tuple(pred_probs.shape)} and "
        f"{tuple(y.shape)}.",
    )
    valid = y != IGNORE
    _check(bool(valid.any()), "All labels are -1, so there is no noise rate to estimate.")
    confidence, guess = pred_probs[valid].double().max(1)
    u = _place_within(guess, confidence)
    basis = torch.stack([torch.ones_like(u), u, u**8], 1)
    wrong = (guess != y[valid]).double()
    coefficients, _ = nnls(basis.cpu().numpy(), wrong.cpu().numpy())
    return min(float(coefficients[0]), 1.0)


def _place_within(group: Tensor, score: Tensor) -> Tensor:
    """Each row's place in (0, 1) by falling score among the rows of its group."""
    order = score.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    size = group.bincount()
    start = size.cumsum(0) - size
    grouped = group[order]
    place = (torch.arange(len(order), device=order.device) - start[grouped] + 0.5) / size[grouped]
    return torch.empty_like(score).scatter_(0, order, place.to(score.dtype))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise BadInput(message)


def __getattr__(name: str) -> Any:
    if name == "auto_rate":  # it trains a network, so it is no block any more
        from .methods._shared import auto_rate

        return auto_rate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
