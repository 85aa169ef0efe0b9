"""Heads: features -> a distribution over labels. Class axis last, any leading axes before it.

A head is a plain module for anybody's own loop: `head.nll(features, y).mean()` is a loss,
`head.log_probs(features)` a prediction. Everything here runs in the precision of the head's own
weights (float32) with autocast off.

Layers keep torch's default initialisation whatever the temperature is: the Monte-Carlo heads depend
on mean / tau and scale / tau alone, so tau acts through the initial scale, and an initialisation
that followed tau would undo it. Below tau = 0.1 the softmax starts saturated: lower the rate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import IGNORE, BadInput
from .losses import of_label, one_hot

__all__ = ["Head", "HetXL", "Heteroscedastic", "LogisticNormal", "Softmax", "Upsampled"]

MIN_SCALE = 1e-3  # of a predicted standard deviation
EVAL_SEED = 0  # of the noise behind every prediction
CHUNK = 2**20  # elements of one streamed block of samples: bounds memory, whatever S is
Covariance = Literal["full", "diagonal", "isotropic", "identity"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)

_F = TypeVar("_F", bound=Callable[..., Any])


def _full_precision(method: _F) -> _F:
    """Run a head's method with autocast off and the features in the precision of its weights."""

    @functools.wraps(method)
    def wrapped(self: Head, h: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type=h.device.type, enabled=False):
            return method(self, h.to(next(self.parameters()).dtype), *args, **kwargs)

    return cast(_F, wrapped)


class Head(nn.Module):
    """Features [..., dim] -> a distribution over the labels 0 .. num_classes - 1.

    `forward` gives the mean logits [..., K]: what is left when the noise is taken away.
    """

    categorical = True  # nll is that of log_probs; False: the head has a likelihood of its own

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        if dim < 1 or num_classes < 2:
            raise BadInput(f"a head needs dim >= 1 and num_classes >= 2, not {dim}, {num_classes}.")
        self.dim, self.num_classes = dim, num_classes

    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Log-probabilities [..., K]. Heads without noise do not use the generator."""
        return self(h).log_softmax(-1)

    def nll(self, h: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Negative log-likelihood of each label in y [...]; 0 where y is -1."""
        return _nll(self.log_probs(h, generator), y)

    def variance(self, h: Tensor) -> Tensor | None:
        """Aleatoric variance of each class's probability [..., K], None for a head without noise.

        Its sum over the classes is the scalar aleatoric uncertainty.
        """
        return None


def _nll(log_probs: Tensor, y: Tensor) -> Tensor:
    _check_labels(y, log_probs)
    return _ignoring(-of_label(log_probs, y), y)


def _ignoring(nll: Tensor, y: Tensor) -> Tensor:
    return torch.where(y == IGNORE, torch.zeros_like(nll), nll)


def _check_labels(y: Tensor, features: Tensor) -> None:
    if y.shape != features.shape[:-1]:
        raise BadInput(
            f"labels of shape {list(y.shape)} do not fit predictions of shape "
            f"{list(features.shape)}: give one label for each position before the last axis."
        )


