"""Robust losses: pure functions of logits, one value per element, and modules made from them.

Every function takes logits [..., K] and labels y [...], and returns [...] in at least float32.
An element whose label is -1 gives 0. Shapes are static, so a training step can be captured.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ytilde.data import IGNORE, BadInput, check_ranges
from ytilde.mixing import fmix, mixup, symmetric_beta

__all__ = [
    "CE",
    "GCE",
    "MAE",
    "BiTempered",
    "BootstrapHard",
    "BootstrapSoft",
    "Cores",
    "LabelSmoothing",
    "Loss",
    "NoiseAgainstNoise",
    "PeerLoss",
    "SymmetricCE",
    "bi_tempered",
    "bootstrap_hard",
    "bootstrap_soft",
    "ce",
    "cores",
    "elr",
    "elr_target",
    "fmix",
    "gce",
    "label_smoothing",
    "mae",
    "mean",
    "mixup",
    "noise_against_noise",
    "peer_loss",
    "soft_ce",
    "sop",
    "symmetric_beta",
    "symmetric_ce",
    "tempered_log_softmax",
    "tempered_softmax",
    "truncated_gce",
    "truncation_weights",
    "weighted_mean",
]

CLIP = 10.0  # bound on -log p where it is subtracted; without it the loss has no minimum
FLOOR = 1e-4  # smallest probability that ELR, SOP and symmetric CE let into a logarithm


# ------------------------------------------------------------------------------ reductions


def weighted_mean(nll: Tensor, weights: Tensor) -> Tensor:
    """Sum of weights * nll over the sum of weights; 0 when no weight is positive."""
    kept = torch.where(weights > 0, weights * nll, torch.zeros_like(nll))
    total = weights.sum()
    return kept.sum() / torch.where(total > 0, total, torch.ones_like(total))


def mean(nll: Tensor, y: Tensor) -> Tensor:
    """The mean over the elements that are not ignored; 0 when all are."""
    return weighted_mean(nll, (y != IGNORE).to(nll.dtype))


# ------------------------------------------------------------------------------ cross-entropy


def _log_probs(logits: Tensor) -> Tensor:
    return _precise(logits).log_softmax(-1)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def of_label(values: Tensor, y: Tensor) -> Tensor:
    """values [..., K] at the label; whatever stands at class 0 where the label is ignored."""
    index = _index(values, y)
    try:
        return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    except RuntimeError as error:
        raise _refusal(error, values, y) from None


def _index(values: Tensor, y: Tensor) -> Tensor:
    """The labels as an index of values [..., K]: torch refuses all but the classes and -1."""
    _check(
        y.shape == values.shape[:-1],
        f"labels of shape {list(y.shape)} do not fit values of shape {list(values.shape)}: give "
        "one label for each position before the last axis.",
    )
    return torch.where(y == IGNORE, 0, y)


def _refusal(error: RuntimeError, values: Tensor, y: Tensor) -> Exception:
    """What to raise where torch refused to index values [..., K] by y: the label, if it was that.

    On a GPU torch refuses later, by a failed assertion: a look at the labels would stop every step.
    """
    K = values.shape[-1]
    strange = y[(y < IGNORE) | (y >= K)] if y.device.type == "cpu" else y.new_empty(0)
    if not len(strange):
        return error
    return BadInput(
        f"the label {int(strange[0])} is none of the {K} classes 0 to {K - 1} that the logits have "
        "columns for, nor -1 = ignore."
    )


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """One-hot rows [..., K]; all zero where the label is ignored."""
    known = (y != IGNORE).unsqueeze(-1).to(like.dtype)
    index = _index(like, y)
    try:
        return torch.zeros_like(like).scatter(-1, index.unsqueeze(-1), known)
    except RuntimeError as error:
        raise _refusal(error, like, y) from None


def _ignoring(nll: Tensor, y: Tensor) -> Tensor:
    return nll.masked_fill(y == IGNORE, 0.0)


def ce(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, -log p_y."""
    return _ignoring(-of_label(_log_probs(logits), y), y)


