"""Transition matrices: parametrise, estimate, apply, measure.

T[i, j] = P(y = j | clean = i, x): rows sum to one; [K, K] for a class-level T, [B, K, K] for one
matrix per instance. The noisy posterior is `p @ T`. Leading axes of T are the first leading axes
of the labels, so a T per image serves all its pixels. Plots are in `plotting.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ytilde.data import IGNORE, BadInput
from ytilde.losses import of_label

__all__ = [
    "LowRankT",
    "PosteriorT",
    "ResidualT",
    "SigmoidT",
    "SoftmaxT",
    "Transition",
    "anchor",
    "anchor_rows",
    "anchor_sets",
    "backward_loss",
    "check_invertible",
    "class_floor",
    "confident_joint",
    "dual",
    "forward_nll",
    "forward_nll_log",
    "from_cleanlab",
    "log_sigmoid_rows",
    "manifold_penalty",
    "materialise_cost",
    "nmf_basis",
    "noisy_posterior",
    "part_T",
    "part_matrices",
    "part_weights",
    "posterior",
    "relative_l1",
    "revised",
    "reweight",
    "row_error",
    "safe_log",
    "sigmoid_rows",
    "to_cleanlab",
    "validate_transition",
    "volume",
]

# log 0. Finite, so that no gradient is NaN and a label that T calls impossible costs a lot instead
# of infinitely much; so low that exp(log p + LOG_ZERO) is exactly 0, which makes T = I exactly CE.
LOG_ZERO = -1e5
PERCENTILE = 97.0  # of P(y = i | x) over all rows, where an anchor point is taken

P = ParamSpec("P")
R = TypeVar("R")


def _full_precision(fn: Callable[P, R]) -> Callable[P, R]:
    """Run with autocast off and all floats in float32, or in float64 where one argument is."""

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        double = any(t.dtype == torch.float64 for t in tensors)
        dtype = torch.float64 if double else torch.float32

        def full(a: object) -> object:
            return a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a

        with torch.autocast(device_type=tensors[0].device.type, enabled=False):
            return fn(*map(full, args), **{k: full(v) for k, v in kwargs.items()})  # type: ignore

    return run


# --- parametrisations ---------------------------------------------------------------------------


@_full_precision
def log_sigmoid_rows(W: Tensor, diagonal: str = "volmin") -> Tensor:
    """log T of free weights W [..., K, K]; T[i, j] = A[i, j] / sum_k A[i, k], A[i, j] = sigmoid(w).

    "volmin": A[i, i] = 1 (Li et al., ICML 2021). "dtm": A[i, i] = 1 + sigmoid(w_ii), learnable.
    DTM's section 3.4 prints a sum over columns; its text and its loss need the row sum.
    """
    if diagonal == "volmin":
        own = torch.zeros_like(W)
    elif diagonal == "dtm":
        own = W.sigmoid().log1p()
    else:
        raise BadInput(f'There is no diagonal "{diagonal}"; use "volmin" or "dtm".')
    eye = torch.eye(W.shape[-1], dtype=torch.bool, device=W.device)
    return torch.where(eye, own, F.logsigmoid(W)).log_softmax(-1)


def sigmoid_rows(W: Tensor, diagonal: str = "volmin") -> Tensor:
    """T of free weights W [..., K, K]; see `log_sigmoid_rows`."""
    return log_sigmoid_rows(W, diagonal).exp()


class Transition(nn.Module):
    """A learnable T: `T()` and `log_T()`, [K, K], or [G, K, K] for G groups."""

    def log_T(self) -> Tensor:
        raise NotImplementedError

    def T(self) -> Tensor:
        return self.log_T().exp()


def _lead(groups: int | None) -> tuple[int, ...]:
    return () if groups is None else (groups,)


class SigmoidT(Transition):
    """Diagonally dominant rows, VolMinNet's or DTM's: see `log_sigmoid_rows`.

    The start -log(K - 2) makes the diagonal one half; the published starts are -2 for 10 classes
    (here -2.08) and -4.5 for 100 (here -4.58).
    """

    def __init__(
        self, num_classes: int, diagonal: str = "volmin", groups: int | None = None
    ) -> None:
        super().__init__()
        self.diagonal = diagonal
        start = -math.log(max(num_classes - 2, 1))
        self.W = nn.Parameter(torch.full((*_lead(groups), num_classes, num_classes), start))

    def log_T(self) -> Tensor:
        return log_sigmoid_rows(self.W, self.diagonal)


class SoftmaxT(Transition):
    """Any positive rows: T = softmax(W). Starts with one half on the diagonal."""

    def __init__(self, num_classes: int, groups: int | None = None) -> None:
        super().__init__()
        start = torch.eye(num_classes) * math.log(max(num_classes - 1, 1))
        self.W = nn.Parameter(start.repeat(*_lead(groups), 1, 1))

    def log_T(self) -> Tensor:
        return _log_softmax(self.W)


class LowRankT(Transition):
    """T = diag(d) + (1 - d) A B, for many classes: K (1 + 2 rank) weights instead of K^2.

    A [K, rank] sends each class to a mixture of error profiles B [rank, K]; rows of both are
    softmaxes and d is a sigmoid, so that rows of T sum to one by construction.
    """

    def __init__(
        self, num_classes: int, rank: int, generator: torch.Generator, groups: int | None = None
    ) -> None:
        super().__init__()
        lead = _lead(groups)
        self.keep = nn.Parameter(torch.zeros(*lead, num_classes))

        # Equal profiles would get equal gradients for ever, hence the draw.
        def draw(*shape: int) -> nn.Parameter:
            w = torch.randn(*lead, *shape, generator=generator, device=generator.device)
            return nn.Parameter(0.1 * w)

        self.A, self.B = draw(num_classes, rank), draw(rank, num_classes)

    def T(self) -> Tensor:
        return _low_rank_rows(self.keep, self.A, self.B)

    def log_T(self) -> Tensor:
        return safe_log(self.T())


@_full_precision
def _log_softmax(W: Tensor) -> Tensor:
    return W.log_softmax(-1)


@_full_precision
def _low_rank_rows(keep: Tensor, A: Tensor, B: Tensor) -> Tensor:
    errors = A.softmax(-1) @ B.softmax(-1)
    return torch.diag_embed(keep.sigmoid()) + (-keep).sigmoid()[..., None] * errors


class ResidualT(nn.Module):
    """T(x) [B, K, K] from features [B, D]: a class-level T plus a linear residual of its logits.

    The chance of a flip and where it goes have weights of their own: T[i, i] = 1 - r and
    T[i, j] = r softmax(z)_j. The residual starts at zero; `penalty` keeps it small, so that
    what the examples do not tell of an instance stays as it is for its class.
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.scale = nn.LayerNorm(dim, elementwise_affine=False)
        self.residual = nn.Linear(dim, num_classes * (num_classes + 1), bias=False)
        nn.init.zeros_(self.residual.weight)
        # logits of the class-level T: of no flip, and of where it goes; at first no flips at all
        self.stay: Tensor
        self.target: Tensor
        self.register_buffer("stay", torch.full((num_classes,), 20.0))
        self.register_buffer("target", torch.zeros(num_classes, num_classes))

    def start(self, clean: Tensor, y: Tensor, prior: float = 1.0) -> None:
        """Count the class-level T of (supposed) clean labels [N] and observed ones; -1: left out.

        Each class gets `prior` counts more, flipped as often as all are and evenly spread.
        """
        k = len(self.stay)
        seen = (clean != IGNORE) & (y != IGNORE)
        flips = _count(clean[seen], y[seen], k).double()
        total = flips.sum(-1)
        flips.fill_diagonal_(0)
        overall = ((flips.sum() + 0.5) / (total.sum() + 1)).clamp(max=0.99)
        rate = (flips.sum(-1) + prior * overall) / (total + prior)
        self.stay.copy_(-torch.logit(rate, eps=1e-4))
        self.target.copy_((flips + prior / max(k - 1, 1)).log())

    def penalty(self, spread: float) -> Tensor:
        """-log of a Gaussian prior that gives every logit's residual the standard deviation."""
        weight = self.residual.weight.float()
        return weight.square().sum() * (weight.shape[1] / (2 * spread**2))

    def forward(self, h: Tensor) -> Tensor:
        k = len(self.stay)
        with torch.autocast(h.device.type, enabled=False):
            z = self.residual(self.scale(h.to(self.residual.weight.dtype)))
        return _flip_rows(self.stay + z[..., :k], self.target + z[..., k:].unflatten(-1, (k, k)))


