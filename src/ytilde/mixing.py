"""Training examples made of two: mixup and FMix. `ytilde.losses` has them too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ytilde.data import BadInput

__all__ = ["fmix", "low_frequency_noise", "mixup", "random_order", "symmetric_beta"]


def symmetric_beta(alpha: float, generator: torch.Generator, size: tuple[int, ...] = ()) -> Tensor:
    """A draw of Beta(alpha, alpha).

    From two uniforms (Devroye, "Random variate generation in one line of code", 1996, section 3):
    no rejection, so it can be captured in a CUDA graph.

    Args:
        alpha: above 0; small is near 0 or 1, large near one half.
        generator: the draw lies on its device.
        size: of the answer; by default one number.

    Returns:
        A tensor of this size.

    Example:
        >>> draws = symmetric_beta(1.0, torch.Generator().manual_seed(0), (1000,))
        >>> bool((draws >= 0).all() and (draws <= 1).all()), round(float(draws.mean()), 1)
        (True, 0.5)
    """
    if not alpha > 0:
        raise BadInput(f"alpha must be positive, but it is {alpha}.")
    if alpha == 1:  # uniform
        return torch.rand(size, generator=generator, device=generator.device)
    u, v = torch.rand(2, *size, generator=generator, device=generator.device).unbind()
    cos = (2 * math.pi * v).cos()
    spread = (u ** (-1 / alpha) - 1) * cos**2
    return 0.5 + torch.copysign(0.5 / (1 + 1 / spread).sqrt(), cos)


def random_order(n: int, generator: torch.Generator) -> Tensor:
    """0 to n - 1 in random order, on the generator's device.

    On a GPU by sorting draws, which a CUDA graph can hold; on a CPU that takes six times as long.
    """
    if generator.device.type == "cpu":
        return torch.randperm(n, generator=generator)
    return torch.rand(n, generator=generator, device=generator.device).argsort()


def mixup(
    x: Tensor, y: Tensor, alpha: float = 1.0, *, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two examples in one: lam ~ Beta(alpha, alpha), one a batch. Zhang et al., ICLR 2018.

    The loss is lam CE(., y) + (1 - lam) CE(., y').

    Args:
        x: inputs [B, ...].
        y: labels [B], or soft targets [B, K].
        alpha: of Beta(alpha, alpha).
        generator: on the device of x.

    Returns:
        lam x + (1 - lam) x', y, y', lam; x' is x in random order and y' its labels.

    Example:
        >>> x, y = torch.eye(2), torch.tensor([0, 1])
        >>> mixed, y, other, lam = mixup(x, y, generator=torch.Generator().manual_seed(1))
        >>> torch.equal(mixed, lam * x + (1 - lam) * torch.eye(2)[other])
        True
    """
    lam = symmetric_beta(alpha, generator)
    order = random_order(len(x), generator)
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
    """x where a random mask is, x' elsewhere. Harris et al., 2020.

    The mask is the part of an image [C, H, W] where low-frequency noise is highest: a share
    ~ Beta(alpha, alpha) of its pixels, in whole pixels, which is the lam that comes back. Of
    features [D] it is a random subset.

    Args:
        x: images [B, C, H, W] or features [B, D].
        y: labels [B], or soft targets [B, K].
        alpha: of Beta(alpha, alpha).
        decay: how fast the noise falls with its frequency: more makes smoother masks.
        each: a mask for each row, instead of one a batch as in the authors' code; lam is then [B].
        generator: on the device of x.

    Returns:
        The mixed inputs, y, y', lam, as in `mixup`.

    Example:
        >>> x, y = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
        >>> mixed, y, other, lam = fmix(x, y, generator=torch.Generator().manual_seed(0))
        >>> mixed.shape, bool(0 <= lam <= 1)
        (torch.Size([4, 3, 8, 8]), True)
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
    order = random_order(len(x), generator)
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
