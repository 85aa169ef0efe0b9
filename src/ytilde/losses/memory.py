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
