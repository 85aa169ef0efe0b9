"""How far an estimated T is from the true one."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .matrices import _full_precision


@_full_precision
def relative_l1(T: Tensor, T_true: Tensor) -> Tensor:
    """||T - T_true||_1 / ||T_true||_1, [...] for [..., K, K]."""
    return (T - T_true).abs().sum((-1, -2)) / T_true.abs().sum((-1, -2))


@_full_precision
def row_error(rows: Tensor, true_rows: Tensor) -> Tensor:
    """Squared error of rows of T(x) [N, K]: summed over the K entries, mean over the examples."""
    return (rows - true_rows).square().sum(-1).mean()


def class_floor(true_rows: Tensor, clean: Tensor) -> Tensor:
    """The `row_error` of the class means of the true rows [N, K]: no class-level T has a lower."""
    members = F.one_hot(clean, true_rows.shape[-1]).to(true_rows)
    mean = (members.T @ true_rows) / members.sum(0).clamp_min(1)[:, None]
    return row_error(mean[clean], true_rows)
