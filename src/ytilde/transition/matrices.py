"""What the package stands on: full precision, safe logarithms, counts, rows that sum to one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ..data import IGNORE

# log 0. Finite, so that no gradient is NaN and a label that T calls impossible costs a lot instead
# of infinitely much; so low that exp(log p + LOG_ZERO) is exactly 0, which makes T = I exactly CE.
LOG_ZERO = -1e5
P = ParamSpec("P")
R = TypeVar("R")


def _full_precision(fn: Callable[P, R]) -> Callable[P, R]:
    """Run with autocast off and all floats in float32, or in float64 where one argument is."""

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        double = any(t.dtype == torch.float64 for t in tensors)
        dtype = torch.float64 if double else torch.float32

        def full(a: object) -> object:
            return a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a

        with torch.autocast(device_type=tensors[0].device.type, enabled=False):
            return fn(*map(full, args), **{k: full(v) for k, v in kwargs.items()})  # type: ignore

    return run


def safe_log(p: Tensor) -> Tensor:
    """log p, with LOG_ZERO and no gradient where p is 0 (or negative): exact zeros stay zeros."""
    positive = p >= torch.finfo(p.dtype).tiny
    return p.where(positive, 1).log().where(positive, LOG_ZERO)


def _columns(T: Tensor, y: Tensor) -> Tensor:
    """T[..., :, y], i.e. what each clean class makes of the label: [..., K] for y [...]."""
    lead, k = T.shape[:-2], T.shape[-1]
    each = math.prod(y.shape[len(lead) :])  # labels that share one T
    index = torch.where(y == IGNORE, 0, y).reshape(*lead, 1, each).expand(*lead, k, each)
    return T.gather(-1, index).transpose(-1, -2).reshape(*y.shape, k)


def _count(row: Tensor, column: Tensor, k: int) -> Tensor:
    return torch.bincount(row * k + column, minlength=k * k).reshape(k, k)


def _normalise_rows(A: Tensor) -> Tensor:
    """Non-negative A [K, K] with rows summing to one; a row of zeros becomes the identity's."""
    total = A.sum(-1, keepdim=True)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return torch.where(total > 0, A / total.where(total > 0, 1), eye)
