"""T(x) as a mixture of matrices by the parts of x (PTD)."""

from __future__ import annotations

import torch
from torch import Tensor

from .matrices import _full_precision, safe_log


@_full_precision
def nmf_basis(H: Tensor, parts: int, generator: torch.Generator, steps: int = 100) -> Tensor:
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
def part_weights(H: Tensor, basis: Tensor, steps: int = 100) -> Tensor:
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
def part_matrices(weights: Tensor, rows: Tensor, steps: int = 500) -> Tensor:
    """P [R, K, K] with sum_k w_k P^k_i ~ T_i for A sets of anchors (Xia et al., 2020, eq. 3).

    weights [A, K, R] and noisy posteriors [A, K, K] of the anchors of each class. Rows of P stay
    on the simplex as softmaxes; Adam on the squared error, from the mean over the sets.
    """
    start = safe_log(rows.mean(0)).clamp_min(-7)
    logits = start.repeat(weights.shape[-1], 1, 1).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.02)
    with torch.enable_grad():
        for _ in range(steps):
            fitted = torch.einsum("aik,kij->aij", weights, logits.softmax(-1))
            optimizer.zero_grad()
            (fitted - rows).square().sum().backward()
            optimizer.step()
    return logits.detach().softmax(-1)
