"""What every loss needs: means over the labelled, values at the label, one-hot rows, precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import IGNORE, BadInput


def weighted_mean(nll: Tensor, weights: Tensor) -> Tensor:
    """Sum of weights * nll over the sum of weights; 0 when no weight is positive.

    Args:
        nll: losses [...].
        weights: [...]; one of 0 leaves its element out, whatever its loss is.

    Returns:
        A scalar.

    Example:
        >>> weighted_mean(torch.tensor([1.0, 4.0, torch.inf]), torch.tensor([2.0, 1.0, 0.0]))
        tensor(2.)
    """
    kept = torch.where(weights > 0, weights * nll, torch.zeros_like(nll))
    total = weights.sum()
    return kept.sum() / torch.where(total > 0, total, torch.ones_like(total))


def mean(nll: Tensor, y: Tensor) -> Tensor:
    """The mean over the elements that are not ignored; 0 when all are.

    Args:
        nll: losses [...].
        y: labels [...]; -1 = ignore.

    Returns:
        A scalar.

    Example:
        >>> mean(torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2, 0, -1]))
        tensor(2.)
    """
    known = y != IGNORE
    total = known.sum(dtype=nll.dtype)
    return torch.where(known, nll, 0.0).sum() / total.clamp(min=1)


def nll_of_label(log_probs: Tensor, y: Tensor) -> Tensor:
    """-log_probs at the label, in one kernel: their number is what a small network's step costs.

    Args:
        log_probs: [..., K].
        y: labels [...]; -1 = ignore.

    Returns:
        [...], 0 where the label is ignored.

    Example:
        >>> nll_of_label(torch.tensor([[-0.1, -2.3], [-0.7, -0.7]]), torch.tensor([1, -1]))
        tensor([2.3000, 0.0000])
    """
    _check_shape(log_probs, y)
    rows = log_probs.reshape(-1, log_probs.shape[-1])
    try:
        nll = F.nll_loss(rows, y.flatten(), ignore_index=IGNORE, reduction="none")
    except (IndexError, RuntimeError) as error:
        raise _refusal(error, log_probs, y) from None
    return nll.view(y.shape)


def _log_probs(logits: Tensor) -> Tensor:
    return log_softmax(_precise(logits))


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last axis of logits [..., K], as torch's, and in the same bits.

    On a CPU torch takes up to nine times as long over fewer than 16 neighbouring numbers as over
    the same numbers lying apart. Laying them apart pays from 5 classes on.
    """
    if logits.device.type == "cpu" and logits.dim() > 1 and 5 <= logits.shape[-1] < 16:
        return logits.mT.contiguous().log_softmax(-2).mT
    return logits.log_softmax(-1)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def of_label(values: Tensor, y: Tensor) -> Tensor:
    """values [..., K] at the label; whatever stands at class 0 where the label is ignored.

    Args:
        values: [..., K].
        y: labels [...]; -1 = ignore.

    Returns:
        [...].

    Example:
        >>> of_label(torch.tensor([[0.1, 0.9], [0.3, 0.7]]), torch.tensor([1, -1]))
        tensor([0.9000, 0.3000])
    """
    index = _index(values, y)
    try:
        return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    except RuntimeError as error:
        raise _refusal(error, values, y) from None


def _index(values: Tensor, y: Tensor) -> Tensor:
    """The labels as an index of values [..., K]: torch refuses all but the classes and -1."""
    _check_shape(values, y)
    return y + (y == IGNORE)


def _refusal(error: Exception, values: Tensor, y: Tensor) -> Exception:
    """What to raise where torch refused to index values [..., K] by y: the label, if it was that.

    On a GPU torch refuses later, by a failed assertion: a look at the labels would stop every step.
    """
    K = values.shape[-1]
    strange = y[(y < IGNORE) | (y >= K)] if y.device.type == "cpu" else y.new_empty(0)
    if not len(strange):
        return error
    return BadInput(
        f"the label {int(strange[0])} is none of the {K} classes 0 to {K - 1} that the logits have "
        "columns for, nor -1 = ignore."
    )


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """One-hot rows; all zero where the label is ignored.

    Args:
        y: labels [...]; -1 = ignore.
        like: [..., K], for the shape, the type and the device.

    Returns:
        [..., K].

    Example:
        >>> one_hot(torch.tensor([1, -1]), torch.zeros(2, 3))
        tensor([[0., 1., 0.],
                [0., 0., 0.]])
    """
    known = (y != IGNORE).unsqueeze(-1).to(like.dtype)
    index = _index(like, y)
    try:
        return torch.zeros_like(like).scatter(-1, index.unsqueeze(-1), known)
    except RuntimeError as error:
        raise _refusal(error, like, y) from None


def _ignoring(nll: Tensor, y: Tensor) -> Tensor:
    return nll.masked_fill(y == IGNORE, 0.0)


def _check_shape(values: Tensor, y: Tensor) -> None:
    _check(
        y.shape == values.shape[:-1],
        f"labels of shape {list(y.shape)} do not fit values of shape {list(values.shape)}: give "
        "one label for each position before the last axis.",
    )


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise BadInput(message)