class Softmax(Head):
    """One linear layer: the homoscedastic head."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__(dim, num_classes)
        self.mean = nn.Linear(dim, num_classes)

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self.mean(h)


# Monte-Carlo: log E[softmax(u)] over Gaussian u, a block of samples at a time


def _normal(seed: Tensor | int, rows: int, samples: range, width: int, like: Tensor) -> Tensor:
    """Standard normal noise [rows, len(samples), width], a pure function of seed and position.

    A backward pass can so draw the same noise again, even in a CUDA graph, where a generator cannot
    be wound back, and predictions see the same noise on every device. A 64-bit counter hash
    (SplitMix64: Steele et al., OOPSLA 2014) feeds Box and Muller's transform.
    """
    half = (width + 1) // 2
    integers: dict[str, Any] = {"device": like.device, "dtype": torch.int64}
    row = torch.arange(rows, **integers)[:, None, None]
    sample = torch.arange(samples.start, samples.stop, **integers)[:, None]
    z = (sample * rows + row) * half + torch.arange(half, **integers)
    z = (z + 1) * -0x61C8864680B583EB + seed  # 2^64 / golden ratio, as a signed number
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    z = z ^ _shift(z, 31)
    radius = ((_shift(z, 40) + 1).float() * 2.0**-24).log_().mul_(-2).sqrt_()
    angle = (z & 0xFFFFFF).float() * (2 * math.pi * 2.0**-24)
    noise = torch.cat([radius * angle.cos(), radius * angle.sin()], -1)
    return noise[..., :width].to(like.dtype)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of a signed 64-bit integer."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class _Draws:
    """S noise vectors for each of n rows (or the same for all rows), in blocks."""

    def __init__(
        self, seed: Tensor | int, samples: int, width: int, rows: int, shared: bool, size: int
    ) -> None:
        self.seed, self.samples, self.width = seed, samples, width
        self.rows = 1 if shared else rows
        self.block = max(1, CHUNK // (rows * size))

    def blocks(self, like: Tensor) -> Iterator[Tensor]:
        """Noise [rows or 1, s, width]; the numbers do not depend on how they are cut."""
        for start in range(0, self.samples, self.block):
            part = range(start, min(start + self.block, self.samples))
            yield _normal(self.seed, self.rows, part, self.width, like)


_Latents = Callable[..., Tensor]  # (noise [n or 1, s, width], *moments) -> u [n, s, K]


class _LogMeanSoftmax(torch.autograd.Function):
    """log (1/S) sum_s softmax(u_s) by logsumexp, eq. 7 of Collier et al. 2020 in log space.

    The mean of clipped probabilities, the usual way, has no gradient where every sample misses the
    class. Backward draws the noise again and uses the closed gradient
    d log p_k / d u_s = w_sk (e_k - p_s), w_sk = p_sk / sum_s' p_s'k, so nothing of size S is kept.
    """

    @staticmethod
    def forward(ctx: Any, latents: _Latents, draws: _Draws, *moments: Tensor) -> Tensor:
        parts = (
            latents(noise, *moments).log_softmax(-1).logsumexp(-2)
            for noise in draws.blocks(moments[0])
        )
        total = functools.reduce(torch.logaddexp, parts)  # log sum_s p_sk: [n, K]
        ctx.latents, ctx.draws = latents, draws
        ctx.save_for_backward(total, *moments)
        return total - math.log(draws.samples)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad = outputs[0].unsqueeze(-2)
        total, *moments = ctx.saved_tensors
        leaves = [m.detach().requires_grad_() for m in moments]
        grads = [torch.zeros_like(m) for m in moments]
        for noise in ctx.draws.blocks(total):
            with torch.enable_grad():
                u = ctx.latents(noise, *leaves)
            log_p = u.detach().log_softmax(-1)
            weight = grad * (log_p - total.unsqueeze(-2)).exp()
            du = weight - log_p.exp() * weight.sum(-1, keepdim=True)
            for g, part in zip(grads, torch.autograd.grad(u, leaves, du), strict=True):
                g += part
        return None, None, *grads


class SampledHead(Head):
    """A head whose logits are Gaussian given the features: u = latents(noise, *moments(h)).

    Noise. In training: fresh for each example, from `generator`, or from the device's default
    generator where none is given. In evaluation: the same `eval_samples` fixed vectors for
    every example, so a prediction depends neither on the time nor on the rest of the batch.
    """

    train_samples: int
    eval_samples: int
    width: int  # of one noise vector

    def moments(self, h: Tensor) -> tuple[Tensor, ...]:
        """What the layers say of u, each [n, ...] for h [n, dim] (or shared: a weight, tau)."""
        raise NotImplementedError

    def latents(self, noise: Tensor, *moments: Tensor) -> Tensor:
        """Logits u [n, s, K], divided by the temperature, for noise [n or 1, s, width]."""
        raise NotImplementedError

    @_full_precision
    def mixture(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """log E[softmax(u)] over the noise, [..., K]."""
        rows = h.reshape(-1, self.dim)
        draws = self._draws(rows, generator)
        log_p = _LogMeanSoftmax.apply(self.latents, draws, *self.moments(rows))
        return log_p.reshape(*h.shape[:-1], self.num_classes)

    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.mixture(h, generator)

    @torch.no_grad()
    @_full_precision
    def variance(self, h: Tensor) -> Tensor:
        """Var[softmax(u)_k] over the fixed noise of evaluation, [..., K]. No gradient.

        The second pass goes around the mean of the first, so that nothing cancels near p = 1.
        """
        rows = h.reshape(-1, self.dim)
        draws, moments = self._fixed(rows), self.moments(rows)
        mean = _LogMeanSoftmax.apply(self.latents, draws, *moments).exp().unsqueeze(-2)
        squares = (
            (self.latents(noise, *moments).softmax(-1) - mean).square().sum(-2)
            for noise in draws.blocks(rows)
        )
        variance = functools.reduce(torch.add, squares) / draws.samples
        return variance.reshape(*h.shape[:-1], self.num_classes)

    @_full_precision
    def sampled(self, h: Tensor, generator: torch.Generator, samples: int = 1) -> Tensor:
        """log softmax(u_s) of single draws, [..., samples, K]: all of them in memory."""
        rows = h.reshape(-1, self.dim)
        noise = _normal(_seed(h, generator), len(rows), range(samples), self.width, rows)
        log_p = self.latents(noise, *self.moments(rows)).log_softmax(-1)
        return log_p.reshape(*h.shape[:-1], samples, self.num_classes)

    def _draws(self, rows: Tensor, generator: torch.Generator | None) -> _Draws:
        if not self.training and generator is None:
            return self._fixed(rows)
        samples = self.train_samples if self.training else self.eval_samples
        seed = _seed(rows, generator)
        return _Draws(seed, samples, self.width, max(len(rows), 1), False, self._size)

    def _fixed(self, rows: Tensor) -> _Draws:
        size = self._size
        return _Draws(EVAL_SEED, self.eval_samples, self.width, max(len(rows), 1), True, size)

    @property
    def _size(self) -> int:
        return max(self.width, self.num_classes)


def _seed(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A random seed that stays on the device."""
    return torch.randint(2**62, (), device=like.device, generator=generator)