@_full_precision
def _flip_rows(stay: Tensor, target: Tensor) -> Tensor:
    """T [..., K, K] of the logits of no flip [..., K] and of its target (diagonal unused)."""
    eye = torch.eye(stay.shape[-1], dtype=torch.bool, device=stay.device)
    away = target.masked_fill(eye, LOG_ZERO).softmax(-1) * (-stay).sigmoid()[..., None]
    return torch.where(eye, stay.sigmoid()[..., None], away)


class PosteriorT(nn.Module):
    """T(x) [B, K, K] as a clamped, row-normalised linear map of p(x) [B, K] (MEIDTM's code).

    Without flips until `start`.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.eye(num_classes).reshape(-1, 1).repeat(1, num_classes))

    def start(self, clean: Tensor, y: Tensor) -> None:
        """Begin with the class-level T counted from (supposed) clean labels [N] and observed."""
        k = self.W.shape[1]
        seen = (clean != IGNORE) & (y != IGNORE)
        T = _normalise_rows(_count(clean[seen], y[seen], k).to(self.W) + 1 / k)
        self.W.data.copy_(T.reshape(k * k, 1).expand(-1, k))

    def forward(self, p: Tensor) -> Tensor:
        return _linear_rows(p, self.W)


@_full_precision
def _linear_rows(p: Tensor, W: Tensor) -> Tensor:
    k = p.shape[-1]
    return _normalise_rows((p @ W.T).unflatten(-1, (k, k)).clamp(1e-5, 1 - 1e-5))


@_full_precision
def manifold_penalty(T: Tensor, p: Tensor, sigma: float = 1.1) -> Tensor:
    """Mean of s_ij (T_i - T_j)^2 over pairs and entries (Cheng et al., CVPR 2022).

    T [B, K, K], p [B, K]; s_ij = exp(-|p_i - p_j|^2 / (2 sigma^2)), negative where the likeliest
    classes differ. A sum over the entries would let that part drive T away from the data.
    """
    s = (_squared_distances(p) / (-2 * sigma**2)).exp()
    same = p.argmax(-1)[:, None] == p.argmax(-1)
    apart = _squared_distances(T.flatten(1)) / T[0].numel()
    return (torch.where(same, s, -s).detach() * apart).mean()


def _squared_distances(a: Tensor) -> Tensor:
    square = a.square().sum(-1)
    return (square[:, None] + square - 2 * a @ a.T).clamp_min(0)


# --- parts (PTD) --------------------------------------------------------------------------------


@_full_precision
def nmf_basis(H: Tensor, parts: int, generator: torch.Generator, steps: int = 100) -> Tensor:
    """B [R, D] >= 0 of the factorisation H ~ W B, H [N, D] >= 0 (Lee & Seung's updates)."""
    size = (H.mean() / parts).sqrt()

    def draw(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator) + 0.1).to(H) * size

    W, B = draw(len(H), parts), draw(parts, H.shape[1])
    for _ in range(steps):
        W = W * (H @ B.T) / (W @ (B @ B.T)).clamp_min(1e-12)
        B = B * (W.T @ H) / ((W.T @ W) @ B).clamp_min(1e-12)
    return B


