"""T(x) as a mixture of matrices by the parts of x (PTD)."""

from __future__ import annotations

import torch
from torch import Tensor

from .matrices import _full_precision


@_full_precision
def nmf_basis(H: Tensor, parts: int, generator: torch.Generator, steps: int = 20) -> Tensor:
    """B [R, D] >= 0 of the factorisation H ~ W B, H [N, D] >= 0 (Lee & Seung's updates)."""
    size = (H.mean() / parts).sqrt()

    def draw(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator) + 0.1).to(H) * size

    W, B = draw(len(H), parts), draw(parts, H.shape[1])
    for _ in range(steps):
        W = W * (H @ B.T) / (W @ (B @ B.T)).clamp_min(1e-12)
        B = B * (W.T @ H) / ((W.T @ W) @ B).clamp_min(1e-12)
    return B


@_full_precision
def part_weights(H: Tensor, basis: Tensor, steps: int = 20) -> Tensor:
    """Coefficients [N, R] >= 0 of H [N, D] on the basis [R, D] by least squares; rows sum to one.

    Multiplicative updates, a fixed number: each row's result is its own. No fit: equal weights.
    """
    gram, target = basis @ basis.T, H @ basis.T
    W = torch.ones_like(target)
    for _ in range(steps):
        W = W * target / (W @ gram).clamp_min(1e-12)
    total = W.sum(-1, keepdim=True)
    return torch.where(total > 0, W / total.where(total > 0, 1), 1 / len(basis))


@_full_precision
def part_T(weights: Tensor, matrices: Tensor) -> Tensor:
    """T(x) = sum_k w_k(x) P^k, [B, K, K] of weights [B, R] and matrices [R, K, K]."""
    return torch.einsum("nk,kij->nij", weights, matrices)


@_full_precision
def part_matrices(weights: Tensor, rows: Tensor, ridge: float = 1.0) -> Tensor:
    """P [R, K, K] with sum_k w_k P^k_i ~ T_i for A sets of anchors (Xia et al., 2020, eq. 3).

    weights [A, K, R] and noisy posteriors [A, K, K] of the anchors of each class. Least squares
    with a ridge towards the mean over the sets, which is what a part gets that a class's anchors
    hardly have; rows of P sum to one because those of the anchors do, and are kept non-negative.
    """
    mean = rows.mean(0)
    w, rest = weights.transpose(0, 1), (rows - mean).transpose(0, 1)  # [K, A, R], [K, A, K]
    gram = w.mT @ w + ridge * torch.eye(w.shape[-1]).to(w)
    P = (mean[:, None] + torch.linalg.solve(gram, w.mT @ rest)).clamp_min(0)  # [K, R, K]
    return (P / P.sum(-1, keepdim=True)).transpose(0, 1)