class Heteroscedastic(SampledHead):
    """p = E[softmax(u / tau)], u ~ N(mean(h), V V^T + diag(d^2)), d = softplus(.) + 1e-3.

    Diagonal (rank 0): Kendall & Gal, NeurIPS 2017 (tau = 1); Collier et al. 2020, eq. 6-7 (any
    tau). Low rank + diagonal: Collier et al., CVPR 2021; parameter_efficient has one factor for all
    inputs, V(h) = diag(v(h)) V0. binary: one latent for two classes, sigmoid(u / tau) for class 1
    (Collier et al. 2020, appendix A). The noise of factor and diagonal is drawn separately, and V0
    has no bias: it would move the mean.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        rank: int = 0,
        tau: float = 1.0,
        parameter_efficient: bool = False,
        binary: bool = False,
        train_samples: int = 50,
        eval_samples: int = 1000,
    ) -> None:
        super().__init__(dim, num_classes)
        _check_positive(tau=tau, train_samples=train_samples, eval_samples=eval_samples)
        if rank < 0 or (parameter_efficient and rank == 0):
            raise BadInput(f"rank is {rank}: give rank >= 0, and >= 1 if parameter_efficient.")
        if binary and num_classes != 2:
            raise BadInput(f"binary=True is for 2 classes, not {num_classes}: leave it out.")
        self.rank, self.tau, self.binary = rank, tau, binary
        self.parameter_efficient = parameter_efficient
        self.train_samples, self.eval_samples = train_samples, eval_samples
        outputs = 1 if binary else num_classes
        self.width = rank + outputs
        self.mean = nn.Linear(dim, outputs)
        self.scale = nn.Linear(dim, outputs)
        if parameter_efficient:
            self.factor = nn.Linear(dim, outputs)
            self.shared = nn.Linear(rank, outputs, bias=False)
        elif rank:
            self.factor = nn.Linear(dim, outputs * rank)

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self._logits(self.mean(h))

    def moments(self, h: Tensor) -> tuple[Tensor, ...]:
        mean, scale = self.mean(h), F.softplus(self.scale(h)) + MIN_SCALE
        if self.parameter_efficient:
            return mean, scale, self.factor(h).unsqueeze(-1) * self.shared.weight
        if self.rank:
            return mean, scale, self.factor(h).unflatten(-1, (-1, self.rank))
        return mean, scale

    def latents(self, noise: Tensor, *moments: Tensor) -> Tensor:
        mean, scale, *factor = moments
        u = mean.unsqueeze(1) + scale.unsqueeze(1) * noise[..., self.rank :]
        if factor:
            u = u + noise[..., : self.rank] @ factor[0].mT
        return self._logits(u)

    def _logits(self, u: Tensor) -> Tensor:
        u = u / self.tau
        return F.pad(u, (1, 0)) if self.binary else u  # softmax([0, u])_1 = sigmoid(u)


class HetXL(SampledHead):
    """Noise in the space of the features, learned temperature. Collier et al., ICLR 2023 (HET-XL).

    u = W (h + e) + b, e ~ N(0, V(h) V(h)^T + diag(d(h)^2)) with V(h) [dim, rank]: what the noise
    adds in parameters does not grow with the classes. tau = low + (high - low) sigmoid(rho) is
    learned on the training likelihood; rho takes no weight decay.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        rank: int = 4,
        tau_bounds: tuple[float, float] = (0.3, 3.0),
        train_samples: int = 50,
        eval_samples: int = 1000,
    ) -> None:
        super().__init__(dim, num_classes)
        _check_positive(rank=rank, train_samples=train_samples, eval_samples=eval_samples)
        low, high = tau_bounds
        if not 0 < low < high:
            raise BadInput(f"tau_bounds {tau_bounds} must be two numbers 0 < low < high.")
        self.rank, self.tau_bounds = rank, (low, high)
        self.train_samples, self.eval_samples = train_samples, eval_samples
        self.width = rank + dim
        self.mean = nn.Linear(dim, num_classes)
        self.scale = nn.Linear(dim, dim)
        self.factor = nn.Linear(dim, dim * rank)
        self.rho = nn.Parameter(torch.zeros(()))

    @property
    def tau(self) -> Tensor:
        low, high = self.tau_bounds
        return low + (high - low) * self.rho.sigmoid()

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self.mean(h) / self.tau

    def moments(self, h: Tensor) -> tuple[Tensor, ...]:
        scale = F.softplus(self.scale(h)) + MIN_SCALE
        factor = self.factor(h).unflatten(-1, (self.dim, self.rank))
        return self.mean(h), scale, factor, self.mean.weight, self.tau

    def latents(self, noise: Tensor, *moments: Tensor) -> Tensor:
        mean, scale, factor, weight, tau = moments
        e = noise[..., : self.rank] @ factor.mT + scale.unsqueeze(1) * noise[..., self.rank :]
        return (mean.unsqueeze(1) + F.linear(e, weight)) / tau


