"""Training examples made of two: mixup and FMix. `ytilde.losses` has them too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ytilde.data import BadInput

__all__ = ["fmix", "low_frequency_noise", "mixup", "symmetric_beta"]


def symmetric_beta(alpha: float, generator: torch.Generator, size: tuple[int, ...] = ()) -> Tensor:
    """A draw of Beta(alpha, alpha), by default a scalar, on the generator's device.

    From two uniforms (Devroye, "Random variate generation in one line of code", 1996, section 3):
    no rejection, so it can be captured in a CUDA graph.
    """
    if not alpha > 0:
        raise BadInput(f"alpha must be positive, but it is {alpha}.")
    u, v = torch.rand(2, *size, generator=generator, device=generator.device).unbind()
    cos = (2 * math.pi * v).cos()
    spread = (u ** (-1 / alpha) - 1) * cos**2
    return 0.5 + 0.5 * cos.sign() / (1 + 1 / spread).sqrt()


def mixup(
    x: Tensor, y: Tensor, alpha: float = 1.0, *, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lam x + (1 - lam) x', y, y', lam: one lam ~ Beta(alpha, alpha) a batch. Zhang et al., 2018.

    x' is x in random order, y' its labels (or soft targets [B, K]). The loss is
    lam CE(., y) + (1 - lam) CE(., y').
    """
    lam = symmetric_beta(alpha, generator)
    order = torch.rand(len(x), generator=generator, device=x.device).argsort()
    mixed = lam.to(x.dtype) * x + (1 - lam).to(x.dtype) * x[order]
    return mixed, y, y[order], lam


def fmix(
    x: Tensor,
    y: Tensor,
    alpha: float = 1.0,
    decay: float = 3.0,
    *,
    each: bool = False,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x where a random mask is, x' elsewhere; y, y', lam as of `mixup`. Harris et al., 2020.

    The mask is the part of an image [C, H, W] where low-frequency noise is highest: a share
    ~ Beta(alpha, alpha) of its pixels, in whole pixels, which is the lam that comes back. Of
    features [D] it is a random subset. One mask a batch, as in the authors' code, or `each` row its
    own, and then lam is [B].
    """
    if y.dim() > 2:
        raise BadInput("fmix mixes class labels [B] or soft targets [B, K], not labels of pixels")
    count = len(x) if each else 1
    lam = symmetric_beta(alpha, generator, (count,))
    if x.dim() == 4:
        height, width = x.shape[-2:]
        noise = low_frequency_noise(count, height, width, decay, generator=generator).unsqueeze(1)
    else:
        noise = torch.rand(count, *x.shape[1:], generator=generator, device=generator.device)
    ranked = noise.flatten(1).argsort(dim=1, descending=True)
    kept = (lam * ranked.shape[1]).round()
    highest = torch.arange(ranked.shape[1], device=x.device) < kept[:, None]
    mask = torch.zeros_like(highest).scatter_(1, ranked, highest).view(noise.shape)
    order = torch.rand(len(x), generator=generator, device=x.device).argsort()
    share = kept / ranked.shape[1]
    return torch.where(mask, x, x[order]), y, y[order], share if each else share[0]


def low_frequency_noise(
    count: int, height: int, width: int, decay: float = 3.0, *, generator: torch.Generator
) -> Tensor:
    """Gaussian images [count, H, W] whose amplitude falls with the frequency f as 1 / f^decay.

    The mean, of frequency 0, has the amplitude of the lowest other one. Float32.
    """
    device = generator.device
    of_row = torch.fft.fftfreq(height, device=device)[:, None]
    of_col = torch.fft.rfftfreq(width, device=device)
    frequency = (of_row**2 + of_col**2).sqrt().clamp(min=1 / max(height, width))
    white = torch.randn(2, count, *frequency.shape, generator=generator, device=device)
    spectrum = torch.complex(white[0], white[1]) * frequency**-decay
    return torch.fft.irfft2(spectrum, s=(height, width))
