"""A transition matrix for each group of rows, from its labels and clean posteriors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import IGNORE
from ..losses import mean
from .matrices import safe_log

POWERS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)  # how much sharper a posterior may be made


def group_matrices(
    p: Tensor, y: Tensor, group: Tensor, groups: int, prior: Tensor, kappa: float, steps: int = 30
) -> Tensor:
    """T of each group, [G, K, K], from clean posteriors p [N, K] and labels y [N].

    EM. E: n_g[i, j] = sum of P(clean = i | x, y) over the group's rows with label j. M: row i is
    (n_g[i] + kappa prior[i]) / (sum_j n_g[i, j] + kappa): empirical Bayes, so that a class that a
    group does not hold keeps the common row. Rows with label -1 do not count.
    """
    k = p.shape[-1]
    p, prior = p.double(), prior.double()
    label, known = y.clamp_min(0), (y != IGNORE)[:, None]
    T = prior.expand(groups, k, k)
    for _ in range(steps):
        after = (safe_log(p) + log_columns(T, group, y)).softmax(-1) * known
        n = p.new_zeros(groups * k, k).index_add_(0, group * k + label, after)  # [g, j, i]
        n = n.view(groups, k, k).transpose(1, 2)
        T = (n + kappa * prior) / (n.sum(-1, keepdim=True) + kappa)
    return T.float()


def log_columns(T: Tensor, group: Tensor, y: Tensor) -> Tensor:
    """log T_g[:, y] of each row's group, [N, K], without an [N, K, K] of whole matrices."""
    return safe_log(T)[group, :, y.clamp_min(0)]


def sharpened(
    p: Tensor, y: Tensor, group: Tensor, groups: int, start: Tensor, kappa: float
) -> tuple[Tensor, Tensor]:
    """`group_matrices` [G, K, K] of posteriors p [N, K] (not normalised) at a fitting sharpness.

    Regularised or averaged posteriors are too flat, and T then takes too much for clean. Of some
    powers of p the one is taken under which p @ T_g explains the labels best. Returned with them.
    """
    log_p = safe_log(p.double() / p.double().sum(-1, keepdim=True))
    best: tuple[float, Tensor, Tensor] | None = None
    for power in POWERS:
        q = (power * log_p).softmax(-1)
        common = group_matrices(q, y, torch.zeros_like(y), 1, start, kappa=1.0)[0]
        T = group_matrices(q, y, group, groups, common, kappa)
        joint = safe_log(q) + log_columns(T.double(), group, y)
        nll = float(mean(-joint.logsumexp(-1), y))
        if best is None or nll < best[0]:
            best = (nll, q.float(), T)
    assert best is not None
    return best[1], best[2]


def weights_of(T: Tensor) -> Tensor:
    """W with sigmoid_rows(W) = T [..., K, K], where T's diagonal is the largest of its row.

    w_ij = logit(T_ij / T_ii). A larger entry is cut to just below the diagonal: this
    parametrisation, the paper's, cannot say that most labels of a class are wrong in one way.
    A smaller one is raised, by a hundredth of T_ii in the whole row at most, to be finite.
    """
    ratio = T / T.diagonal(dim1=-2, dim2=-1)[..., None].clamp_min(1e-6)
    k = T.shape[-1]
    eye = torch.eye(k, dtype=torch.bool, device=T.device)
    return torch.logit(ratio.clamp(1e-2 / k, 0.98)).masked_fill(eye, 0.0)
