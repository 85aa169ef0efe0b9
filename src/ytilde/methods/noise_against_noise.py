"""Noise against noise: Gaussian noise on one-hot labels, anew each step. Chen et al., ICLR 2021.

Fidelity: the paper's stochastic label noise (eq. 2) alone, which is what Englesson et al. (TMLR
2023) call NAN; the authors' weight average is `--ema 0.999`, their label correction near the end is
left out. The noisy targets are neither clipped nor normalised. sigma = 0.5 is the authors' for
asymmetric and input-dependent noise on CIFAR-10 (1 for symmetric noise; 0.1 and 0.2 for CIFAR-100).
"auto" chooses from Englesson et al.'s grid by noisy validation accuracy.
"""

from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, StepInfo
from ..losses import mean, noise_against_noise
from ..method import Method, register, view


@register("noise_against_noise")
@dataclass(eq=False, repr=False)
class NoiseAgainstNoise(Method):
    sigma: float | str = 0.5  # standard deviation of the noise on each entry of a target

    ranges = "sigma >= 0"

    grid = {"sigma": (0.1, 0.2, 0.5, 0.75, 1)}

    def loss(self, batch: Batch, step: StepInfo) -> Tensor:
        x, y = view(batch, step)
        sigma = float(self.sigma)
        return mean(noise_against_noise(self.net(x), y, sigma, generator=step.generator), y)
