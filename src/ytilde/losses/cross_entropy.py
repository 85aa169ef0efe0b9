"""Cross-entropy, and with other targets: smoothed, soft, noisy."""

from __future__ import annotations

import torch
from torch import Tensor

from .labels import _ignoring, _log_probs, nll_of_label, of_label


def ce(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, -log p_y.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> ce(logits, y)
        tensor([0.1269, 0.0000])
    """
    return nll_of_label(_log_probs(logits), y)


def soft_ce(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with targets that need not be probabilities.

    Args:
        logits: [..., K].
        targets: [..., K].

    Returns:
        The loss of each element [...].

    Example:
        >>> soft_ce(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
        tensor([1.1269])
    """
    return -(targets * _log_probs(logits)).sum(-1)


def label_smoothing(logits: Tensor, y: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross-entropy with targets (1 - e) onehot + e / K. Szegedy et al., CVPR 2016, section 7.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        smoothing: e, how much of each target is spread over all classes.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> label_smoothing(logits, y, smoothing=0.1)
        tensor([0.2269, 0.0000])
    """
    uniform = -_log_probs(logits).mean(-1)
    return _ignoring((1 - smoothing) * ce(logits, y) + smoothing * uniform, y)


def noise_against_noise(
    logits: Tensor, y: Tensor, sigma: float = 1.0, *, generator: torch.Generator
) -> Tensor:
    """Cross-entropy with targets onehot + sigma N(0, I), drawn anew at every call.

    Chen et al., "Noise against noise", ICLR 2021, eq. 2. The targets are neither clipped nor
    normalised, so the loss can be negative.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        sigma: standard deviation of the noise on each entry of a target.
        generator: of the noise, on the device of the logits.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> loss = noise_against_noise(logits, y, generator=torch.Generator().manual_seed(0))
        >>> loss.shape, float(loss[1])
        (torch.Size([2]), 0.0)
    """
    log_p = _log_probs(logits)
    noise = torch.randn(log_p.shape, generator=generator, device=log_p.device, dtype=log_p.dtype)
    return _ignoring(-of_label(log_p, y) - sigma * (noise * log_p).sum(-1), y)