@_full_precision
def part_weights(H: Tensor, basis: Tensor, steps: int = 100) -> Tensor:
    """Coefficients [N, R] >= 0 of H [N, D] on the basis [R, D] by least squares; rows sum to one.

    Multiplicative updates, a fixed number: each row's result is its own. No fit: equal weights.
    """
    gram, target = basis @ basis.T, H @ basis.T
    W = torch.ones_like(target)
    for _ in range(steps):
        W = W * target / (W @ gram).clamp_min(1e-12)
    total = W.sum(-1, keepdim=True)
    return torch.where(total > 0, W / total.where(total > 0, 1), 1 / len(basis))


@_full_precision
def part_T(weights: Tensor, matrices: Tensor) -> Tensor:
    """T(x) = sum_k w_k(x) P^k, [B, K, K] of weights [B, R] and matrices [R, K, K]."""
    return torch.einsum("nk,kij->nij", weights, matrices)


@_full_precision
def part_matrices(weights: Tensor, rows: Tensor, steps: int = 500) -> Tensor:
    """P [R, K, K] with sum_k w_k P^k_i ~ T_i for A sets of anchors (Xia et al., 2020, eq. 3).

    weights [A, K, R] and noisy posteriors [A, K, K] of the anchors of each class. Rows of P stay
    on the simplex as softmaxes; Adam on the squared error, from the mean over the sets.
    """
    start = safe_log(rows.mean(0)).clamp_min(-7)
    logits = start.repeat(weights.shape[-1], 1, 1).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.02)
    with torch.enable_grad():
        for _ in range(steps):
            fitted = torch.einsum("aik,kij->aij", weights, logits.softmax(-1))
            optimizer.zero_grad()
            (fitted - rows).square().sum().backward()
            optimizer.step()
    return logits.detach().softmax(-1)


