"""Cross-entropy, and with other targets: smoothed, soft, noisy."""

from __future__ import annotations

import torch
from torch import Tensor

from .labels import _ignoring, _log_probs, of_label


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
