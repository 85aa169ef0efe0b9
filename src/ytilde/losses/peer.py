"""Losses that subtract what a label of no meaning would give: peer loss, CORES."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import IGNORE
from .cross_entropy import ce
from .labels import _ignoring, _log_probs

CLIP = 10.0  # bound on -log p where it is subtracted; without it the loss has no minimum


def peer_loss(
    logits: Tensor,
    y: Tensor,
    alpha: float | Tensor = 1.0,
    clip: float = CLIP,
    *,
    generator: torch.Generator,
) -> Tensor:
    """CE(f(x_i), y_i) - alpha CE(f(x_j), y_k), j and k random. Liu and Guo, ICML 2020, eq. 3.

    j and k are drawn independently among the elements that are not ignored. The subtracted term
    has no upper bound, so it is held below `clip`.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        alpha: weight of the random pairs; may be a tensor on the device (a ramp).
        clip: the largest loss of a random pair.
        generator: of the pairs, on the device of the labels.

    Returns:
        The loss of each element [...], 0 where it is ignored; it may be negative.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> loss = peer_loss(logits, y, generator=torch.Generator().manual_seed(0))
        >>> loss.shape, float(loss[1])
        (torch.Size([2]), 0.0)
    """
    flat, labels = logits.flatten(0, -2), y.flatten()
    ignored = labels == IGNORE
    valid_first = ignored.to(torch.uint8).argsort(stable=True)
    draws = torch.rand(2, len(labels), generator=generator, device=y.device)
    count = (~ignored).sum()
    j, k = valid_first[(draws * count).long().minimum((count - 1).clamp_min(0))]
    peer = ce(flat[j], labels[k]).clamp(max=clip).view(y.shape)
    return _ignoring(ce(logits, y) - alpha * peer, y)


def cores(
    logits: Tensor,
    y: Tensor,
    beta: float | Tensor = 2.0,
    prior: Tensor | None = None,
    clip: float = CLIP,
) -> Tensor:
    """CE - beta E_{c ~ prior}[-log p_c]. Cheng et al., "CORES^2", ICLR 2021, eq. 3.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        beta: weight of the regulariser; may be a tensor on the device (a ramp).
        prior: [K], frequencies of the noisy labels; None: uniform.
        clip: the largest -log p_c that is subtracted, for the term has no upper bound.

    Returns:
        The loss of each element [...], 0 where it is ignored; it may be negative.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> cores(logits, y, beta=1.0)
        tensor([-1.,  0.])
    """
    nll = (-_log_probs(logits)).clamp(max=clip)
    expected = nll.mean(-1) if prior is None else (nll * prior).sum(-1)
    return _ignoring(ce(logits, y) - beta * expected, y)
