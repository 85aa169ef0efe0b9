"""Head: what every head answers; and the softmax, the plainest one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ..data import IGNORE, BadInput
from ..data.precision import as_weights
from ..losses import nll_of_label
from ..losses.labels import log_softmax

_F = TypeVar("_F", bound=Callable[..., Any])


def _full_precision(method: _F) -> _F:
    """Run a head's method with autocast off and the features in the precision of its weights."""

    @functools.wraps(method)
    def wrapped(self: Head, h: Tensor, *args: Any, **kwargs: Any) -> Any:
        h = as_weights(h, self)
        if not torch.is_autocast_enabled(h.device.type):
            return method(self, h, *args, **kwargs)
        with torch.autocast(device_type=h.device.type, enabled=False):
            return method(self, h, *args, **kwargs)

    return cast(_F, wrapped)


class Head(nn.Module):
    """Features [..., dim] -> a distribution over the labels 0 .. num_classes - 1.

    `forward` gives the mean logits [..., K]: what is left when the noise is taken away.

    Args:
        dim: of the features.
        num_classes: K, at least 2.

    Example:
        >>> class Linear(Head):
        ...     def __init__(self, dim, num_classes):
        ...         super().__init__(dim, num_classes)
        ...         self.layer = nn.Linear(dim, num_classes)
        ...     def forward(self, h):
        ...         return self.layer(h)
        >>> Linear(8, 3).nll(torch.zeros(4, 8), torch.tensor([0, 1, 2, -1])).shape
        torch.Size([4])
    """

    categorical = True  # nll is that of log_probs; False: the head has a likelihood of its own

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        if dim < 1 or num_classes < 2:
            raise BadInput(f"a head needs dim >= 1 and num_classes >= 2, not {dim}, {num_classes}.")
        self.dim, self.num_classes = dim, num_classes

    def log_probs(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Log-probabilities of the labels.

        Args:
            h: features [..., dim].
            generator: of the noise; heads without noise do not use it.

        Returns:
            [..., K].
        """
        return log_softmax(self(h))

    def nll(self, h: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Negative log-likelihood of each label.

        Args:
            h: features [..., dim].
            y: labels [...]; -1 = ignore.
            generator: of the noise; heads without noise do not use it.

        Returns:
            [...], 0 where y is -1.
        """
        log_probs = self.log_probs(h, generator)
        _check_labels(y, log_probs)
        return nll_of_label(log_probs, y)

    def variance(self, h: Tensor) -> Tensor | None:
        """Aleatoric variance of each class's probability [..., K], None for a head without noise.

        Its sum over the classes is the scalar aleatoric uncertainty.
        """
        return None


def _ignoring(nll: Tensor, y: Tensor) -> Tensor:
    return torch.where(y == IGNORE, torch.zeros_like(nll), nll)


def _check_labels(y: Tensor, features: Tensor) -> None:
    if y.shape != features.shape[:-1]:
        raise BadInput(
            f"labels of shape {list(y.shape)} do not fit predictions of shape "
            f"{list(features.shape)}: give one label for each position before the last axis."
        )


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise BadInput(f"{name} is {value}: give a number above 0.")


class Softmax(Head):
    """One linear layer: the homoscedastic head.

    Args:
        dim: of the features.
        num_classes: K, at least 2.

    Example:
        >>> head = Softmax(8, 3)
        >>> head.log_probs(torch.zeros(4, 8)).shape
        torch.Size([4, 3])
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__(dim, num_classes)
        self.mean = nn.Linear(dim, num_classes)

    @_full_precision
    def forward(self, h: Tensor) -> Tensor:
        return self.mean(h)
