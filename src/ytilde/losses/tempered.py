"""The bi-tempered logistic loss and its heavy-tailed softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .labels import _check, _ignoring, _precise, one_hot


def _log_t(log_u: Tensor, t: float) -> Tensor:
    """The tempered logarithm (u^(1-t) - 1) / (1 - t), from log u."""
    return log_u if t == 1 else torch.expm1((1 - t) * log_u) / (1 - t)


def _log_exp_t(x: Tensor, t: float) -> Tensor:
    """log of the tempered exponential [1 + (1 - t) x]_+^(1 / (1 - t)); -inf where it is 0."""
    return torch.log1p(((1 - t) * x).clamp_min(-1.0)) / (1 - t)


class _TemperedLogSoftmax(torch.autograd.Function):
    """log exp_t(z - lambda(z)) with lambda such that the probabilities sum to 1.

    The sum Z(lambda) falls like a power; Z^(1-t) is a power mean of linear functions, hence almost
    linear, concave for t > 1 and convex for t < 1. So Newton's method on it, started at the left
    end of the bracket, never passes the root and is done in a few steps, where the usual
    fixed-point iteration leaves |Z - 1| up to 0.2 after five (t = 2, K = 100).
    """

    STEPS = 10  # |Z - 1| < 1e-13 in float64 at the worst of t in [0.1, 5], K <= 1000, any logits

    @staticmethod
    def forward(ctx: Any, logits: Tensor, t: float) -> Tensor:
        z = logits - logits.amax(-1, keepdim=True)
        shift = torch.zeros_like(z[..., :1])
        for _ in range(_TemperedLogSoftmax.STEPS):
            log_p = _log_exp_t(z - shift, t)
            log_sum = log_p.logsumexp(-1, keepdim=True)
            log_escort = (t * log_p).logsumexp(-1, keepdim=True)
            shift = shift + torch.expm1((t - 1) * log_sum) / (t - 1) * (log_sum - log_escort).exp()
        log_p = _log_exp_t(z - shift, t)
        log_p = log_p - log_p.logsumexp(-1, keepdim=True)  # what float32 rounding has left
        ctx.save_for_backward(log_p)
        ctx.t = t
        return log_p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # d log p_c / d z_j = p_c^(t-1) (1[c = j] - escort_j): Amid et al., NeurIPS 2019, section 3.
        (log_p,) = ctx.saved_tensors
        alive = log_p > -torch.inf  # t < 1 gives exact zeros, which no small step of z moves
        scale = torch.where(alive, ((ctx.t - 1) * log_p).exp(), torch.zeros_like(log_p))
        pull = torch.where(alive, scale * grads[0], torch.zeros_like(log_p))
        escort = (ctx.t * log_p).softmax(-1)
        return pull - escort * pull.sum(-1, keepdim=True), None


def tempered_log_softmax(logits: Tensor, t: float) -> Tensor:
    """log of `tempered_softmax`; -inf where t < 1 gives an exact zero.

    Args:
        logits: [..., K].
        t: temperature, above 0.

    Returns:
        [..., K].

    Example:
        >>> tempered_log_softmax(torch.tensor([2.0, 0.0]), t=1.0)
        tensor([-0.1269, -2.1269])
    """
    _check(t > 0, f"The temperature t must be positive, but it is {t}.")
    z = _precise(logits)
    if abs(t - 1) < 1e-6:
        return z.log_softmax(-1)
    return _TemperedLogSoftmax.apply(z, t)


def tempered_softmax(logits: Tensor, t: float) -> Tensor:
    """Probabilities exp_t(z - lambda(z)). Amid et al., NeurIPS 2019, eq. 4.

    The argmax is that of the logits.

    Args:
        logits: [..., K].
        t: temperature; above 1 the tails are heavy, 1 is softmax.

    Returns:
        [..., K], summing to 1.

    Example:
        >>> tempered_softmax(torch.tensor([4.0, 0.0]), t=2.0)
        tensor([0.8090, 0.1910])
    """
    return tempered_log_softmax(logits, t).exp()


def bi_tempered(
    logits: Tensor, y: Tensor, t1: float = 0.8, t2: float = 1.2, smoothing: float = 0.0
) -> Tensor:
    """Bi-tempered logistic loss. Amid et al., NeurIPS 2019, eq. 8; t1 = t2 = 1 is cross-entropy.

    The normaliser is not differentiated through: the gradient is the closed one.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        t1: below 1 the loss is bounded.
        t2: above 1 the tempered softmax has heavy tails.
        smoothing: of the labels, as in `label_smoothing`.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> bi_tempered(logits, y)
        tensor([0.1096, 0.0000])
    """
    _check(
        0 <= t1 <= 1 and t1 <= t2,
        f"t1 must be in [0, 1] and t2 at least t1, but t1 = {t1} and t2 = {t2}.",
    )
    log_p = tempered_log_softmax(logits, t2)
    off = smoothing / log_p.shape[-1]
    targets = (1 - smoothing) * one_hot(y, log_p) + off
    entropy = torch.where(targets > 0, targets * _log_t(targets.clamp_min(1e-30).log(), t1), 0.0)
    powers = targets ** (2 - t1) - ((2 - t1) * log_p).exp()
    nll = (entropy - targets * _log_t(log_p, t1) - powers / (2 - t1)).sum(-1)
    return _ignoring(nll, y)
