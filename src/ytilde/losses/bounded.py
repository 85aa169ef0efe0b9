"""Losses that a wrong label moves less: GCE, MAE, symmetric cross-entropy, bootstrapping."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..data import IGNORE
from .cross_entropy import ce
from .labels import _check, _ignoring, _log_probs, of_label

FLOOR = 1e-4  # smallest probability that ELR, SOP and symmetric CE let into a logarithm


def gce(logits: Tensor, y: Tensor, q: float = 0.7) -> Tensor:
    """Generalised cross-entropy (1 - p_y^q) / q. Zhang and Sabuncu, NeurIPS 2018, eq. 6.

    q -> 0 is cross-entropy, q = 1 is half of `mae`.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        q: in (0, 1].

    Returns:
        The loss of each element [...], 0 where it is ignored; 1 / q at most.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> gce(logits, y, q=0.7)
        tensor([0.1215, 0.0000])
    """
    _check(0 < q <= 1, f"q must be in (0, 1], but it is {q}; for q = 0 use ce.")
    # In log space: the gradient of p**q is inf * 0 = NaN where p underflows.
    return _ignoring(-torch.expm1(q * of_label(_log_probs(logits), y)) / q, y)


def truncation_weights(logits: Tensor, y: Tensor, k: float = 0.5) -> Tensor:
    """1 where p_y >= k, else 0; no gradient. Zhang and Sabuncu, eq. 9-10, with the best v fixed.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        k: the smallest probability of a label that is kept.

    Returns:
        The weights of the elements [...], 0 where they are ignored.

    Example:
        >>> truncation_weights(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor([1., 0.])
    """
    log_p = of_label(_log_probs(logits.detach()), y)
    return ((log_p >= math.log(k)) & (y != IGNORE)).to(log_p.dtype)


def truncated_gce(
    logits: Tensor, y: Tensor, weights: Tensor, q: float = 0.7, k: float = 0.5
) -> Tensor:
    """weights * (GCE(p_y) - GCE(k)). Zhang and Sabuncu, NeurIPS 2018, eq. 10.

    Negative for an example that is fitted well.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        weights: [...], from `truncation_weights` some epochs ago.
        q: as in `gce`.
        k: as in `truncation_weights`.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> truncated_gce(logits, y, torch.ones(2))
        tensor([-0.4277,  0.0000])
    """
    return _ignoring(weights * (gce(logits, y, q) - (1 - k**q) / q), y)


def mae(logits: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error |onehot - p|_1 = 2 (1 - p_y). Ghosh et al., AAAI 2017.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.

    Returns:
        The loss of each element [...], 0 where it is ignored; 2 at most.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> mae(logits, y)
        tensor([0.2384, 0.0000])
    """
    return 2 * gce(logits, y, q=1.0)


def symmetric_ce(logits: Tensor, y: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """alpha CE + beta RCE, RCE = -A (1 - p_y). Wang et al., ICCV 2019, eq. 7 and 5.

    A stands for log 0. The paper's text has A = -4 beside its plots, its experiments clip at
    1e-4, which is A = -9.21: what is done here.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        alpha: weight of cross-entropy: convergence.
        beta: weight of the reverse: robustness.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> symmetric_ce(logits, y)
        tensor([1.1106, 0.0000])
    """
    reverse = -math.log(FLOOR) * gce(logits, y, q=1.0)
    return alpha * ce(logits, y) + beta * reverse


def bootstrap_soft(logits: Tensor, y: Tensor, beta: float = 0.95, detach: bool = False) -> Tensor:
    """Cross-entropy with targets beta onehot + (1 - beta) p. Reed et al., ICLR 2015, eq. 6.

    The paper differentiates the p in the target too (entropy minimisation).

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        beta: weight of the given label; the rest is the prediction's.
        detach: hold the p in the target fixed.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> bootstrap_soft(logits, y)
        tensor([0.1388, 0.0000])
    """
    log_p = _log_probs(logits)
    p = log_p.detach().exp() if detach else log_p.exp()
    own = -(p * log_p).sum(-1)
    return _ignoring(beta * -of_label(log_p, y) + (1 - beta) * own, y)


def bootstrap_hard(logits: Tensor, y: Tensor, beta: float = 0.8) -> Tensor:
    """Cross-entropy with targets beta onehot + (1 - beta) onehot(argmax p). Reed et al., eq. 7.

    Args:
        logits: [..., K].
        y: labels [...]; -1 = ignore.
        beta: weight of the given label; the rest is the predicted class's.

    Returns:
        The loss of each element [...], 0 where it is ignored.

    Example:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -1])
        >>> bootstrap_hard(logits, y)
        tensor([0.1269, 0.0000])
    """
    log_p = _log_probs(logits)
    own = -log_p.max(-1).values
    return _ignoring(beta * -of_label(log_p, y) + (1 - beta) * own, y)
