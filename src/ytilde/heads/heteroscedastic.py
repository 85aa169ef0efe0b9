"""Gaussian noise on the logits, or on the features behind them, that depends on the input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import BadInput
from .head import _check_positive, _full_precision
from .sampling import SampledHead

MIN_SCALE = 1e-3  # of a predicted standard deviation


class Heteroscedastic(SampledHead):
    """p = E[softmax(u / tau)], u ~ N(mean(h), V V^T + diag(d^2)), d = softplus(.) + 1e-3.

    Diagonal (rank 0): Kendall & Gal, NeurIPS 2017 (tau = 1); Collier et al. 2020, eq. 6-7 (any
    tau). Low rank + diagonal: Collier et al., CVPR 2021. The noise of factor and diagonal is drawn
    separately, and V0 has no bias: it would move the mean.

    Args:
        dim: of the features.
        num_classes: K, at least 2.
        rank: of V; 0: diagonal noise.
        tau: temperature of the softmax.
        parameter_efficient: one factor for all inputs, V(h) = diag(v(h)) V0.
        binary: one latent for two classes, sigmoid(u / tau) for class 1 (Collier et al. 2020,
            appendix A).
        train_samples: Monte-Carlo samples of a training step.
        eval_samples: and of a prediction, with noise that is always the same.

    Example:
        >>> head = Heteroscedastic(8, 3, rank=2, tau=0.5).eval()
        >>> h, y = torch.zeros(4, 8), torch.tensor([0, 1, 2, -1])
        >>> head.nll(h, y).shape, head.variance(h).shape
        (torch.Size([4]), torch.Size([4, 3]))
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

    Args:
        dim: of the features.
        num_classes: K, at least 2.
        rank: of V.
        tau_bounds: low and high.
        train_samples: Monte-Carlo samples of a training step.
        eval_samples: and of a prediction, with noise that is always the same.

    Example:
        >>> head = HetXL(8, 1000, rank=2, eval_samples=20).eval()
        >>> head.log_probs(torch.zeros(4, 8)).shape
        torch.Size([4, 1000])
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
        """The temperature, as learned so far."""
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