def soft_ce(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with targets [..., K] that need not be probabilities."""
    return -(targets * _log_probs(logits)).sum(-1)


def label_smoothing(logits: Tensor, y: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross-entropy with targets (1 - e) onehot + e / K. Szegedy et al., CVPR 2016, section 7."""
    uniform = -_log_probs(logits).mean(-1)
    return _ignoring((1 - smoothing) * ce(logits, y) + smoothing * uniform, y)


def noise_against_noise(
    logits: Tensor, y: Tensor, sigma: float = 1.0, *, generator: torch.Generator
) -> Tensor:
    """Cross-entropy with targets onehot + sigma N(0, I), drawn anew at every call.

    Chen et al., "Noise against noise", ICLR 2021, eq. 2. The targets are neither clipped nor
    normalised, so the loss can be negative.
    """
    log_p = _log_probs(logits)
    noise = torch.randn(log_p.shape, generator=generator, device=log_p.device, dtype=log_p.dtype)
    return _ignoring(-of_label(log_p, y) - sigma * (noise * log_p).sum(-1), y)


# ------------------------------------------------------------------------------ bounded losses


def gce(logits: Tensor, y: Tensor, q: float = 0.7) -> Tensor:
    """Generalised cross-entropy (1 - p_y^q) / q. Zhang and Sabuncu, NeurIPS 2018, eq. 6.

    q -> 0 is cross-entropy, q = 1 is half of `mae`.
    """
    _check(0 < q <= 1, f"q must be in (0, 1], but it is {q}; for q = 0 use ce.")
    # In log space: the gradient of p**q is inf * 0 = NaN where p underflows.
    return _ignoring(-torch.expm1(q * of_label(_log_probs(logits), y)) / q, y)


def truncation_weights(logits: Tensor, y: Tensor, k: float = 0.5) -> Tensor:
    """1 where p_y >= k, else 0; no gradient. Zhang and Sabuncu, eq. 9-10, with the best v fixed."""
    log_p = of_label(_log_probs(logits.detach()), y)
    return ((log_p >= math.log(k)) & (y != IGNORE)).to(log_p.dtype)


def truncated_gce(
    logits: Tensor, y: Tensor, weights: Tensor, q: float = 0.7, k: float = 0.5
) -> Tensor:
    """weights * (GCE(p_y) - GCE(k)), weights [...] from `truncation_weights` some epochs ago.

    Zhang and Sabuncu, NeurIPS 2018, eq. 10. Negative for an example that is fitted well.
    """
    return _ignoring(weights * (gce(logits, y, q) - (1 - k**q) / q), y)


def mae(logits: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error |onehot - p|_1 = 2 (1 - p_y). Ghosh et al., AAAI 2017."""
    return 2 * gce(logits, y, q=1.0)


def symmetric_ce(logits: Tensor, y: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """alpha CE + beta RCE, RCE = -A (1 - p_y). Wang et al., ICCV 2019, eq. 7 and 5.

    A stands for log 0. The paper's text has A = -4 beside its plots, its experiments clip at
    1e-4, which is A = -9.21: what is done here.
    """
    reverse = -math.log(FLOOR) * gce(logits, y, q=1.0)
    return alpha * ce(logits, y) + beta * reverse


def bootstrap_soft(logits: Tensor, y: Tensor, beta: float = 0.95, detach: bool = False) -> Tensor:
    """Cross-entropy with targets beta onehot + (1 - beta) p. Reed et al., ICLR 2015, eq. 6.

    The paper differentiates the p in the target too (entropy minimisation); `detach` stops that.
    """
    log_p = _log_probs(logits)
    p = log_p.detach().exp() if detach else log_p.exp()
    own = -(p * log_p).sum(-1)
    return _ignoring(beta * -of_label(log_p, y) + (1 - beta) * own, y)


def bootstrap_hard(logits: Tensor, y: Tensor, beta: float = 0.8) -> Tensor:
    """Cross-entropy with targets beta onehot + (1 - beta) onehot(argmax p). Reed et al., eq. 7."""
    log_p = _log_probs(logits)
    own = -log_p.max(-1).values
    return _ignoring(beta * -of_label(log_p, y) + (1 - beta) * own, y)


# ------------------------------------------------------------------------------ bi-tempered


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
    """log of `tempered_softmax`; -inf where t < 1 gives an exact zero."""
    _check(t > 0, f"The temperature t must be positive, but it is {t}.")
    z = _precise(logits)
    if abs(t - 1) < 1e-6:
        return z.log_softmax(-1)
    return _TemperedLogSoftmax.apply(z, t)


def tempered_softmax(logits: Tensor, t: float) -> Tensor:
    """Probabilities exp_t(z - lambda(z)); heavy tails for t > 1. Amid et al., NeurIPS 2019, eq. 4.

    t = 1 is softmax. The argmax is that of the logits.
    """
    return tempered_log_softmax(logits, t).exp()


def bi_tempered(
    logits: Tensor, y: Tensor, t1: float = 0.8, t2: float = 1.2, smoothing: float = 0.0
) -> Tensor:
    """Bi-tempered logistic loss. Amid et al., NeurIPS 2019, eq. 8; t1 = t2 = 1 is cross-entropy.

    t1 < 1 bounds the loss, t2 > 1 gives the tempered softmax heavy tails. The normaliser is not
    differentiated through: the gradient is the closed one. `smoothing` as in `label_smoothing`.
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


# ------------------------------------------------------------------------------ peer terms


def peer_loss(
    logits: Tensor,
    y: Tensor,
    alpha: float | Tensor = 1.0,
    clip: float = CLIP,
    *,
    generator: torch.Generator,
) -> Tensor:
    """CE(f(x_i), y_i) - alpha CE(f(x_j), y_k), j and k random. Liu and Guo, ICML 2020, eq. 3.

    j and k are drawn independently among the elements that are not ignored. The subtracted term
    has no upper bound, so it is held below `clip`. alpha may be a tensor on the device (a ramp).
    """
    flat, labels = logits.flatten(0, -2), y.flatten()
    ignored = labels == IGNORE
    valid_first = ignored.to(torch.uint8).argsort(stable=True)
    draws = torch.rand(2, len(labels), generator=generator, device=y.device)
    count = (~ignored).sum()
    j, k = valid_first[(draws * count).long().minimum((count - 1).clamp_min(0))]
    peer = ce(flat[j], labels[k]).clamp(max=clip).view(y.shape)
    return _ignoring(ce(logits, y) - alpha * peer, y)


def cores(
    logits: Tensor,
    y: Tensor,
    beta: float | Tensor = 2.0,
    prior: Tensor | None = None,
    clip: float = CLIP,
) -> Tensor:
    """CE - beta E_{c ~ prior}[-log p_c]. Cheng et al., "CORES^2", ICLR 2021, eq. 3.

    prior [K]: frequencies of the noisy labels, uniform if None. beta may be a tensor on the device
    (a ramp). Each subtracted -log p_c is held below `clip`, for the term has no upper bound.
    """
    nll = (-_log_probs(logits)).clamp(max=clip)
    expected = nll.mean(-1) if prior is None else (nll * prior).sum(-1)
    return _ignoring(ce(logits, y) - beta * expected, y)


# ------------------------------------------------------------------------------ with memory


def _clamped_probs(logits: Tensor) -> Tensor:
    return _precise(logits).softmax(-1).clamp(FLOOR, 1 - FLOOR)


def elr_target(memory: Tensor, logits: Tensor, beta: float = 0.7) -> Tensor:
    """The new running targets beta t + (1 - beta) p / sum p, no gradient. Liu et al., 2020, eq. 8.

    memory [..., K]: the targets of these rows so far, 0 at first.
    """
    p = _clamped_probs(logits.detach())
    return beta * memory + (1 - beta) * p / p.sum(-1, keepdim=True)


def elr(logits: Tensor, targets: Tensor) -> Tensor:
    """The regulariser log(1 - <t, p>) [...]. Liu et al., NeurIPS 2020, eq. 6.

    targets [..., K]: from `elr_target`, updated before the loss.
    """
    return torch.log1p(-(targets * _clamped_probs(logits)).sum(-1))


def sop(logits: Tensor, y: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms of sparse over-parametrisation, [...] each. Liu et al., ICML 2022, eq. 5-7.

    u [..., 1] and v [..., K] are parameters of these rows. The first term, cross-entropy of
    p + U - V, trains network and u (V is held); the second, a squared error with the hard
    prediction, trains u and v alone.
    """
    p = _precise(logits).softmax(-1)
    given = one_hot(y, p)
    added = (u**2 * given).clamp(0, 1)
    removed = (v**2 * (1 - given)).clamp(0, 1)
    moved = (p + added - removed.detach()).clamp_min(FLOOR)
    nll = of_label(moved.sum(-1, keepdim=True).log() - moved.log(), y)
    hard = one_hot(p.argmax(-1), p)
    error = ((hard + added - removed - given) ** 2).sum(-1)
    return _ignoring(nll, y), _ignoring(error, y)


# ------------------------------------------------------------------------------ modules


class Loss(nn.Module):
    """A loss function with its settings, for anybody's loop.

    `GCE(q=0.7)(logits, y)`; settings and defaults are those of the function. The class axis is
    last (`logits.movedim(1, -1)` for images of logits), label -1 is ignored.
    reduction: "mean" over the elements not ignored, "sum", or "none".
    """

    function: ClassVar[Callable[..., Tensor]]
    ranges: ClassVar[str] = ""  # what must hold of the settings: "0 < q <= 1, alpha >= 0"

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or cls.function.__doc__

    def __init__(self, *args: Any, reduction: str = "mean", **settings: Any) -> None:
        super().__init__()
        _check(
            reduction in ("mean", "sum", "none"),
            f'reduction must be "mean", "sum" or "none", but it is {reduction!r}.',
        )
        self.reduction = reduction
        # Bound here, so that an unknown or missing setting fails at once and not in the loop.
        bound = inspect.signature(self.function).bind(None, None, *args, **settings)
        bound.apply_defaults()
        self.settings = dict(list(bound.arguments.items())[2:])
        check_ranges(type(self).__name__, self.settings, self.ranges)

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        nll = self.function(logits, y, **self.settings)
        if self.reduction == "none":
            return nll
        return nll.sum() if self.reduction == "sum" else mean(nll, y)

    def extra_repr(self) -> str:
        shown = {**self.settings, "reduction": self.reduction}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


class CE(Loss):
    function = staticmethod(ce)


class LabelSmoothing(Loss):
    function = staticmethod(label_smoothing)
    ranges = "0 <= smoothing <= 1"


class NoiseAgainstNoise(Loss):
    function = staticmethod(noise_against_noise)
    ranges = "sigma >= 0"


class GCE(Loss):
    function = staticmethod(gce)
    ranges = "0 < q <= 1"


class MAE(Loss):
    function = staticmethod(mae)


class SymmetricCE(Loss):
    function = staticmethod(symmetric_ce)
    ranges = "alpha >= 0, beta >= 0"


class BootstrapSoft(Loss):
    function = staticmethod(bootstrap_soft)
    ranges = "0 <= beta <= 1"


class BootstrapHard(Loss):
    function = staticmethod(bootstrap_hard)
    ranges = "0 <= beta <= 1"


class BiTempered(Loss):
    function = staticmethod(bi_tempered)
    ranges = "0 <= t1 <= 1, t2 > 0, 0 <= smoothing < 1"


class PeerLoss(Loss):
    function = staticmethod(peer_loss)
    ranges = "alpha >= 0"


class Cores(Loss):
    function = staticmethod(cores)
    ranges = "beta >= 0"


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise BadInput(message)
