"""T applied: corrected losses, weights, and the posteriors that T links."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..data import IGNORE, BadInput
from ..losses import of_label
from .matrices import _columns, _full_precision, _normalise_rows, safe_log


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
