"""Losses that need what a row has been through: ELR's running targets, SOP's errors."""

from __future__ import annotations

import torch
from torch import Tensor

from .bounded import FLOOR
from .labels import _ignoring, _precise, of_label, one_hot


def _clamped_probs(logits: Tensor) -> Tensor:
    return _precise(logits).softmax(-1).clamp(FLOOR, 1 - FLOOR)


def elr_target(memory: Tensor, logits: Tensor, beta: float = 0.7) -> Tensor:
    """The new running targets beta t + (1 - beta) p / sum p, no gradient. Liu et al., 2020, eq. 8.

    Args:
        memory: [..., K], the targets of these rows so far, 0 at first.
        logits: [..., K].
        beta: memory of past predictions.

    Returns:
        [..., K].

    Example:
        >>> elr_target(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), beta=0.5)
        tensor([[0.4404, 0.0596]])
    """
    p = _clamped_probs(logits.detach())
    return beta * memory + (1 - beta) * p / p.sum(-1, keepdim=True)


def elr(logits: Tensor, targets: Tensor) -> Tensor:
    """The regulariser log(1 - <t, p>). Liu et al., NeurIPS 2020, eq. 6.

    Args:
        logits: [..., K].
        targets: [..., K], from `elr_target`, updated before the loss.

    Returns:
        [...], negative where the prediction agrees with its past.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> elr(logits, elr_target(torch.zeros(1, 2), logits))
        tensor([-0.2705])
    """
    return torch.log1p(-(targets * _clamped_probs(logits)).sum(-1))


def sop(logits: Tensor, y: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms of sparse over-parametrisation. Liu et al., ICML 2022, eq. 5-7.

    The first term, cross-entropy of p + U - V, trains network and u (V is held); the second, a
    squared error with the hard prediction, trains u and v alone.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        u: [..., 1], parameters of these rows: how much of the given label is wrong.
        v: [..., K], parameters of these rows: how much each other class is missing.

    Returns:
        Both terms, [...] each, 0 where the label is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0]]), torch.tensor([1])
        >>> nll, fit = sop(logits, y, torch.full((1, 1), 0.5), torch.full((1, 2), 0.5))
        >>> nll, fit
        (tensor([0.9964]), tensor([1.1250]))
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