class LogisticNormal(SampledHead):
    """The smoothed label is logistic-normal: its logits are N(mean(h), Sigma(h)).

    Englesson et al., ICML 2023, eq. 4-5 and 9-11. full: Sigma = A A^T, A = c(h) c(h)^T + lam I.
    Ablations (Table 3): sigma = softplus(.) + lam, one a class (diagonal) or one for all
    (isotropic), and Sigma = I (identity). The logits have one coordinate a class against a dummy
    outcome that no label has; dummy=False: against the last class, K - 1 coordinates.
    smoothing: t over all outcomes, 0.01 in the authors' code (not in the paper).
    tau / lam says how many sd the target lies away at first: 1 / 0.1 learns slowly, 0.2 / 0.5 fast.
    A prediction is softmax(mean / tau) of the real classes (sec. 3.4: no noise); the authors' code
    lets the dummy win. c = 0 is a stationary point of the loss: never zero-initialise `spread`.
    """

    categorical = False
    eval_samples = 1000  # for `variance` and `mixture` alone: the likelihood is in closed form
    train_samples = 1000

    def __init__(
        self,
        dim: int,
        num_classes: int,
        covariance: str = "full",
        dummy: bool = True,
        tau: float = 1.0,
        lam: float = 0.5,
        smoothing: float = 0.01,
    ) -> None:
        super().__init__(dim, num_classes)
        _check_positive(tau=tau, lam=lam)
        if covariance not in COVARIANCES:
            raise BadInput(f"covariance {covariance!r} is not one of {', '.join(COVARIANCES)}.")
        if not 0 < smoothing < 1:
            raise BadInput(f"smoothing is {smoothing}: give a number between 0 and 1.")
        self.covariance, self.dummy, self.tau = covariance, dummy, tau
        self.lam, self.smoothing = lam, smoothing
        self.width = num_classes if dummy else num_classes - 1  # D, the coordinates of the logits
        self.mean = nn.Linear(dim, self.width)
        if covariance != "identity":
            self.spread = nn.Linear(dim, 1 if covariance == "isotropic" else self.width)

    @property
    def target(self) -> float:
        """tau L: where the label's coordinate is drawn to; the others are drawn to 0."""
        outcomes, t = self.width + 1, self.smoothing
        return self.tau * math.log(((1 - t) * outcomes + t) / t)

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self._logits(self.mean(h))

    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self(h).log_softmax(-1)

    @_full_precision
    def nll(self, h: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(r^T Sigma^-1 r + log det Sigma) / 2, eq. 5 without its constants; may be negative."""
        energy = self._energy(self.residual(h, y), self._spread(h))
        return _ignoring(energy, y)

    @_full_precision
    def log_prob(self, h: Tensor, s: Tensor) -> Tensor:
        """Exact log-density (eq. 4) of s [..., D + 1], a point inside the simplex of all outcomes.

        With respect to Lebesgue measure on the first D coordinates of s.
        """
        log_s = s.log()
        r = self.tau * (log_s[..., :-1] - log_s[..., -1:]) - self.mean(h)
        jacobian = self.width * math.log(self.tau) - log_s.sum(-1)
        constant = 0.5 * self.width * math.log(2 * math.pi)
        return jacobian - constant - self._energy(r, self._spread(h))

    @_full_precision
    def residual(self, h: Tensor, y: Tensor) -> Tensor:
        """r = target logits of y - mean(h), [..., D]. Its squared norm is the score of Fig. 6."""
        _check_labels(y, h)
        # not by comparing with each class: a label that is none of them must not pass unseen
        hit = one_hot(y, h.new_zeros(*y.shape, self.num_classes))
        r = torch.add(-self.mean(h), hit[..., : self.width], alpha=self.target)
        # Without the dummy the last class is where all coordinates are low.
        return r if self.dummy else torch.add(r, hit[..., -1:], alpha=-self.target)

    @_full_precision
    def quadratic(self, h: Tensor, y: Tensor) -> Tensor:
        """r^T Sigma^-1 r [...]: the label's part of the loss (twice), attenuated by Sigma."""
        r, spread = self.residual(h, y), self._spread(h)
        if self.covariance == "full":
            return (_whiten(r, spread, self.lam)[0] / self.lam).square().sum(-1)
        return (r / spread).square().sum(-1)

    @_full_precision
    def log_det(self, h: Tensor) -> Tensor:
        """log det Sigma(h) [...]."""
        return 2 * self._energy(h.new_zeros(*h.shape[:-1], self.width), self._spread(h))

    def moments(self, h: Tensor) -> tuple[Tensor, ...]:
        return self.mean(h), self._spread(h)

    def latents(self, noise: Tensor, *moments: Tensor) -> Tensor:
        mean, spread = (m.unsqueeze(1) for m in moments)
        if self.covariance == "full":
            shift = self.lam * noise + spread * (spread * noise).sum(-1, keepdim=True)
        else:
            shift = spread * noise
        return self._logits(mean + shift)

    def _logits(self, mean: Tensor) -> Tensor:
        return mean / self.tau if self.dummy else F.pad(mean / self.tau, (0, 1))

    def _spread(self, h: Tensor) -> Tensor:
        """c for the full covariance, otherwise the standard deviations; [..., D]."""
        if self.covariance == "full":
            return self.spread(h)
        if self.covariance == "identity":
            return h.new_ones(()).expand(*h.shape[:-1], self.width)
        return (F.softplus(self.spread(h)) + self.lam).expand(*h.shape[:-1], self.width)

    def _energy(self, r: Tensor, spread: Tensor) -> Tensor:
        """(r^T Sigma^-1 r + log det Sigma) / 2."""
        if self.covariance == "full":
            return _RankOneEnergy.apply(r, spread, self.lam)
        return 0.5 * (r / spread).square().sum(-1) + spread.log().sum(-1)


def _whiten(r: Tensor, c: Tensor, lam: float) -> tuple[Tensor, Tensor, Tensor]:
    """lam A^-1 r for A = c c^T + lam I (Sherman and Morrison), c.A^-1 r [...], lam + |c|^2 [...].

    |A^-1 r|^2 is the quadratic form of Sigma = A A^T and never negative; written out in the
    products of r and c it loses all digits in float32 where c is long.
    """
    total = torch.linalg.vecdot(c, c) + lam
    along = torch.linalg.vecdot(c, r) / total
    return torch.addcmul(r, along.unsqueeze(-1), c, value=-1), along, total


class _RankOneEnergy(torch.autograd.Function):
    """(r^T Sigma^-1 r + log det Sigma) / 2 for Sigma = A A^T, A = c c^T + lam I, in O(D).

    With w = A^-1 r and v = A^-1 w = Sigma^-1 r, where c.v = c.w / (lam + |c|^2), the gradients are
    v in r (eq. 6) and 2 c / (lam + |c|^2) - (c.w) v - (c.v) w in c. By hand this takes a third of
    autograd's time.
    """

    @staticmethod
    def forward(ctx: Any, r: Tensor, c: Tensor, lam: float) -> Tensor:
        lam_w, cw, total = _whiten(r, c, lam)
        ctx.lam = lam
        ctx.save_for_backward(c, lam_w, cw, total)
        log_det = total.log().add_((c.shape[-1] - 1) * math.log(lam))
        return log_det.add_(torch.linalg.vecdot(lam_w, lam_w), alpha=0.5 / lam**2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        c, lam_w, cw, total = ctx.saved_tensors
        share = outputs[0] / total
        cv = (share * cw).div_(ctx.lam).unsqueeze(-1)  # times the incoming gradient, as is grad_r
        grad_r = (lam_w * (outputs[0] * ctx.lam**-2).unsqueeze(-1)).addcmul_(cv, c, value=-1)
        grad_c = (c * share.add_(share).unsqueeze(-1)).addcmul_(cw.unsqueeze(-1), grad_r, value=-1)
        return grad_r, grad_c.addcmul_(cv, lam_w, value=-1), None


class Upsampled(Head):
    """A head on a coarse map [B, H, W, dim] for labels [B, scale H, scale W], or cut to `size`.

    Collier et al. 2020, appendix E.1: log-probabilities are sampled on the coarse map, taken as
    logits, made larger (bilinear) and normalised again. A head with a likelihood of its own, as the
    logistic-normal, gets larger features instead: its layers are linear, so this is its
    likelihood with the larger mean and covariance parameters.
    """

    def __init__(self, head: Head, scale: int, size: tuple[int, ...] | None = None) -> None:
        super().__init__(head.dim, head.num_classes)
        _check_positive(scale=scale)
        self.head, self.scale, self.size = head, scale, size

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self._enlarge(self.head(h))

    @_full_precision
    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._enlarge(self.head.log_probs(h, generator)).log_softmax(-1)

    @_full_precision
    def nll(self, h: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.head.categorical:
            return super().nll(h, y, generator)
        return self.head.nll(self._enlarge(h), y, generator)

    @_full_precision
    def variance(self, h: Tensor) -> Tensor | None:
        variance = self.head.variance(h)
        return None if variance is None else self._enlarge(variance)

    def _enlarge(self, x: Tensor) -> Tensor:
        image = x.movedim(-1, 1)
        image = F.interpolate(image, scale_factor=self.scale, mode="bilinear", align_corners=False)
        if self.size is not None:  # networks round sides up that their stride does not divide
            image = image[..., : self.size[0], : self.size[1]]
        return image.movedim(1, -1)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise BadInput(f"{name} is {value}: give a number above 0.")
