"""Learnable T: diagonally dominant, free, of low rank, or an instance's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import IGNORE, BadInput
from .matrices import LOG_ZERO, _count, _full_precision, _normalise_rows, safe_log


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
        """Its logarithm, in which losses compute."""
        raise NotImplementedError

    def T(self) -> Tensor:
        """The matrix; rows sum to one."""
        return self.log_T().exp()


def _lead(groups: int | None) -> tuple[int, ...]:
    return () if groups is None else (groups,)


class SigmoidT(Transition):
    """Diagonally dominant rows, VolMinNet's or DTM's: see `log_sigmoid_rows`.

    The start -log(K - 2) makes the diagonal one half (two thirds where K is 2); the published
    starts are -2 for 10 classes (here -2.08) and -4.5 for 100 (here -4.58).
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
    """Any positive rows: T = softmax(W). Starts with one half on the diagonal.

    For a T that need not have its largest entries on the diagonal; `SigmoidT` is the published one.

    Args:
        num_classes: K.
        groups: number of matrices, [G, K, K]; None: one, [K, K].

    Example:
        >>> SoftmaxT(3).T().diagonal().detach()
        tensor([0.5000, 0.5000, 0.5000])
    """

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

    Args:
        num_classes: K.
        rank: the number of error profiles.
        generator: of the start: equal profiles would get equal gradients for ever.
        groups: number of matrices, [G, K, K]; None: one, [K, K].

    Example:
        >>> T = LowRankT(100, 5, torch.Generator().manual_seed(0))
        >>> T.T().shape, sum(p.numel() for p in T.parameters())
        (torch.Size([100, 100]), 1100)
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

    def forward(self, h: Tensor, own: Tensor | None = None) -> Tensor:
        """T(x); own [B]: the classes whose rows have a residual, the others are the class's."""
        k = len(self.stay)
        with torch.autocast(h.device.type, enabled=False):
            z = self.residual(self.scale(h.to(self.residual.weight.dtype)))
        stay, target = z[..., :k], z[..., k:].unflatten(-1, (k, k))
        if own is not None:
            only = nn.functional.one_hot(own, k)
            stay, target = stay * only, target * only[..., None]
        return _flip_rows(self.stay + stay, self.target + target)


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