# --- estimation from noisy probabilities --------------------------------------------------------


def anchor_rows(pred_probs: Tensor, percentile: float | str | None = "auto") -> Tensor:
    """The row of each class's anchor point, [K], from noisy probabilities [N, K].

    The largest probability of class i below its percentile (the top is where the network
    overfits); None: the largest of all. "auto" is as published, 97 for few classes and the
    largest for many (all rows of one of 100 classes are among the top 1 %), but leaves out at
    most half of the rows that are predicted to be of a class: a rare one is not skipped.
    """
    if percentile is None or (percentile == "auto" and _many(pred_probs.shape[1])):
        return pred_probs.argmax(0)
    if percentile == "auto":
        return _below(pred_probs, PERCENTILE, spare_rare=True)
    return _below(pred_probs, float(percentile))


def _below(pred_probs: Tensor, level: float, spare_rare: bool = False) -> Tensor:
    """The row of the largest probability below the percentile of each column, [K]."""
    n, k = pred_probs.shape
    rank = torch.full((k,), max(math.ceil(level / 100 * (n - 1)), 1), device=pred_probs.device)
    if spare_rare:
        rank = rank.maximum(n - pred_probs.argmax(-1).bincount(minlength=k) // 2)
    return pred_probs.argsort(0).gather(0, rank[None] - 1)[0]


def anchor_sets(pred_probs: Tensor, percentile: float | str, sets: int) -> Tensor:
    """Several anchor points of each class, [A, K]: percentiles from this one to 99, evenly.

    "auto" as in `anchor_rows`; with many classes the rows of the A largest probabilities.
    """
    auto = percentile == "auto"
    if auto and _many(pred_probs.shape[1]):
        places = torch.arange(sets, device=pred_probs.device).clamp(max=len(pred_probs) - 1)
        return pred_probs.argsort(0, descending=True)[places]
    levels = torch.linspace(PERCENTILE if auto else float(percentile), 99, sets).tolist()
    return torch.stack([_below(pred_probs, level, spare_rare=auto) for level in levels])


def _many(num_classes: int) -> bool:
    """Are there so many classes that PERCENTILE leaves out more than half of an average one?"""
    return num_classes * (1 - PERCENTILE / 100) > 0.5


def anchor(pred_probs: Tensor, percentile: float | str | None = "auto") -> Tensor:
    """T by anchor points (Patrini et al., CVPR 2017): T[i] = noisy posterior of one.

    pred_probs [N, K] of un-augmented inputs; estimate early or out of fold, for a network that
    has learnt the wrong labels by heart gives T = I. The input is left as it is: the authors'
    code zeroes the top of column i in place and so spoils the rows of later classes.
    """
    return _normalise_rows(pred_probs[anchor_rows(pred_probs, percentile)])


def dual(pred_probs: Tensor, y: Tensor, T_anchor: Tensor) -> Tensor:
    """Dual-T (Yao et al., NeurIPS 2020): T = T_anchor @ P(y | predicted class).

    The second factor is counted. A class that is never predicted keeps its identity row (the
    authors' code: zeros, so that rows of T do not sum to one).
    """
    seen = y != IGNORE
    counts = _count(pred_probs.argmax(-1)[seen], y[seen], pred_probs.shape[-1])
    return _normalise_rows(noisy_posterior(T_anchor, _normalise_rows(counts.to(T_anchor))))


class ConfidentJoint(NamedTuple):
    """T [K, K]; joint [K, K], joint[i, j] = P(clean = i, y = j); rate, the expected noise."""

    T: Tensor
    joint: Tensor
    rate: Tensor


def confident_joint(pred_probs: Tensor, y: Tensor) -> ConfidentJoint:
    """Confident learning (Northcutt et al., JAIR 2021), from out-of-fold [N, K], y [N].

    An example counts for the likeliest class whose probability reaches that class's mean among
    the examples that carry its label; each label's counts are scaled to how often it occurs.
    cleanlab's joint is the transpose: its rows are the given labels.
    """
    seen = y != IGNORE
    p, y, k = pred_probs[seen].double(), y[seen], pred_probs.shape[-1]
    labels = F.one_hot(y, k).double()
    total = labels.sum(0)
    threshold = torch.where(total > 0, (labels * p).sum(0) / total.clamp_min(1), torch.inf)
    confident = p >= threshold - 1e-6  # a class of equal probabilities reaches its own mean
    best = p.where(confident, -torch.inf).argmax(-1)
    sure = confident.any(-1)
    by_label = _normalise_rows(_count(y[sure], best[sure], k).double())  # [label, clean]
    joint = (by_label * total[:, None] / total.sum()).T.contiguous()
    T = _normalise_rows(joint)
    out = (T, joint, 1 - joint.trace())
    return ConfidentJoint(*(t.to(pred_probs.dtype) for t in out))


def _count(row: Tensor, column: Tensor, k: int) -> Tensor:
    return torch.bincount(row * k + column, minlength=k * k).reshape(k, k)


def _normalise_rows(A: Tensor) -> Tensor:
    """Non-negative A [K, K] with rows summing to one; a row of zeros becomes the identity's."""
    total = A.sum(-1, keepdim=True)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return torch.where(total > 0, A / total.where(total > 0, 1), eye)


# --- application --------------------------------------------------------------------------------


def safe_log(p: Tensor) -> Tensor:
    """log p, with LOG_ZERO and no gradient where p is 0 (or negative): exact zeros stay zeros."""
    positive = p >= torch.finfo(p.dtype).tiny
    return p.where(positive, 1).log().where(positive, LOG_ZERO)


def _columns(T: Tensor, y: Tensor) -> Tensor:
    """T[..., :, y], i.e. what each clean class makes of the label: [..., K] for y [...]."""
    lead, k = T.shape[:-2], T.shape[-1]
    each = math.prod(y.shape[len(lead) :])  # labels that share one T
    index = torch.where(y == IGNORE, 0, y).reshape(*lead, 1, each).expand(*lead, k, each)
    return T.gather(-1, index).transpose(-1, -2).reshape(*y.shape, k)


@_full_precision
def forward_nll_log(log_p: Tensor, log_T: Tensor, y: Tensor) -> Tensor:
    """-log sum_i p_i T[i, y] in log space: [...] for log p [..., K], y [...]; 0 where y = -1.

    Forward correction (Patrini et al., CVPR 2017, theorem 2). log T [K, K] or [B, K, K].
    """
    nll = -torch.logsumexp(log_p + _columns(log_T, y), -1)
    return nll.where(y != IGNORE, 0)


@_full_precision
def forward_nll(log_p: Tensor, T: Tensor, y: Tensor) -> Tensor:
    """`forward_nll_log` of a T that may hold exact zeros. T = I gives cross-entropy."""
    return forward_nll_log(log_p, safe_log(T), y)


def check_invertible(T: Tensor, limit: float = 1e4) -> None:
    """Refuse a T that `backward_loss` cannot use. Waits for the device: call it once, before."""
    worst = float(torch.linalg.cond(T.detach().double()).max())
    if not worst <= limit:
        raise BadInput(
            f"T cannot be inverted reliably (condition number {worst:.3g}, at most {limit:g} is"
            ' accepted): use method "forward", which needs no inverse, or another T.'
        )


@_full_precision
def backward_loss(log_p: Tensor, T: Tensor, y: Tensor) -> Tensor:
    """(T^-1 l)_y with l = -log p: unbiased for the clean loss, unbounded below; 0 where y = -1.

    Backward correction (Patrini et al., CVPR 2017, theorem 1). Check T with `check_invertible`
    first: the check is not repeated here because it would stop the device in every step.
    """
    lead, k = T.shape[:-2], T.shape[-1]
    each = math.prod(y.shape[len(lead) :])
    loss = -log_p.reshape(*lead, each, k).transpose(-1, -2)
    corrected = torch.linalg.solve_ex(T, loss).result.transpose(-1, -2).reshape(log_p.shape)
    return of_label(corrected, y).where(y != IGNORE, 0)


@_full_precision
def reweight(log_p: Tensor, T: Tensor, y: Tensor, clip: float = 10.0) -> Tensor:
    """Importance weight p_y / (p @ T)_y in [0, clip] (Liu & Tao, TPAMI 2016); 0 for y = -1.

    Detach it for Reweight. T-Revision (Xia et al., NeurIPS 2019) needs it attached, for the slack
    is reached through it alone. T may hold small negative entries: the denominator is clamped.
    """
    # Everything is divided by p_y, so that a tiny p_y is no 0/0; exp(80) is near float32's end.
    ratio = (log_p - of_label(log_p, y)[..., None]).clamp_max(80).exp()
    denominator = (ratio * _columns(T, y)).sum(-1)
    return denominator.clamp_min(1 / clip).reciprocal().where(y != IGNORE, 0)


@_full_precision
def revised(T: Tensor, dT: Tensor, renormalise: bool = True) -> Tensor:
    """T + dT, the slack added once (the authors' loop adds it again for every example).

    renormalise: absolute values and rows summing to one, as PTD and BLTM do; False is
    T-Revision's bare sum, for `reweight`.
    """
    return _normalise_rows((T + dT).abs()) if renormalise else T + dT


@_full_precision
def volume(T: Tensor) -> Tensor:
    """log |det T|, [...] for T [..., K, K]: VolMinNet's penalty (Li et al., ICML 2021)."""
    return torch.linalg.slogdet(T).logabsdet


@_full_precision
def noisy_posterior(p: Tensor, T: Tensor) -> Tensor:
    """P(y | x) = p @ T: [..., K] for clean posteriors [..., K] and T [K, K] or [B, K, K]."""
    lead = T.shape[:-2]
    each = math.prod(p.shape[len(lead) : -1])
    return (p.reshape(*lead, each, p.shape[-1]) @ T).reshape(p.shape)


@_full_precision
def posterior(p: Tensor, T: Tensor, y: Tensor) -> Tensor:
    """P(clean = i | x, y = j) = p_i T[i, j] / (p @ T)_j by Bayes: [..., K]; p where y = -1."""
    after = (safe_log(p) + _columns(safe_log(T), y)).softmax(-1)
    return after.where((y != IGNORE)[..., None], p)


# --- error of T ---------------------------------------------------------------------------------


@_full_precision
def relative_l1(T: Tensor, T_true: Tensor) -> Tensor:
    """||T - T_true||_1 / ||T_true||_1, [...] for [..., K, K]."""
    return (T - T_true).abs().sum((-1, -2)) / T_true.abs().sum((-1, -2))


@_full_precision
def row_error(rows: Tensor, true_rows: Tensor) -> Tensor:
    """Squared error of rows of T(x) [N, K]: summed over the K entries, mean over the examples."""
    return (rows - true_rows).square().sum(-1).mean()


def class_floor(true_rows: Tensor, clean: Tensor) -> Tensor:
    """The `row_error` of the class means of the true rows [N, K]: no class-level T has a lower."""
    members = F.one_hot(clean, true_rows.shape[-1]).to(true_rows)
    mean = (members.T @ true_rows) / members.sum(0).clamp_min(1)[:, None]
    return row_error(mean[clean], true_rows)


# --- to and from the outside --------------------------------------------------------------------

TOLERANCE = 1e-4  # how far a user's row may sum from one: three printed digits often do


def validate_transition(T: Tensor | np.ndarray | Sequence | str | Path, num_classes: int) -> Tensor:
    """A user's T, checked: float32 [K, K] from a tensor, array, nested list, .npy or .csv file."""
    where = f" in {T}" if isinstance(T, str | Path) else ""
    try:
        A = np.asarray(_read(Path(T)) if isinstance(T, str | Path) else _plain(T), dtype=float)
    except (OSError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"T{where} cannot be read as a matrix of numbers: {error}.") from error
    if A.shape != (num_classes, num_classes):
        raise BadInput(
            f"T{where} has shape {A.shape}, but {num_classes} classes need"
            f" ({num_classes}, {num_classes})."
        )
    if not np.isfinite(A).all() or (A < 0).any():
        raise BadInput(f"T{where} has entries that are negative or not finite; give probabilities.")
    off = np.abs(A.sum(1) - 1)
    if off.max() > TOLERANCE:
        row = int(off.argmax())
        transposed = np.abs(A.sum(0) - 1).max() <= TOLERANCE
        hint = "; its columns do, so give the transpose" if transposed else ""
        raise BadInput(
            f"Rows of T{where} must sum to 1 (T[i, j] = P(given j | true i)), but row {row} sums"
            f" to {A[row].sum():.4g}{hint}."
        )
    return torch.from_numpy(A / A.sum(1, keepdims=True)).float()


given = validate_transition  # deprecated: its old name


def _plain(T: Tensor | np.ndarray | Sequence) -> np.ndarray | Sequence:
    return T.detach().cpu().numpy() if isinstance(T, Tensor) else T


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".csv":
        return np.loadtxt(path, delimiter=",", ndmin=2)
    raise BadInput(f"T is read from a .npy or a .csv file, not from {path.name}.")


def to_cleanlab(T: Tensor) -> np.ndarray:
    """cleanlab's noise matrix [K, K], the transpose: entry [s, i] = P(given s | true i).

    There it is the columns that sum to one.
    """
    return T.detach().cpu().numpy().T.copy()


def from_cleanlab(noise_matrix: np.ndarray) -> Tensor:
    """T of cleanlab's noise matrix, whose columns sum to one: the transpose, checked."""
    A = np.asarray(noise_matrix)
    return validate_transition(A.T, len(A))


class Cost(NamedTuple):
    """What a table of matrices takes: bytes, and a sentence to show."""

    bytes: int
    sentence: str


def materialise_cost(num_rows: int, num_classes: int) -> Cost:
    """What one float32 T for every one of N rows takes in memory, to be told before it is made."""
    size = num_rows * num_classes**2 * 4
    scale = min(max(size.bit_length() - 1, 0) // 10, 4)
    human = f"{size / 1024**scale:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[scale]}"
    return Cost(
        size,
        f"T for {num_rows:,} rows and {num_classes} classes takes {human} as one float32 array;"
        " ask for fewer rows at a time if that is too much.",
    )
