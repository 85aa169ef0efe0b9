"""The logistic-normal likelihood, in closed form."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import BadInput
from ..losses import one_hot
from .head import _check_labels, _check_positive, _full_precision, _ignoring
from .sampling import SampledHead

Covariance = Literal["full", "diagonal", "isotropic", "identity"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)


class LogisticNormal(SampledHead):
    """The smoothed label is logistic-normal: its logits are N(mean(h), Sigma(h)).

    Englesson et al., TMLR 2023, eq. 4-5 and 9-11. full: Sigma = A A^T, A = c(h) c(h)^T + lam I.
    Ablations (Table 3): sigma = softplus(.) + lam, one a class (diagonal) or one for all
    (isotropic), and Sigma = I (identity). A prediction is softmax(mean / tau) of the real classes
    (sec. 3.4: no noise); the authors' code lets the dummy win. c = 0 is a stationary point of the
    loss: never zero-initialise `spread`.

    Args:
        dim: of the features.
        num_classes: K, at least 2.
        covariance: "full", "diagonal", "isotropic" or "identity".
        dummy: the logits have one coordinate a class against an outcome that no label has; False:
            against the last class, K - 1 coordinates.
        tau: scale of the target logits. tau / lam says how many sd the target lies away at first:
            1 / 0.1 learns slowly, 0.2 / 0.5 fast.
        lam: smallest standard deviation of the noise.
        smoothing: t, over all outcomes, 0.01 in the authors' code (not in the paper).

    Example:
        >>> head = LogisticNormal(8, 3, tau=1.0, lam=0.5)
        >>> h, y = torch.zeros(4, 8), torch.tensor([0, 1, 2, -1])
        >>> head.nll(h, y).mean().backward()
        >>> head.log_probs(h).shape
        torch.Size([4, 3])
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
        """Exact log-density (eq. 4) of a point inside the simplex of all outcomes.

        With respect to Lebesgue measure on the first D coordinates of s.

        Args:
            h: features [..., dim].
            s: [..., D + 1], positive and summing to 1.

        Returns:
            [...].
        """
        log_s = s.log()
        r = self.tau * (log_s[..., :-1] - log_s[..., -1:]) - self.mean(h)
        jacobian = self.width * math.log(self.tau) - log_s.sum(-1)
        constant = 0.5 * self.width * math.log(2 * math.pi)
        return jacobian - constant - self._energy(r, self._spread(h))

    @_full_precision
    def residual(self, h: Tensor, y: Tensor) -> Tensor:
        """r = target logits of y - mean(h). Its squared norm is the score of Fig. 6.

        Args:
            h: features [..., dim].
            y: labels [...].

        Returns:
            [..., D].
        """
        _check_labels(y, h)
        # not by comparing with each class: a label that is none of them must not pass unseen
        hit = one_hot(y, h.new_zeros(*y.shape, self.num_classes))
        r = torch.add(-self.mean(h), hit[..., : self.width], alpha=self.target)
        # Without the dummy the last class is where all coordinates are low.
        return r if self.dummy else torch.add(r, hit[..., -1:], alpha=-self.target)

    @_full_precision
    def quadratic(self, h: Tensor, y: Tensor) -> Tensor:
        """r^T Sigma^-1 r: the label's part of the loss (twice), attenuated by Sigma.

        Args:
            h: features [..., dim].
            y: labels [...].

        Returns:
            [...].
        """
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
